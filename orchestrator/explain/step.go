package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// Step is one step of an explained episode.
type Step struct {
	Index     int                 `json:"index"`
	Tool      string              `json:"tool"`      // "no call" where there is none, "–" where none is recorded
	Arguments string              `json:"arguments"` // short, on one line
	Violation string              `json:"violation,omitempty"`
	Exposed   []Exposed           `json:"exposed,omitempty"`
	Changed   []string            `json:"changed,omitempty"`
	Probe     string              `json:"probe,omitempty"` // what the probe found, in words; "" where there was none
	Cached    bool                `json:"cached,omitempty"`
	Fixed     []string            `json:"fixed,omitempty"` // tests that count as passing now and did not before
	Broken    []string            `json:"broken,omitempty"`
	Notes     []string            `json:"notes,omitempty"` // what came of the probe, where that is not plain
	Note      credit.StepNote     `json:"note"`
	Credit    milepost.StepCredit `json:"credit"`
	Source    *milepost.Step      `json:"-"` // sampled text and observation, for the report
}

// Exposed is a file that a step showed.
type Exposed struct {
	Path    string                 `json:"path"`
	Level   milepost.ExposureLevel `json:"level"`
	Counted bool                   `json:"counted"` // for navigation: relevant, of high confidence, of an action that ran
}

// Lengths in runes of what is shown of arguments.
const (
	argumentLimit = 60
	shortLimit    = 160
)

// steps lays out an episode; credit and note have one element a step, none where it is excluded.
func steps(in credit.Input, note credit.Explanation, earned milepost.EpisodeCredit) []Step {
	out := make([]Step, len(earned.Steps))
	for t := range out {
		s, n := &in.Episode.Steps[t], note.Steps[t]
		out[t] = Step{
			Index: s.Index, Tool: OneLine(s.Action.Tool), Arguments: arguments(s.Action.Arguments), Violation: violation(s), Changed: clean(s.Changed),
			Fixed: names(in.Task, n.Fixed), Broken: names(in.Task, n.Broken), Notes: notes(s.Probe, n), Note: n,
			Credit: earned.Steps[t], Source: s,
		}
		for i, x := range s.Exposures {
			e := Exposed{Path: OneLine(x.Path), Level: x.Level, Counted: slices.Contains(n.Counted, i)}
			if !slices.Contains(out[t].Exposed, e) {
				out[t].Exposed = append(out[t].Exposed, e)
			}
		}
		if s.Action.Tool == "" {
			out[t].Tool, out[t].Arguments = noCall(s.Action.Text)
		}
		if s.Probe != nil {
			out[t].Probe, out[t].Cached = found(s.Probe, n), s.Probe.Cached
		}
	}
	return out
}

// noCall stands for the action where no tool was called; a case records no action at all.
func noCall(text string) (tool, arguments string) {
	if text == "" {
		return "–", ""
	}
	return "no call", OneLine(text)
}

// violation says why a call earns the format penalty; a case does not say.
func violation(s *milepost.Step) string {
	switch {
	case s.Violation != "":
		return string(s.Violation)
	case !s.Valid:
		return "no reason recorded"
	}
	return ""
}

// names are the tests at indices of the task's list.
func names(task *milepost.Task, indices []int) []string {
	var out []string
	for _, i := range indices {
		out = append(out, OneLine(task.Tests[i]))
	}
	return out
}

// arguments shows a call's arguments as "name: value" pairs, in the order in which they were written; what is no JSON
// object as it is.
func arguments(raw json.RawMessage) string {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return OneLine(string(raw))
	}
	var parts []string
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return OneLine(string(raw))
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return OneLine(string(raw))
		}
		text := string(value)
		var s string
		if json.Unmarshal(value, &s) == nil {
			text = s
		}
		parts = append(parts, fmt.Sprintf("%v: %s", name, Clip(flat(text), argumentLimit)))
	}
	return Clip(flat(strings.Join(parts, ", ")), shortLimit)
}

func clean(texts []string) []string {
	var out []string
	for _, s := range texts {
		out = append(out, OneLine(s))
	}
	return out
}

// OneLine shows a text on one line, without control characters and cut to a fixed length.
func OneLine(s string) string { return Clip(flat(s), shortLimit) }

// flat puts a text on one line and takes out what could steer a terminal: control and formatting characters.
func flat(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// Clip cuts s to n runes and marks the cut.
func Clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n]) + "…"
}

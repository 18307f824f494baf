package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// StepRow is one line of a sample episode's table.
type StepRow struct {
	Index     int
	Tool      string
	Arguments string // short
	Action    string // the whole sampled text
	Violation string
	Observed  string // short
	Full      string // the observation, up to fullLimit
	Exposed   []string
	Changed   []string
	Probe     string // what the probe found, "" where there was none
	Trusted   bool
	Cached    bool
	Fixed     []string // tests that pass now and did not at the previous trusted probe
	Broken    []string // the other way round
	Credit    milepost.StepCredit
}

// Lengths in runes of what the table shows.
const (
	shortLimit = 160
	fullLimit  = 4000
)

// stepRows lays out an episode. Tests are compared with the last trusted probe before, at first the baseline.
func stepRows(rec *orchestrator.EpisodeRecord, task *milepost.Task) []StepRow {
	var before milepost.TestReport
	if rec.Baseline != nil && rec.Baseline.Trusted {
		before = rec.Baseline.Report
	}
	rows := make([]StepRow, len(rec.Episode.Steps))
	for i, s := range rec.Episode.Steps {
		row := StepRow{
			Index: s.Index, Tool: s.Action.Tool, Arguments: arguments(s.Action.Arguments), Action: clip(s.Action.Text, fullLimit),
			Violation: string(s.Violation), Observed: oneLine(s.Observed), Full: clip(s.Observed, fullLimit),
			Exposed: exposed(s.Exposures), Changed: s.Changed, Credit: rec.Credit.Steps[i],
		}
		if row.Tool == "" {
			row.Tool = "no call"
			row.Arguments = oneLine(s.Action.Text)
		}
		if p := s.Probe; p != nil {
			row.Probe, row.Trusted, row.Cached = passes(p), p.Trusted, p.Cached
			if p.Trusted && p.Report != nil {
				row.Fixed, row.Broken = compare(before, p.Report, task)
				before = p.Report
			}
		}
		rows[i] = row
	}
	return rows
}

// compare names the tests whose passing differs; nothing where the reports are not over the same tests.
func compare(before, after milepost.TestReport, task *milepost.Task) (fixed, broken []string) {
	if len(before) != len(after) {
		return nil, nil
	}
	for i := range after {
		was, is := before[i] == milepost.Passed, after[i] == milepost.Passed
		if was == is {
			continue
		}
		name := fmt.Sprintf("test %d", i)
		if task != nil && i < len(task.Tests) {
			name = task.Tests[i]
		}
		if is {
			fixed = append(fixed, name)
		} else {
			broken = append(broken, name)
		}
	}
	return fixed, broken
}

// arguments shows a call's arguments as "name: value" pairs, in the order in which they were written; what is no JSON
// object as it is.
func arguments(raw json.RawMessage) string {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return oneLine(string(raw))
	}
	var parts []string
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return oneLine(string(raw))
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return oneLine(string(raw))
		}
		text := string(value)
		var s string
		if json.Unmarshal(value, &s) == nil {
			text = s
		}
		parts = append(parts, fmt.Sprintf("%v: %s", name, clip(flat(text), 60)))
	}
	return clip(strings.Join(parts, ", "), shortLimit)
}

func exposed(list []milepost.Exposure) []string {
	var out []string
	for _, e := range list {
		text := string(e.Level) + " " + e.Path
		if e.Confidence != "high" {
			text += " (not counted)"
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

func oneLine(s string) string { return clip(flat(s), shortLimit) }

func flat(s string) string { return strings.Join(strings.Fields(s), " ") }

// clip cuts s to n runes and marks the cut.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n]) + "…"
}

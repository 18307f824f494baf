package trajectories

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/milepost-rl/milepost/rollout/toolcall"
	"github.com/milepost-rl/milepost/rollout/tools"
)

// Calls that were written as text: mini-swe-agent's fenced block of bash, the function tags of OpenHands and SWE-agent, and
// Milepost's own formats.

var (
	fencedBash   = regexp.MustCompile("(?s)```(?:mswea_bash_command|bash)[ \t]*\n(.*?)\n?```")
	functionTag  = regexp.MustCompile(`(?s)<function=([^>\s]+)>(.*?)</function>`)
	parameterTag = regexp.MustCompile(`(?s)<parameter=([^>\s]+)>(.*?)</parameter>`)
)

// findCalls turns the text of turns into calls, where the trajectory records none as such. A turn with exactly one becomes a
// turn with that call; where no turn of the trajectory holds one it stays what it is, a conversation in text. A tool's result
// for a turn without a call is a fault.
func (t *Trajectory) findCalls() error {
	if !t.calls() {
		t.textCalls()
	}
	for i, turn := range t.Turns {
		if turn.Call == nil && turn.Answered && !turn.ByUser {
			return field(fmt.Sprintf("messages, turn %d", i+1), "a tool's result for a turn that makes no call")
		}
	}
	return nil
}

func (t *Trajectory) textCalls() {
	found := make([]*toolcall.Call, len(t.Turns))
	texts, any := make([]string, len(t.Turns)), false
	for i, turn := range t.Turns {
		texts[i], found[i] = textCall(turn.Text, t.Tools)
		any = any || found[i] != nil
	}
	if !any {
		return
	}
	for i := range t.Turns {
		if found[i] != nil {
			t.Turns[i].Text, t.Turns[i].Call = texts[i], found[i]
		}
	}
}

// textCall finds the one call in a text and returns it with the text around it; nil where there is none, or more than one.
func textCall(text string, known []toolcall.Spec) (string, *toolcall.Call) {
	if at := strings.Index(text, "<tool_call>"); at >= 0 {
		return taggedCall(text, at, known)
	}
	blocks, tags := fencedBash.FindAllStringSubmatchIndex(text, -1), functionTag.FindAllStringSubmatchIndex(text, -1)
	var at []int
	var name string
	args := map[string]json.RawMessage{}
	switch {
	case len(tags) == 1:
		at, name = tags[0], text[tags[0][2]:tags[0][3]]
		for _, p := range parameterTag.FindAllStringSubmatch(text[at[4]:at[5]], -1) {
			args[p[1]] = typed(known, name, p[1], trimLine(p[2]))
		}
	case len(tags) == 0 && len(blocks) == 1:
		at, name = blocks[0], toolcall.BashTool
		args["command"] = quoted(strings.TrimSpace(text[at[2]:at[3]]))
	default:
		return text, nil
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return text, nil
	}
	around := strings.TrimRight(text[:at[0]], " \t\r\n")
	if behind := strings.TrimSpace(text[at[1]:]); behind != "" {
		around += "\n\n" + behind
	}
	return strings.TrimPrefix(around, "\n\n"), &toolcall.Call{Name: name, Arguments: raw}
}

// taggedCall reads a call in one of Milepost's own formats, which begins at a place of the text.
func taggedCall(text string, at int, known []toolcall.Spec) (string, *toolcall.Call) {
	for _, name := range []string{toolcall.Hermes, toolcall.Qwen3Coder} {
		f, err := toolcall.New(name, known)
		if err != nil {
			continue
		}
		if calls, err := f.Parse(text); err == nil && len(calls) == 1 {
			return strings.TrimRight(text[:at], " \t\r\n"), &calls[0]
		}
	}
	return text, nil
}

// trimLine takes one line end off both sides: where tags stand on lines of their own they are no part of the value.
func trimLine(s string) string { return strings.TrimSuffix(strings.TrimPrefix(s, "\n"), "\n") }

func quoted(s string) json.RawMessage {
	raw, _ := json.Marshal(s) // a string always marshals
	return raw
}

// typed gives a value its type by the tool's schema, as told or, where it is not, as the systems have the tool: a text unless
// the schema wants something else and the value is that.
func typed(known []toolcall.Spec, tool, parameter, value string) json.RawMessage {
	s, ok := spec(known, tool)
	if !ok {
		s, ok = spec(handsSpecs(), tool)
	}
	if !ok {
		s, ok = spec(sweSpecs(), tool)
	}
	var schema struct {
		Properties map[string]struct{ Type any }
	}
	if ok && json.Unmarshal(s.Parameters, &schema) == nil {
		if p, there := schema.Properties[parameter]; there && p.Type != "string" && json.Valid([]byte(value)) {
			return json.RawMessage(value)
		}
	}
	return quoted(value)
}

var (
	handsSpecs = sync.OnceValue(func() []toolcall.Spec { return kitSpecs(tools.KitOpenHands) })
	sweSpecs   = sync.OnceValue(func() []toolcall.Spec { return kitSpecs(tools.KitSWEAgent) })
)

// kitSpecs describes the tools of one of Milepost's kits.
func kitSpecs(kit string) []toolcall.Spec {
	set, err := tools.New(kit, tools.Default())
	if err != nil {
		panic("trajectories: the kit " + kit + " does not build: " + err.Error())
	}
	return set.Specs()
}

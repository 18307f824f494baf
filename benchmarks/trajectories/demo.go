package trajectories

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// Demo is one demonstration as the trainer reads it: a line of demos.jsonl.
type Demo struct {
	ID       string        `json:"id"`
	Messages []DemoMessage `json:"messages"`
	Tools    []DemoTool    `json:"tools,omitempty"` // for the chat template
}

// DemoMessage is one message. Train is set, to false, on turns of the assistant that are context alone.
type DemoMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	Train   *bool  `json:"train,omitempty"`
}

// DemoTool describes a tool to a chat template, in OpenAI's form.
type DemoTool struct {
	Type     string       `json:"type"`
	Function DemoFunction `json:"function"`
}

// DemoFunction is name, description and JSON schema of a tool.
type DemoFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// demo writes a trajectory down as the policy would have sampled it, calls in the given format. What stands behind the last
// trained turn is left out. A call that the format cannot express is an error.
func (t *Trajectory) demo(format string, withTools bool) (*Demo, error) {
	f, err := toolcall.New(format, t.Tools)
	if err != nil {
		return nil, err
	}
	d := &Demo{ID: t.ID}
	for _, m := range t.Opening {
		d.Messages = append(d.Messages, DemoMessage{Role: m.Role, Content: m.Text})
	}
	last := len(t.Turns) - 1
	for last >= 0 && t.Turns[last].Masked != "" {
		last--
	}
	for i, turn := range t.Turns[:last+1] {
		content, err := said(f, turn)
		if err != nil {
			return nil, field(fmt.Sprintf("turn %d", i+1), "%s", toolcall.Why(err))
		}
		m := DemoMessage{Role: "assistant", Content: content}
		if turn.Masked != "" {
			m.Train = new(bool)
		}
		d.Messages = append(d.Messages, m)
		if i == last {
			break
		}
		role := "tool"
		if turn.ByUser || format == toolcall.BashBlock || turn.Call == nil {
			role = "user"
		}
		d.Messages = append(d.Messages, DemoMessage{Role: role, Content: turn.Observed})
		for _, after := range turn.After {
			d.Messages = append(d.Messages, DemoMessage{Role: after.Role, Content: after.Text})
		}
	}
	if withTools && format != toolcall.BashBlock {
		for _, s := range t.Tools {
			d.Tools = append(d.Tools, DemoTool{"function", DemoFunction{s.Name, s.Description, s.Parameters}})
		}
	}
	return d, nil
}

// said is the text of a turn, its call behind what was said. A call that is not trained is written as it was, well formed or
// not.
func said(f toolcall.Format, turn Turn) (string, error) {
	if turn.Call == nil {
		return turn.Text, nil
	}
	call := *turn.Call
	var command struct{ Command string }
	if f.Name() == toolcall.BashBlock && json.Unmarshal(call.Arguments, &command) == nil && command.Command != "" {
		call.Arguments, _ = json.Marshal(map[string]string{"command": strings.TrimSpace(command.Command)}) // a map of strings always marshals
	}
	call.Arguments = bytes.TrimSpace(call.Arguments)
	text, err := f.Render(call)
	if err != nil {
		if turn.Masked == "" {
			return "", err
		}
		text = fmt.Sprintf("<tool_call>\n{\"name\": %s, \"arguments\": %s}\n</tool_call>", quoted(call.Name), call.Arguments)
	}
	return strings.TrimPrefix(strings.TrimRight(turn.Text, " \t\r\n")+"\n\n"+text, "\n\n"), nil
}

// Trained counts the turns that are trained.
func (d *Demo) Trained() int {
	n := 0
	for _, m := range d.Messages {
		if m.Role == "assistant" && m.Train == nil {
			n++
		}
	}
	return n
}

// size is the text of the demonstration in bytes.
func (d *Demo) size() int {
	n := 0
	for _, m := range d.Messages {
		n += len(m.Content)
	}
	for _, t := range d.Tools {
		n += len(t.Function.Description) + len(t.Function.Parameters)
	}
	return n
}

// hash is the same for demonstrations of the same conversation, whatever they are called.
func (d *Demo) hash() string {
	h := sha256.New()
	for _, m := range d.Messages {
		fmt.Fprintf(h, "%s\x00%d\x00%s\x00", m.Role, len(m.Content), m.Content)
	}
	return hex.EncodeToString(h.Sum(nil))
}

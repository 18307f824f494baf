package trajectories

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// chat is OpenAI's messages, as public sets of trajectories have them: nebius/SWE-rebench-openhands-trajectories and
// nvidia's (trajectory, tools, resolved, exit_status), SWE-bench/SWE-smith-trajectories (messages as JSON in a text,
// resolved, traj_id), SWE-Gym and R2E-Gym (messages), nebius/SWE-agent-trajectories (trajectory of role, text, system_prompt;
// target; its own mask is not read).
var chat = Format{
	Name: "chat", About: "rows of OpenAI messages, in the field messages or trajectory",
	is:   func(r record) bool { return r.has("messages") || r.has("trajectory") },
	read: readChat,
}

func readChat(r record) (out recorded, err error) {
	if out.id, err = r.text("trajectory_id", "traj_id", "id", "instance_id"); err != nil {
		return out, err
	}
	if out.task, err = r.text("instance_id", "task", "task_id"); err != nil {
		return out, err
	}
	if out.exit, err = r.text("exit_status", "exit_reason"); err != nil {
		return out, err
	}
	if out.resolved, err = r.truth("resolved", "target", "success"); err != nil {
		return out, err
	}
	if r.has("tools") {
		if out.tools, err = readTools(r.fields["tools"], "tools"); err != nil {
			return out, err
		}
	}
	name := "messages"
	if !r.has(name) {
		name = "trajectory"
	}
	var raw []chatMessage
	if err := r.decode(name, &raw); err != nil {
		return out, err
	}
	if out.id == "" {
		out.id = fmt.Sprintf("%s-%d", stem(r.file), r.row)
	}
	out.messages, err = chatMessages(raw, name)
	return out, err
}

// chatMessage is a message as chat endpoints have it. Text and System are nebius/SWE-agent-trajectories'.
type chatMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls []chatCall      `json:"tool_calls"`
	CallID    string          `json:"tool_call_id"`
	Text      string          `json:"text"`
	System    string          `json:"system_prompt"`
	Train     *bool           `json:"train"` // of Milepost's own demonstrations
}

type chatCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// chatMessages turns messages of a chat into ours. name is the field they stand in.
func chatMessages(raw []chatMessage, name string) ([]message, error) {
	var out []message
	for i, m := range raw {
		at := fmt.Sprintf("%s[%d]", name, i)
		text, err := contentText(m.Content, at+".content")
		if err != nil {
			return nil, err
		}
		if text == "" {
			text = m.Text + m.System
		}
		role := m.Role
		if role == "ai" {
			role = "assistant"
		}
		switch role {
		case "system", "user", "assistant", "tool":
		default:
			return nil, field(at+".role", "%q; allowed: system, user, assistant, tool", m.Role)
		}
		if role != "assistant" && len(m.ToolCalls) > 0 {
			return nil, field(at+".tool_calls", "calls of %s; allowed: of the assistant", role)
		}
		one := message{role: role, text: text, callID: m.CallID, at: at, masked: role == "assistant" && m.Train != nil && !*m.Train}
		for j, c := range m.ToolCalls {
			call, err := c.call(fmt.Sprintf("%s.tool_calls[%d]", at, j))
			if err != nil {
				return nil, err
			}
			one.calls = append(one.calls, call)
		}
		out = append(out, one)
	}
	return out, nil
}

// call gives a call with its arguments as the model wrote them: a text of JSON, or JSON itself.
func (c chatCall) call(at string) (toolcall.Call, error) {
	if c.Function.Name == "" {
		return toolcall.Call{}, field(at+".function.name", "missing; a call names its tool")
	}
	args := c.Function.Arguments
	var inner string
	if json.Unmarshal(args, &inner) == nil {
		args = json.RawMessage(inner)
	}
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	return toolcall.Call{ID: c.ID, Name: c.Function.Name, Arguments: args}, nil
}

// contentText is the content of a message: a text, parts of a text, or null.
func contentText(raw json.RawMessage, at string) (string, error) {
	if v := bytes.TrimSpace(raw); len(v) == 0 || string(v) == "null" {
		return "", nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", field(at, "neither a text nor a list of parts: %s", excerpt(raw))
	}
	var texts []string
	for i, p := range parts {
		if p.Type != "text" && p.Type != "" {
			return "", field(fmt.Sprintf("%s[%d].type", at, i), "%q; allowed: text", p.Type)
		}
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, "\n"), nil
}

// readTools reads descriptions of tools: OpenAI's {type, function: {name, description, parameters}}.
func readTools(raw json.RawMessage, at string) ([]toolcall.Spec, error) {
	var list []struct {
		Function struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if err := decode(raw, at, &list); err != nil {
		return nil, err
	}
	var out []toolcall.Spec
	for i, t := range list {
		f := t.Function
		if f.Name == "" {
			return nil, field(fmt.Sprintf("%s[%d].function.name", at, i), "missing; a tool has a name")
		}
		if v := bytes.TrimSpace(f.Parameters); len(v) == 0 || v[0] != '{' {
			var inner string
			if json.Unmarshal(f.Parameters, &inner) != nil || !strings.HasPrefix(strings.TrimSpace(inner), "{") {
				inner = `{"type":"object"}` // a tool without parameters
			}
			f.Parameters = json.RawMessage(inner)
		}
		out = append(out, toolcall.Spec{Name: f.Name, Description: f.Description, Parameters: f.Parameters})
	}
	return out, nil
}

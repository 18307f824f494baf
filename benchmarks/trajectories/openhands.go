package trajectories

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// openHands is OpenHands' record: a row of the evaluation's output.jsonl (instance_id, history of events, test_result), or a
// file that is the list of events itself. Events are of the first kind (action and observation, up to version 0) or the
// second (kind: ActionEvent and so on, the software-agent SDK).
var openHands = Format{
	Name: "openhands", About: "a row of output.jsonl with history, or a list of events",
	is:   func(r record) bool { return r.events != nil || r.has("history") },
	read: readOpenHands,
}

// isEvent tells an event from a row.
func isEvent(fields map[string]json.RawMessage) bool {
	for _, key := range []string{"action", "observation", "kind"} {
		if _, ok := fields[key]; ok {
			return true
		}
	}
	return false
}

func readOpenHands(r record) (out recorded, err error) {
	out.task, out.exit = stem(r.file), ""
	at, raw := "(events)", r.events
	if raw == nil {
		at, raw = "history", r.fields["history"]
		if out.task, err = r.text("instance_id"); err != nil {
			return out, err
		}
		if out.exit, err = r.text("error"); err != nil {
			return out, err
		}
		if out.resolved, err = handsResolved(r); err != nil {
			return out, err
		}
	}
	out.id = out.task
	if out.id == "" {
		out.id = fmt.Sprintf("%s-%d", stem(r.file), r.row)
	}
	var list []json.RawMessage
	if err := decode(raw, at, &list); err != nil {
		return out, err
	}
	h := handsReader{out: &out, taken: map[string]bool{}}
	for i, one := range list {
		where := fmt.Sprintf("%s[%d]", at, i)
		var pair []json.RawMessage // of old records: action and observation together
		if json.Unmarshal(one, &pair) != nil {
			pair = []json.RawMessage{one}
		}
		for _, e := range pair {
			if err := h.event(e, where); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// handsResolved is the verdict of a row, where the evaluation wrote one.
func handsResolved(r record) (*bool, error) {
	if b, err := r.truth("resolved"); b != nil || err != nil {
		return b, err
	}
	for _, name := range []string{"report", "test_result"} {
		if !r.has(name) {
			continue
		}
		var v struct {
			Resolved *bool `json:"resolved"`
			Report   *struct {
				Resolved *bool `json:"resolved"`
			} `json:"report"`
		}
		if err := r.decode(name, &v); err != nil {
			return nil, err
		}
		if v.Report != nil && v.Report.Resolved != nil {
			return v.Report.Resolved, nil
		}
		if v.Resolved != nil {
			return v.Resolved, nil
		}
	}
	return nil, nil
}

// handsReader turns events into messages. Calls of one response of the model are one turn.
type handsReader struct {
	out      *recorded
	taken    map[string]bool // ids of responses of the first kind whose turn stands already
	response string          // id of the response of the second kind that the last turn came from
}

// handsEvent has the fields of both kinds.
type handsEvent struct {
	Kind, Source        string
	Action, Observation json.RawMessage
	Content             json.RawMessage
	Args                struct{ Content, Tools json.RawMessage }
	Extras              struct {
		Metadata struct {
			ExitCode       *int    `json:"exit_code"`
			WorkingDir     *string `json:"working_dir"`
			Interpreter    *string `json:"py_interpreter_path"`
			Prefix, Suffix string
		}
	}
	Call *struct {
		Name     string `json:"function_name"`
		ID       string `json:"tool_call_id"`
		Response struct {
			ID      string
			Choices []struct{ Message chatMessage }
		} `json:"model_response"`
	} `json:"tool_call_metadata"`

	Prompt     json.RawMessage `json:"system_prompt"`
	Tools      json.RawMessage
	LLMMessage *chatMessage `json:"llm_message"`
	Thought    json.RawMessage
	ToolCall   *struct {
		ID, Name  string
		Arguments json.RawMessage
		Function  *struct {
			Name      string
			Arguments json.RawMessage
		}
	} `json:"tool_call"`
	ToolCallID string `json:"tool_call_id"`
	ResponseID string `json:"llm_response_id"`
	Error      json.RawMessage
}

func (h *handsReader) event(raw json.RawMessage, at string) error {
	var e handsEvent
	if err := decode(raw, at, &e); err != nil {
		return err
	}
	if e.Kind != "" {
		return h.second(e, at)
	}
	var action, observation, text string
	_ = json.Unmarshal(e.Action, &action)
	_ = json.Unmarshal(e.Observation, &observation)
	var err error
	switch {
	case action == "system" || action == "message":
		text, err = contentText(e.Args.Content, at+".args.content")
	case observation != "":
		text, err = contentText(e.Content, at+".content")
	}
	if err != nil {
		return err
	}
	switch {
	case action == "system":
		return h.system(text, e.Args.Tools, at)
	case action == "message" && e.Source == "user":
		h.add(message{role: "user", text: text, at: at})
	case e.Call != nil && action != "":
		return h.said(e, at)
	case action == "message" && e.Source == "agent":
		h.add(message{role: "assistant", text: text, at: at})
	case e.Call != nil && observation != "":
		m := message{role: "tool", callID: e.Call.ID, text: commandText(e, observation, text), at: at}
		if observation == "error" {
			m.fault = "the answer was an error of the agent system"
		}
		h.add(m)
	case observation == "error" && h.lastRole() == "assistant": // of a response that held no valid call
		h.add(message{role: "user", text: text, fault: "the answer was an error of the agent system", at: at})
	case action == "" && observation == "" && e.Source == "":
		return field(at, "no event: neither action, observation nor kind")
	}
	return nil // states, recalls and the like, which no model sees
}

func (h *handsReader) lastRole() string {
	if n := len(h.out.messages); n > 0 {
		return h.out.messages[n-1].role
	}
	return ""
}

func (h *handsReader) add(m message) {
	h.response = ""
	h.out.messages = append(h.out.messages, m)
}

func (h *handsReader) system(text string, tools json.RawMessage, at string) (err error) {
	h.add(message{role: "system", text: text, at: at})
	if len(tools) > 0 && string(tools) != "null" && string(tools) != "[]" {
		h.out.tools, err = readTools(tools, at+".tools")
	}
	return err
}

// said adds the turn of a response once, with all its calls.
func (h *handsReader) said(e handsEvent, at string) error {
	r := e.Call.Response
	if len(r.Choices) == 0 {
		return field(at+".tool_call_metadata.model_response.choices", "empty; the response of the model is wanted")
	}
	if r.ID != "" && h.taken[r.ID] {
		return nil
	}
	one, err := chatMessages([]chatMessage{r.Choices[0].Message}, at+".tool_call_metadata.model_response.choices[0].message")
	if err != nil {
		return err
	}
	one[0].at, one[0].role = at, "assistant"
	if !slices.ContainsFunc(one[0].calls, func(c toolcall.Call) bool { return c.ID == e.Call.ID }) {
		return field(at+".tool_call_metadata.tool_call_id", "%q is no call of the response", e.Call.ID)
	}
	h.add(one[0])
	h.taken[r.ID] = true
	return nil
}

// commandText is what the model saw of a command: the output, and behind it how and where it ended.
func commandText(e handsEvent, observation, text string) string {
	if observation != "run" {
		return text
	}
	m := e.Extras.Metadata
	var b strings.Builder
	b.WriteString(m.Prefix + text + m.Suffix)
	if m.WorkingDir != nil && *m.WorkingDir != "" {
		fmt.Fprintf(&b, "\n[Current working directory: %s]", *m.WorkingDir)
	}
	if m.Interpreter != nil && *m.Interpreter != "" {
		fmt.Fprintf(&b, "\n[Python interpreter: %s]", *m.Interpreter)
	}
	if m.ExitCode != nil && *m.ExitCode != -1 {
		fmt.Fprintf(&b, "\n[Command finished with exit code %d]", *m.ExitCode)
	}
	return b.String()
}

// second reads an event of the software-agent SDK.
func (h *handsReader) second(e handsEvent, at string) error {
	switch e.Kind {
	case "SystemPromptEvent":
		text, err := partText(e.Prompt, at+".system_prompt")
		if err != nil {
			return err
		}
		return h.system(text, nil, at) // its tools are definitions of the SDK, not schemas
	case "MessageEvent":
		if e.LLMMessage == nil {
			return field(at+".llm_message", "missing")
		}
		one, err := chatMessages([]chatMessage{*e.LLMMessage}, at+".llm_message")
		if err != nil {
			return err
		}
		one[0].at = at
		h.add(one[0])
	case "ActionEvent":
		return h.acted(e, at)
	case "ObservationEvent":
		var o struct{ Content json.RawMessage }
		if err := decode(e.Observation, at+".observation", &o); err != nil {
			return err
		}
		text, err := contentText(o.Content, at+".observation.content")
		if err != nil {
			return err
		}
		h.add(message{role: "tool", callID: e.ToolCallID, text: text, at: at})
	case "AgentErrorEvent":
		text, err := contentText(e.Error, at+".error")
		if err != nil {
			return err
		}
		h.add(message{role: "tool", callID: e.ToolCallID, text: text, fault: "the answer was an error of the agent system", at: at})
	}
	return nil // states, condensations and the like, which no model sees
}

// acted adds a call to the turn of its response, which it begins where it is the first.
func (h *handsReader) acted(e handsEvent, at string) error {
	if e.ToolCall == nil {
		return field(at+".tool_call", "missing")
	}
	c := chatCall{ID: e.ToolCall.ID}
	c.Function.Name, c.Function.Arguments = e.ToolCall.Name, e.ToolCall.Arguments
	if f := e.ToolCall.Function; f != nil {
		c.Function.Name, c.Function.Arguments = f.Name, f.Arguments
	}
	call, err := c.call(at + ".tool_call")
	if err != nil {
		return err
	}
	if n := len(h.out.messages); n > 0 && h.response != "" && h.response == e.ResponseID {
		last := &h.out.messages[n-1]
		last.calls = append(last.calls, call)
		return nil
	}
	text, err := contentText(e.Thought, at+".thought")
	if err != nil {
		return err
	}
	h.add(message{role: "assistant", text: text, calls: []toolcall.Call{call}, at: at})
	h.response = e.ResponseID
	return nil
}

// partText is a text, or an object of one.
func partText(raw json.RawMessage, at string) (string, error) {
	var part struct{ Text string }
	if json.Unmarshal(raw, &part) == nil && part.Text != "" {
		return part.Text, nil
	}
	return contentText(raw, at)
}

package rollout_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// said is one scripted answer of a chat endpoint: text, or a call where tool is set.
type said struct{ text, tool, args string }

// chatScript is an OpenAI-compatible endpoint that gives its answers in order and keeps the requests.
type chatScript struct {
	answers []said
	bodies  []chatBody
}

type chatBody struct {
	Messages []struct {
		Role, Content string
		ToolCalls     []struct{ ID string } `json:"tool_calls"`
	}
	Tools []struct {
		Function struct {
			Name       string
			Parameters json.RawMessage
		}
	}
}

func (s *chatScript) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, _ := io.ReadAll(r.Body)
	var body chatBody
	if err := json.Unmarshal(data, &body); err != nil || len(s.bodies) == len(s.answers) {
		http.Error(w, `{"error":{"message":"the script is over"}}`, http.StatusBadRequest)
		return
	}
	a := s.answers[len(s.bodies)]
	s.bodies = append(s.bodies, body)
	message := map[string]any{"role": "assistant", "content": a.text}
	if a.tool != "" {
		message["tool_calls"] = []any{map[string]any{"id": fmt.Sprint("call", len(s.bodies)), "type": "function",
			"function": map[string]any{"name": a.tool, "arguments": a.args}}}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"finish_reason": "stop", "message": message}},
		"usage": map[string]any{"completion_tokens": 7}})
}

// last is the text of the last message that the endpoint saw before its answer n.
func (s *chatScript) last(n int) string {
	m := s.bodies[n].Messages
	return m[len(m)-1].Content
}

func block(command string) said {
	return said{text: "THOUGHT: next\n\n```mswea_bash_command\n" + command + "\n```"}
}

func bashCall(tool, command string) said {
	args, _ := json.Marshal(map[string]string{"command": command})
	return said{tool: tool, args: string(args)}
}

// overChat plays the answers through a chat endpoint in the real sandbox.
func overChat(t *testing.T, w *world, answers []said) (*milepost.Episode, *chatScript) {
	t.Helper()
	s := &chatScript{answers: answers}
	server := httptest.NewServer(s)
	defer server.Close()
	cfg := policy.DefaultChatConfig()
	cfg.BaseURL, cfg.Model, cfg.Retries = server.URL+"/v1", "m", 0
	m, err := policy.NewChatModel(cfg, policy.PoolDeps{HTTP: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	w.probe.got = nil
	e := w.run(context.Background(), m)
	if e.Status != milepost.EpisodeCompleted || e.Stop != milepost.StopSubmit {
		t.Fatalf("%s %s %q after %d steps", e.Status, e.Stop, e.Error, len(e.Steps))
	}
	server.Client().CloseIdleConnections()
	return e, s
}

// scaffoldScripts solve the same task by the same three actions: read a.py, change it, hand in.
var scaffoldScripts = []struct {
	name, scaffold, format string
	answers                []said
	tools                  []string
	told                   []string // parts of what each action is answered with
}{
	{"milepost", "milepost", toolcall.Hermes, []said{
		{tool: "read_file", args: `{"path":"a.py"}`},
		{tool: "edit_file", args: `{"command":"replace","path":"a.py","old":"a - b","new":"a + b"}`},
		{tool: "submit", args: `{}`},
	}, []string{"search", "read_file", "edit_file", "execute_bash", "submit"}, []string{"def add(a, b):\n    return a - b\n", "ok"}},
	{"bash by calls", "bash", toolcall.Hermes, []said{
		bashCall("bash", "cat a.py"), bashCall("bash", "sed -i 's/a - b/a + b/' a.py"), bashCall("bash", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
	}, []string{"bash"}, []string{"<returncode>0</returncode>\n<output>\ndef add(a, b):\n    return a - b\n</output>", "<returncode>0</returncode>\n<output>\n</output>"}},
	{"bash by text", "bash", toolcall.BashBlock, []said{
		block("cat WORKSPACE/a.py"), block("sed -i 's/a - b/a + b/' a.py"), block("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff"),
	}, nil, []string{"<returncode>0</returncode>\n<output>\ndef add(a, b):\n    return a - b\n</output>", "<returncode>0</returncode>\n<output>\n</output>"}},
	{"swe_agent", "swe_agent", toolcall.Hermes, []said{
		{tool: "str_replace_editor", args: `{"command":"view","path":"WORKSPACE/a.py"}`},
		{tool: "str_replace_editor", args: `{"command":"str_replace","path":"WORKSPACE/a.py","old_str":"a - b","new_str":"a + b"}`},
		{tool: "submit", args: `{}`},
	}, []string{"bash", "str_replace_editor", "submit"}, []string{
		"OBSERVATION:\nHere's the result of running `cat -n` on WORKSPACE/a.py:\n     1\tdef add(a, b):\n     2\t    return a - b\n     3\t\n",
		"OBSERVATION:\nThe file WORKSPACE/a.py has been edited. Here's the result of running `cat -n` on a snippet of WORKSPACE/a.py:\n     1\tdef add(a, b):\n     2\t    return a + b\n     3\t\nReview the changes",
	}},
	{"openhands", "openhands", toolcall.Hermes, []said{
		bashCall("execute_bash", "cd WORKSPACE && cat a.py"),
		{tool: "str_replace_editor", args: `{"command":"str_replace","path":"WORKSPACE/a.py","old_str":"a - b","new_str":"a + b"}`},
		{tool: "finish", args: `{"message":"done"}`},
	}, []string{"execute_bash", "think", "finish", "str_replace_editor", "task_tracker"}, []string{
		"def add(a, b):\n    return a - b\n[The command completed with exit code 0.]\n[Current working directory: WORKSPACE]\n[Command finished with exit code 0]",
		"The file WORKSPACE/a.py has been edited. Here's the result",
	}},
}

// Every scaffold solves the task by its own commands, over a chat endpoint in the real sandbox. All that probes and credit are
// made of is the same for each: states, trees, changes, validity, exposures, and the requests for probes.
func TestScaffoldsSolveAlike(t *testing.T) {
	w := localWorld(t)
	root := workspaceOf(t, w)
	type seen struct {
		State, Tree string
		Valid       bool
		Changed     []string
		Delta       []milepost.TreeChange
		Exposures   []milepost.Exposure
	}
	var first []seen
	var probes []milepost.ProbeRequest
	for _, c := range scaffoldScripts {
		t.Run(c.name, func(t *testing.T) {
			w.t, w.cfg.Scaffold, w.cfg.ToolFormat = t, c.scaffold, c.format
			answers := make([]said, len(c.answers))
			for i, a := range c.answers {
				answers[i] = said{strings.ReplaceAll(a.text, "WORKSPACE", root), a.tool, strings.ReplaceAll(a.args, "WORKSPACE", root)}
			}
			e, s := overChat(t, w, answers)
			var got []seen
			for _, st := range e.Steps {
				got = append(got, seen{st.State, st.Tree, st.Valid, st.Changed, st.Delta, st.Exposures})
			}
			if first == nil {
				first, probes = got, w.probe.got
			}
			if !reflect.DeepEqual(got, first) {
				t.Errorf("steps\n%+v\nthose of the first scaffold\n%+v", got, first)
			}
			if !reflect.DeepEqual(w.probe.got, probes) || len(probes) != 2 {
				t.Errorf("probes %+v\nthose of the first scaffold %+v", w.probe.got, probes)
			}
			if !strings.Contains(e.Patch, "+    return a + b") || len(e.Steps[0].Exposures) != 1 || e.Steps[0].Exposures[0].Confidence != "high" {
				t.Errorf("patch %s\nfirst step %+v", e.Patch, e.Steps[0])
			}
			for i, want := range c.told {
				if got := s.last(i + 1); !strings.Contains(got, strings.ReplaceAll(want, "WORKSPACE", root)) {
					t.Errorf("action %d was answered\n%s", i, got)
				}
			}
			var told []string
			for _, tool := range s.bodies[0].Tools {
				told = append(told, tool.Function.Name)
			}
			if !reflect.DeepEqual(told, c.tools) {
				t.Errorf("the endpoint was told of %v", told)
			}
			opening := s.bodies[0].Messages
			if n := len(opening); n != 2 || !strings.Contains(opening[1].Content, "add subtracts") || strings.Contains(opening[0].Content+opening[1].Content, "{") {
				t.Errorf("opening %+v", opening)
			}
		})
	}
}

// workspaceOf is where commands see the repository, by asking one.
func workspaceOf(t *testing.T, w *world) string {
	t.Helper()
	e := w.run(context.Background(), &script{turns: []say{bash("pwd")}})
	return strings.TrimSpace(e.Steps[0].Observed)
}

// A turn that breaks the form is told in the scaffold's own words, and counts as the same violation.
func TestScaffoldFaults(t *testing.T) {
	w := memoryWorld(t, nil)
	for _, c := range []struct {
		scaffold, format string
		say              say
		told             string
	}{
		{"bash", toolcall.BashBlock, text("I am lost."), "Format error:\n\n<error>\nexpected exactly 1 action, found 0\n</error>\n\nGive exactly one action"},
		{"bash", toolcall.Hermes, call("edit", `{}`), "Format error:\n\n<error>\nunknown tool \"edit\"; the tools are bash\n</error>\n\nCall the bash tool"},
		{"swe_agent", toolcall.Hermes, text("I am lost."), "Your response holds no call that could be carried out: no <tool_call> found"},
		{"openhands", toolcall.Qwen3Coder, text("I am lost."), "ERROR:\nno <tool_call> found; a call looks like\n<tool_call>"},
	} {
		w.probe.got, w.cfg.Scaffold, w.cfg.ToolFormat, w.cfg.MaxTurns = nil, c.scaffold, c.format, 1
		e := w.run(context.Background(), &script{turns: []say{c.say}})
		if s := e.Steps[0]; s.Valid || !strings.HasPrefix(s.Observed, c.told) {
			t.Errorf("%s: %+v", c.scaffold, s)
		}
	}
}

func TestScaffoldConfig(t *testing.T) {
	for want, change := range map[string]func(*rollout.Config){
		`scaffold: "aider" is not one of milepost, bash, swe_agent, openhands`: func(c *rollout.Config) { c.Scaffold = "aider" },
		"tool_format: bash_block goes with scaffold bash alone":                func(c *rollout.Config) { c.ToolFormat = toolcall.BashBlock },
		"bash_writes: forbid goes with no scaffold":                            func(c *rollout.Config) { c.Scaffold, c.BashWrites = "bash", rollout.BashWritesForbid },
		`tools.names: "search" is not one of bash, str_replace_editor`:         func(c *rollout.Config) { c.Scaffold, c.Tools.Names = "swe_agent", []string{"search"} },
		"tools.names: finish is missing":                                       func(c *rollout.Config) { c.Scaffold, c.Tools.Names = "openhands", []string{"think"} },
		`condenser.kind: "summary" is not one of none, observations, window`:   func(c *rollout.Config) { c.Condenser.Kind = "summary" },
		"condenser.keep: 0 is not at least 1":                                  func(c *rollout.Config) { c.Condenser.Keep = 0 },
		"condenser.first: -1 is negative":                                      func(c *rollout.Config) { c.Condenser.First = -1 },
		"condenser.every: 0 is not at least 1":                                 func(c *rollout.Config) { c.Condenser.Every = 0 },
	} {
		cfg := rollout.Default()
		change(&cfg)
		if err := cfg.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, s := range rollout.Scaffolds() {
		cfg := rollout.Default()
		cfg.Scaffold = s
		if err := cfg.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// A condenser changes what the endpoint sees, message by message.
func TestCondensedChat(t *testing.T) {
	w := memoryWorld(t, nil)
	look := said{tool: "read_file", args: `{"path":"a.py"}`}
	answers := []said{look, look, look, {tool: "submit", args: `{}`}}
	masked := "Old environment output: (2 lines omitted)"
	w.cfg.Condenser = rollout.Condenser{Kind: rollout.CondenseObservations, Keep: 1, Every: 1, First: 1}
	_, s := overChat(t, w, answers)
	var contents []string
	for _, m := range s.bodies[3].Messages[2:] {
		contents = append(contents, m.Role+": "+m.Content)
	}
	whole := "tool: def add(a, b):\n    return a - b\n"
	if want := []string{"assistant: ", whole, "assistant: ", "tool: " + masked, "assistant: ", whole}; !reflect.DeepEqual(contents, want) {
		t.Errorf("got  %q\nwant %q", contents, want)
	}
	w.cfg.Condenser.Kind = rollout.CondenseWindow
	_, s = overChat(t, w, answers)
	m := s.bodies[3].Messages
	if len(m) != 2+4 || m[2].ToolCalls[0].ID != "call1" || m[4].ToolCalls[0].ID != "call3" {
		t.Errorf("the window leaves %+v", m)
	}
}

// A shell session goes on: directory and exported variables stay, also behind exit; a command that is stopped leaves it as it
// was. Reads count from where the session is.
func TestShellSession(t *testing.T) {
	w := localWorld(t)
	root := workspaceOf(t, w)
	w.probe.got, w.cfg.Scaffold = nil, "openhands"
	commands := []struct{ command, told string }{
		{"cd pkg && export GREETING='it'\"'\"'s me'", "\n[The command completed with exit code 0.]\n[Current working directory: WORKSPACE/pkg]\n[Command finished with exit code 0]"},
		{"echo $GREETING; echo oops >&2; exit 3", "it's me\noops\n[The command completed with exit code 3.]\n[Current working directory: WORKSPACE/pkg]\n[Command finished with exit code 3]"},
		{"cat b.py", "B = 1\n[The command completed with exit code 0.]"},
		{"cd / && sleep 60", "[The command was stopped after 1s. The session is as it was before.]\n[Current working directory: WORKSPACE/pkg]"},
		{"cat ../a.py", "def add(a, b):"},
		{"cd /usr && cat ../etc/passwd", "[Current working directory: /usr]"},
		{"cat WORKSPACE/pkg/b.py", "B = 1"},
	}
	var turns []say
	for _, c := range commands {
		args, _ := json.Marshal(map[string]any{"command": strings.ReplaceAll(c.command, "WORKSPACE", root), "timeout": 1})
		turns = append(turns, call("execute_bash", string(args)))
	}
	turns = append(turns, call("execute_bash", `{"command":"C-c","is_input":"true"}`), call("task_tracker", `{"command":"view"}`),
		call("task_tracker", `{"command":"plan","task_list":[{"id":"1","title":"look","status":"done"},{"id":"2","title":"fix","status":"todo","notes":"a.py"}]}`),
		call("task_tracker", `{"command":"view"}`), call("think", `{"thought":"hm"}`), call("finish", `{"message":"that is it"}`))
	e := w.run(context.Background(), &script{turns: turns})
	if e.Status != milepost.EpisodeCompleted || len(e.Steps) != len(turns) {
		t.Fatalf("%s %q after %d steps", e.Status, e.Error, len(e.Steps))
	}
	for i, c := range commands {
		if s := e.Steps[i]; !s.Valid || !strings.Contains("\n"+s.Observed, strings.ReplaceAll(c.told, "WORKSPACE", root)) {
			t.Errorf("%s was answered\n%s", c.command, s.Observed)
		}
	}
	high := func(step int) (out []string) {
		for _, x := range e.Steps[step].Exposures {
			if x.Confidence == "high" {
				out = append(out, x.Path)
			}
		}
		return out
	}
	if fmt.Sprint(high(2), high(4), high(5), high(6)) != "[pkg/b.py] [a.py] [] [pkg/b.py]" {
		t.Errorf("reads %v %v %v %v", high(2), high(4), high(5), high(6))
	}
	for i, want := range []string{"ERROR: No previous running command to interact with.", "No task list found. Use the \"plan\" command to create one.",
		"Task list has been updated with 2 items.", "# Task List\n\n1. ✅ look\n\n2. ⏳ fix\na.py\n", "Your thought has been logged.", "that is it"} {
		if got := e.Steps[len(commands)+i].Observed; got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

package trajectories

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// brief writes a demonstration as one line a message: role, a mark where it is not trained, and the text.
func brief(d Demo) []string {
	var out []string
	for _, m := range d.Messages {
		mark := ""
		if m.Train != nil {
			mark = "-"
		}
		out = append(out, m.Role+mark+": "+m.Content)
	}
	return out
}

func hermesCall(tool, args string) string {
	return "<tool_call>\n{\"name\": \"" + tool + "\", \"arguments\": " + args + "}\n</tool_call>"
}

const bashFence = "```mswea_bash_command\n%s\n```"

// miniText is a trajectory of mini-swe-agent in text, with a format error on the way.
func miniText() obj {
	return obj{
		"trajectory_format": "mini-swe-agent-1.1", "instance_id": "org__repo-1",
		"info": obj{"exit_status": "Submitted", "submission": "diff", "mini_version": "2.0.0"},
		"messages": []any{
			obj{"role": "system", "content": "S"}, obj{"role": "user", "content": "U"},
			obj{"role": "assistant", "content": "THOUGHT: look\n\n" + fmt.Sprintf(bashFence, "cat a.py"), "extra": obj{"cost": .1}},
			obj{"role": "user", "content": "<returncode>0</returncode>\n<output>\nx</output>", "extra": obj{"returncode": 0}},
			obj{"role": "assistant", "content": "I am lost."},
			obj{"role": "user", "content": "Format error: ...", "extra": obj{"interrupt_type": "FormatError"}},
			obj{"role": "assistant", "content": "done\n" + fmt.Sprintf(bashFence, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")},
			obj{"role": "exit", "content": "diff", "extra": obj{"exit_status": "Submitted"}},
		},
	}
}

func TestMiniSWEAgent(t *testing.T) {
	dir := t.TempDir()
	text := put(t, "org__repo-1.traj.json", asJSON(miniText()))
	demos, index, _ := imported(t, options(filepath.Join(dir, "hermes"), text))
	want := []string{"system: S", "user: U", "assistant: THOUGHT: look\n\n" + hermesCall("bash", `{"command":"cat a.py"}`),
		"user: <returncode>0</returncode>\n<output>\nx</output>", "assistant-: I am lost.", "user: Format error: ...",
		"assistant: done\n\n" + hermesCall("bash", `{"command":"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}`)}
	if got := brief(demos[0]); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if e := index[0]; e.Format != "mini-swe-agent" || e.Exit != "Submitted" || e.Task != "org__repo-1" || e.Masked != 1 {
		t.Errorf("entry %+v", e)
	}
	o := options(filepath.Join(dir, "text"), text)
	o.Format = toolcall.BashBlock
	demos, _, _ = imported(t, o)
	if got := brief(demos[0])[2]; got != "assistant: THOUGHT: look\n\n"+fmt.Sprintf(bashFence, "cat a.py") {
		t.Errorf("as text: %q", got)
	}
	calls := miniText()
	m := calls["messages"].([]any)
	m[2] = obj{"role": "assistant", "content": "look", "tool_calls": []any{callOf("c1", "bash", `{"command": "cat a.py\n"}`)}}
	m[3] = obj{"role": "tool", "tool_call_id": "c1", "content": "x"}
	m[6] = obj{"role": "assistant", "content": nil, "tool_calls": []any{callOf("c2", "bash", `{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}`)}}
	o.Out, o.From = filepath.Join(dir, "calls"), []string{put(t, "org__repo-1.traj.json", asJSON(calls))}
	demos, _, _ = imported(t, o)
	if got := brief(demos[0]); got[2] != "assistant: look\n\n"+fmt.Sprintf(bashFence, "cat a.py") || got[3] != "user: x" || got[4] != "assistant-: I am lost." {
		t.Errorf("calls as text: %q", got)
	}
}

func TestSWEAgent(t *testing.T) {
	traj := obj{
		"environment": "main", "info": obj{"exit_status": "submitted (exit_context)", "submission": "diff"},
		"trajectory": []any{obj{"action": "ls", "observation": "a.py", "response": "r", "thought": "t"}},
		"history": []any{
			obj{"role": "system", "content": "S", "agent": "main", "message_type": "system_prompt"},
			obj{"role": "user", "content": "a demonstration", "is_demo": true, "message_type": "demonstration"},
			obj{"role": "user", "content": []any{obj{"type": "text", "text": "U"}}, "message_type": "observation"},
			obj{"role": "assistant", "content": "look", "thought": "look", "action": "str_replace_editor view /r/a.py", "message_type": "action",
				"tool_calls": []any{callOf("t1", "str_replace_editor", `{"command":"view","path":"/r/a.py","view_range":[1,2]}`)}},
			obj{"role": "tool", "content": []any{obj{"type": "text", "text": "OBSERVATION:\nx"}}, "message_type": "observation", "tool_call_ids": []string{"t1"}},
			obj{"role": "assistant", "content": "", "message_type": "action", "tool_calls": []any{callOf("t2", "str_replace_editor", `{"command":"zap","path":"/r/a.py"}`)}},
			obj{"role": "tool", "content": "OBSERVATION:\nUnrecognized", "message_type": "observation", "tool_call_ids": []string{"t2"}},
			obj{"role": "assistant", "content": "", "message_type": "action", "tool_calls": []any{callOf("t3", "submit", `{}`)}},
		},
	}
	o := options("", put(t, "org__repo-7.traj", asJSON(traj)))
	o.Kit = "swe_agent"
	demos, index, _ := imported(t, o)
	want := []string{"system: S", "user: U", "assistant: look\n\n" + hermesCall("str_replace_editor", `{"command":"view","path":"/r/a.py","view_range":[1,2]}`),
		"tool: OBSERVATION:\nx", "assistant-: " + hermesCall("str_replace_editor", `{"command":"zap","path":"/r/a.py"}`), "tool: OBSERVATION:\nUnrecognized",
		"assistant: " + hermesCall("submit", "{}")}
	if got := brief(demos[0]); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if e := index[0]; e.Format != "swe-agent" || e.Task != "org__repo-7" || e.Exit != "submitted (exit_context)" || e.Resolved != nil {
		t.Errorf("entry %+v", e)
	}
	if len(demos[0].Tools) != 3 {
		t.Errorf("%d tools, want the scaffold's 3", len(demos[0].Tools))
	}
}

// handsEvents are the events of a run of OpenHands up to version 0, with two calls in one response and an error of the system.
func handsEvents() []any {
	response := func(id, text string, calls ...any) obj {
		return obj{"id": id, "choices": []any{obj{"message": obj{"role": "assistant", "content": text, "tool_calls": calls}}}}
	}
	meta := func(tool, id string, r obj) obj {
		return obj{"function_name": tool, "tool_call_id": id, "model_response": r, "total_calls_in_response": 1}
	}
	r1 := response("r1", "look", callOf("c1", "execute_bash", `{"command":"cat a.py"}`), callOf("c2", "think", `{"thought":"hm"}`))
	r2 := response("r2", "", callOf("c3", "execute_bash", `{"cmd":"x"}`))
	r3 := response("r3", "", callOf("c4", "finish", `{"message":"done"}`))
	return []any{
		obj{"id": 0, "source": "agent", "action": "system", "args": obj{"content": "S", "tools": row()["tools"]}},
		obj{"id": 1, "source": "user", "action": "message", "args": obj{"content": "U"}},
		obj{"id": 2, "source": "environment", "observation": "agent_state_changed", "content": "", "extras": obj{}},
		obj{"id": 3, "source": "user", "action": "recall", "args": obj{"query": "U"}},
		obj{"id": 4, "source": "agent", "action": "run", "args": obj{"command": "cat a.py"}, "tool_call_metadata": meta("execute_bash", "c1", r1)},
		obj{"id": 5, "source": "agent", "observation": "run", "content": "def", "cause": 4, "tool_call_metadata": meta("execute_bash", "c1", r1),
			"extras": obj{"command": "cat a.py", "metadata": obj{"exit_code": 0, "working_dir": "/w", "py_interpreter_path": "/py", "prefix": "", "suffix": "\n[The command completed with exit code 0.]"}}},
		obj{"id": 6, "source": "agent", "action": "think", "args": obj{"thought": "hm"}, "tool_call_metadata": meta("think", "c2", r1)},
		obj{"id": 7, "source": "agent", "observation": "think", "content": "Your thought has been logged.", "tool_call_metadata": meta("think", "c2", r1), "extras": obj{}},
		obj{"id": 8, "source": "agent", "action": "run", "args": obj{}, "tool_call_metadata": meta("execute_bash", "c3", r2)},
		obj{"id": 9, "source": "agent", "observation": "error", "content": "Missing command", "tool_call_metadata": meta("execute_bash", "c3", r2), "extras": obj{}},
		obj{"id": 10, "source": "agent", "action": "finish", "args": obj{"final_thought": "done"}, "tool_call_metadata": meta("finish", "c4", r3)},
	}
}

func handsWanted() []string {
	return []string{"system: S", "user: U", "assistant: look\n\n" + hermesCall("execute_bash", `{"command":"cat a.py"}`),
		"tool: def\n[The command completed with exit code 0.]\n[Current working directory: /w]\n[Python interpreter: /py]\n[Command finished with exit code 0]",
		"assistant-: " + hermesCall("think", `{"thought":"hm"}`), // the row's tools have no think
		"tool: Your thought has been logged.", "assistant-: " + hermesCall("execute_bash", `{"cmd":"x"}`), "tool: Missing command",
		"assistant: " + hermesCall("finish", `{"message":"done"}`)}
}

func TestOpenHands(t *testing.T) {
	line := obj{"instance_id": "org__repo-2", "metadata": obj{}, "history": handsEvents(), "error": nil,
		"test_result": obj{"git_patch": "diff", "report": obj{"resolved": true}}}
	demos, index, _ := imported(t, options("", put(t, "output.jsonl", asJSON(line)+"\n\n")))
	if got := brief(demos[0]); !reflect.DeepEqual(got, handsWanted()) {
		t.Errorf("got  %q\nwant %q", got, handsWanted())
	}
	if e := index[0]; e.Format != "openhands" || e.Task != "org__repo-2" || !*e.Resolved || e.Turns != 4 {
		t.Errorf("entry %+v", e)
	}
	// The file of one run is the list of its events.
	demos, index, _ = imported(t, options("", put(t, "run-5.json", asJSON(handsEvents()))))
	if got := brief(demos[0]); !reflect.DeepEqual(got, handsWanted()) || index[0].Task != "run-5" {
		t.Errorf("events: %q, %+v", got, index[0])
	}
}

// Events of the software-agent SDK.
func TestOpenHandsSDK(t *testing.T) {
	text := func(s string) []any { return []any{obj{"type": "text", "text": s}} }
	events := []any{
		obj{"kind": "SystemPromptEvent", "source": "agent", "system_prompt": obj{"type": "text", "text": "S"}, "tools": []any{obj{"name": "terminal", "kind": "ToolDefinition"}}},
		obj{"kind": "MessageEvent", "source": "user", "llm_message": obj{"role": "user", "content": text("U")}},
		obj{"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "k", "value": 1},
		obj{"kind": "ActionEvent", "source": "agent", "thought": text("look"), "action": obj{"kind": "TerminalAction", "command": "ls"}, "tool_name": "terminal", "tool_call_id": "c1",
			"tool_call": obj{"id": "c1", "name": "terminal", "arguments": `{"command":"ls"}`, "origin": "completion"}, "llm_response_id": "r1"},
		obj{"kind": "ActionEvent", "source": "agent", "thought": []any{}, "action": nil, "tool_name": "nope", "tool_call_id": "c2",
			"tool_call": obj{"id": "c2", "name": "nope", "arguments": `{"a":1}`, "origin": "completion"}, "llm_response_id": "r1"},
		obj{"kind": "ObservationEvent", "source": "environment", "tool_name": "terminal", "tool_call_id": "c1", "action_id": "x", "observation": obj{"kind": "TerminalObservation", "content": text("a.py")}},
		obj{"kind": "AgentErrorEvent", "source": "agent", "tool_name": "nope", "tool_call_id": "c2", "error": "Tool nope not found"},
		obj{"kind": "ActionEvent", "source": "agent", "thought": []any{}, "tool_name": "finish", "tool_call_id": "c3",
			"tool_call": obj{"id": "c3", "name": "finish", "arguments": `{"message":"ok"}`}, "llm_response_id": "r2"},
	}
	demos, _, sum := imported(t, options("", put(t, "output.jsonl", asJSON(obj{"instance_id": "i", "history": events}))))
	want := []string{"system: S", "user: U", "assistant: look\n\n" + hermesCall("terminal", `{"command":"ls"}`), "tool: a.py",
		"assistant-: " + hermesCall("nope", `{"a":1}`), "tool: Tool nope not found", "assistant: " + hermesCall("finish", `{"message":"ok"}`)}
	if got := brief(demos[0]); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if sum.Masked["the answer was an error of the agent system"] != 1 {
		t.Errorf("masked %v", sum.Masked)
	}
}

// SWE-smith keeps its messages as JSON in a text and its calls in function tags; nebius/SWE-agent-trajectories has words of
// its own for role and text.
func TestChatDialects(t *testing.T) {
	tagged := "I view.\n\n<function=str_replace_editor>\n<parameter=command>view</parameter>\n<parameter=path>/testbed/a.py</parameter>\n<parameter=view_range>[1, 20]</parameter>\n</function>"
	smith := obj{"instance_id": "i", "traj_id": "i.xyz", "resolved": true, "model": "m", "messages": asJSON([]any{
		obj{"role": "system", "content": "S"}, obj{"role": "user", "content": []any{obj{"type": "text", "text": "U"}}},
		obj{"role": "assistant", "content": tagged}, obj{"role": "user", "content": "OBSERVATION:\nx"},
		obj{"role": "assistant", "content": "<function=submit>\n</function>"},
	})}
	nebius := obj{"instance_id": "i", "model_name": "m", "target": false, "exit_status": "submitted", "trajectory": []any{
		obj{"role": "system", "system_prompt": "S", "text": nil, "mask": false}, obj{"role": "user", "text": "U", "system_prompt": nil, "mask": false},
		obj{"role": "ai", "text": "I look.\n```\nopen a.py\n```", "mask": false}, obj{"role": "user", "text": "x"}, obj{"role": "ai", "text": "```\nsubmit\n```"},
	}}
	demos, index, _ := imported(t, options("", put(t, "rows.jsonl", asJSON(smith)+"\n"+asJSON(nebius)+"\n")))
	want := []string{"system: S", "user: U", "assistant: I view.\n\n" + hermesCall("str_replace_editor", `{"command":"view","path":"/testbed/a.py","view_range":[1,20]}`),
		"user: OBSERVATION:\nx", "assistant: " + hermesCall("submit", "{}")}
	if got := brief(demos[0]); !reflect.DeepEqual(got, want) || demos[0].ID != "i.xyz" {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := strings.Join(brief(demos[1]), "|"); got != "system: S|user: U|assistant: I look.\n```\nopen a.py\n```|user: x|assistant: ```\nsubmit\n```" || *index[1].Resolved {
		t.Errorf("got %q, %+v", got, index[1])
	}
}

// Each mask takes what it says.
func TestMasks(t *testing.T) {
	r := row()
	m := r["trajectory"].([]any)
	m[3].(obj)["content"] = "ERROR: no such file"
	m[6].(obj)["tool_calls"].([]any)[0] = callOf("c3", "execute_bash", `not json`)
	file := put(t, "rows.jsonl", asJSON(r))
	for mask, want := range map[string]map[string]int{
		MaskNone:   {},
		MaskFormat: {"unknown tool grep": 1, "arguments that are no JSON object": 1},
		MaskErrors: {"unknown tool grep": 1, "arguments that are no JSON object": 1, "answered with an error": 1},
	} {
		o := options("", file)
		o.Mask = mask
		if mask == MaskNone { // what is trained must be a call of the format
			m[6].(obj)["tool_calls"].([]any)[0] = callOf("c3", "execute_bash", `{"command":"x"}`)
			o.From = []string{put(t, "rows.jsonl", asJSON(r))}
		}
		_, _, sum := imported(t, o)
		if !reflect.DeepEqual(sum.Masked, want) {
			t.Errorf("%s: %v, want %v", mask, sum.Masked, want)
		}
	}
}

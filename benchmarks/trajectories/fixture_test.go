package trajectories

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// put writes a file of the given content below a fresh folder and returns its path.
func put(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// asJSON is a value as JSON.
func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// obj is shorter than map[string]any.
type obj = map[string]any

// options keep everything and write calls as hermes.
func options(out string, from ...string) Options {
	return Options{From: from, Out: out, Format: toolcall.Hermes, Mask: MaskFormat, Unresolved: true, Tools: true}
}

// imported runs an import and returns what it wrote.
func imported(t *testing.T, o Options) ([]Demo, []Entry, Summary) {
	t.Helper()
	if o.Out == "" {
		o.Out = filepath.Join(t.TempDir(), "out")
	}
	sum, err := Import(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return lines[Demo](t, filepath.Join(o.Out, DemosFile)), lines[Entry](t, filepath.Join(o.Out, IndexFile)), sum
}

func lines[T any](t *testing.T, path string) (out []T) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		var v T
		if err := json.Unmarshal(s.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", s.Bytes(), err)
		}
		out = append(out, v)
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	return out
}

// call is a tool call in OpenAI's form, its arguments a text.
func callOf(id, tool, args string) obj {
	return obj{"id": id, "type": "function", "function": obj{"name": tool, "arguments": args}}
}

// row is a small conversation with tools, as nebius/SWE-rebench-openhands-trajectories has it.
func row() obj {
	return obj{
		"trajectory_id": "t1", "instance_id": "org__repo-1", "repo": "org/repo", "exit_status": "submit", "resolved": 1,
		"tools": []any{
			obj{"type": "function", "function": obj{"name": "execute_bash", "description": "Runs.", "parameters": obj{"type": "object", "properties": obj{"command": obj{"type": "string"}}, "required": []string{"command"}}}},
			obj{"type": "function", "function": obj{"name": "finish", "description": "Ends.", "parameters": obj{"type": "object", "properties": obj{}}}},
		},
		"trajectory": []any{
			obj{"role": "system", "content": "You are.", "tool_calls": nil, "tool_call_id": nil, "name": nil},
			obj{"role": "user", "content": "Fix é."},
			obj{"role": "assistant", "content": "I look.", "tool_calls": []any{callOf("c1", "execute_bash", `{"command": "cat a.py"}`)}},
			obj{"role": "tool", "content": "def add(a, b):\n", "tool_call_id": "c1", "name": "execute_bash"},
			obj{"role": "assistant", "content": nil, "tool_calls": []any{callOf("c2", "grep", `{"x": 1}`)}},
			obj{"role": "tool", "content": "unknown tool", "tool_call_id": "c2", "name": "grep"},
			obj{"role": "assistant", "content": "Both.", "tool_calls": []any{callOf("c3", "execute_bash", `{"command": "sed -i s/-/+/ a.py"}`), callOf("c4", "execute_bash", `{"command": "cat a.py"}`)}},
			obj{"role": "tool", "content": "done", "tool_call_id": "c3", "name": "execute_bash"},
			obj{"role": "tool", "content": "def add", "tool_call_id": "c4", "name": "execute_bash"},
			obj{"role": "assistant", "content": "", "tool_calls": []any{callOf("c5", "finish", `{}`)}},
		},
	}
}

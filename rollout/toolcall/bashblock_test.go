package toolcall_test

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

func TestBashBlock(t *testing.T) {
	f := format(t, toolcall.BashBlock)
	for _, c := range []struct {
		text string
		want []string // commands
		why  string
	}{
		{"THOUGHT: look\n\n```mswea_bash_command\ncat a.py | head -3\n```\n", []string{"cat a.py | head -3"}, ""},
		{"```mswea_bash_command  \n\n  cat <<'E' > b\nx\nE\n\n```", []string{"cat <<'E' > b\nx\nE"}, ""},
		{"```mswea_bash_command\nls\n```\nand\n```mswea_bash_command\npwd\n```", []string{"ls", "pwd"}, ""},
		{"<think>```mswea_bash_command\nrm\n```</think>\n```mswea_bash_command\nls\n```", []string{"ls"}, ""},
		{"```bash\nls\n```", nil, "expected exactly 1 action, found 0"},
		{"```mswea_bash_command\nls", nil, "expected exactly 1 action, found 0"},
		{"<think>never closed", nil, "<think> is never closed by </think>"},
		{"", nil, "expected exactly 1 action, found 0"},
	} {
		calls, err := f.Parse(c.text)
		if c.why != "" {
			if milepost.KindOf(err) != milepost.KindInvalid || toolcall.Why(err) != c.why || calls != nil {
				t.Errorf("%q: %v, %v", c.text, calls, err)
			}
			continue
		}
		var got []string
		for _, call := range calls {
			var a struct{ Command string }
			if err := json.Unmarshal(call.Arguments, &a); err != nil || call.Name != toolcall.BashTool {
				t.Errorf("%q: %+v, %v", c.text, call, err)
			}
			got = append(got, a.Command)
		}
		if err != nil || strings.Join(got, "\x00") != strings.Join(c.want, "\x00") {
			t.Errorf("%q: %q, %v", c.text, got, err)
		}
	}
}

// What Render writes reads back the same; what it cannot write it refuses.
func TestBashBlockRoundTrip(t *testing.T) {
	f := format(t, toolcall.BashBlock)
	piece := rapid.SampledFrom([]string{"cat", " ", "\n", "```", "`", "'", `"`, "é", "a.py", "\\", "$(x)", "mswea_bash_command"})
	written := 0
	rapid.Check(t, func(t *rapid.T) {
		command := strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces"), "")
		args, err := json.Marshal(map[string]string{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		out, err := f.Render(toolcall.Call{Name: "bash", Arguments: args})
		if err != nil {
			if command == strings.TrimSpace(command) && command != "" && !strings.Contains(command, "\n```") {
				t.Fatalf("%q was refused: %v", command, err)
			}
			return
		}
		written++
		calls, err := f.Parse("I do it.\n\n" + out)
		if err != nil || len(calls) != 1 || !equalJSON(t, calls[0].Arguments, args) {
			t.Fatalf("%q came back as %v, %v", command, calls, err)
		}
	})
	if written < 20 {
		t.Errorf("only %d commands were written", written)
	}
	for _, c := range []toolcall.Call{{Name: "submit", Arguments: json.RawMessage(`{}`)}, {Name: "bash", Arguments: json.RawMessage(`{"command":"ls","x":"y"}`)},
		{Name: "bash", Arguments: json.RawMessage(`{"command":3}`)}} {
		if _, err := f.Render(c); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("%s %s: %v", c.Name, c.Arguments, err)
		}
	}
}

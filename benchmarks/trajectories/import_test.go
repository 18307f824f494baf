package trajectories

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

const hermes = "<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>"

// A conversation with tools comes out turn by turn: calls in the policy's format, several of one turn as turns of their own,
// the call of an unknown tool as context.
func TestChatRow(t *testing.T) {
	file := put(t, "rows.jsonl", asJSON(row())+"\n")
	demos, index, sum := imported(t, options("", file))
	no := false
	want := []DemoMessage{
		{"system", "You are.", nil}, {"user", "Fix é.", nil},
		{"assistant", "I look.\n\n" + fmt.Sprintf(hermes, "execute_bash", `{"command": "cat a.py"}`), nil}, {"tool", "def add(a, b):\n", nil},
		{"assistant", fmt.Sprintf(hermes, "grep", `{"x": 1}`), &no}, {"tool", "unknown tool", nil},
		{"assistant", "Both.\n\n" + fmt.Sprintf(hermes, "execute_bash", `{"command": "sed -i s/-/+/ a.py"}`), nil}, {"tool", "done", nil},
		{"assistant", fmt.Sprintf(hermes, "execute_bash", `{"command": "cat a.py"}`), nil}, {"tool", "def add", nil},
		{"assistant", fmt.Sprintf(hermes, "finish", `{}`), nil},
	}
	if len(demos) != 1 || demos[0].ID != "t1" || !reflect.DeepEqual(demos[0].Messages, want) {
		t.Errorf("got  %s\nwant %s", asJSON(demos), asJSON(want))
	}
	if tools := demos[0].Tools; len(tools) != 2 || tools[0].Type != "function" || tools[0].Function.Name != "execute_bash" || !strings.Contains(string(tools[0].Function.Parameters), `"command"`) {
		t.Errorf("tools %s", asJSON(tools))
	}
	e := index[0]
	if e.Task != "org__repo-1" || e.File != file || e.Row != 1 || e.Format != "chat" || !*e.Resolved || e.Exit != "submit" || e.Turns != 5 || e.Masked != 1 || len(e.Hash) != 64 {
		t.Errorf("entry %+v", e)
	}
	if sum.Kept != 1 || sum.Turns != 4 || sum.Masked["unknown tool grep"] != 1 || sum.Formats["chat"] != 1 || sum.Exits["submit"] != 1 {
		t.Errorf("summary %+v", sum)
	}
}

// What was written reads back: every trained turn parses, in the policy's format, to the call that was recorded.
func TestRoundTrip(t *testing.T) {
	file := put(t, "rows.jsonl", asJSON(row())+"\n")
	for _, name := range []string{toolcall.Hermes, toolcall.Qwen3Coder} {
		o := options("", file)
		o.Format = name
		demos, _, _ := imported(t, o)
		var got []string
		var specs []toolcall.Spec
		for _, tool := range demos[0].Tools {
			specs = append(specs, toolcall.Spec{Name: tool.Function.Name, Parameters: tool.Function.Parameters})
		}
		f, err := toolcall.New(name, specs)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range demos[0].Messages {
			if m.Role != "assistant" || m.Train != nil {
				continue
			}
			calls, err := f.Parse(m.Content)
			if err != nil || len(calls) != 1 {
				t.Fatalf("%s: %q: %v", name, m.Content, err)
			}
			var args map[string]any
			if err := json.Unmarshal(calls[0].Arguments, &args); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(calls[0].Name, args))
		}
		want := []string{"execute_bash map[command:cat a.py]", "execute_bash map[command:sed -i s/-/+/ a.py]", "execute_bash map[command:cat a.py]", "finish map[]"}
		for i := range want {
			want[i] = strings.Replace(want[i], " ", "", 1)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	// A demonstration is itself a chat: importing what was imported changes nothing but what is masked already.
	demos, _, _ := imported(t, options("", file))
	again := put(t, "again.jsonl", asJSON(demos[0])+"\n")
	o := options("", again)
	o.Mask = MaskNone
	twice, _, _ := imported(t, o)
	for i, m := range twice[0].Messages {
		if m.Content != demos[0].Messages[i].Content {
			t.Errorf("message %d: %q became %q", i, demos[0].Messages[i].Content, m.Content)
		}
	}
}

func TestFilters(t *testing.T) {
	with := func(change func(obj)) string {
		r := row()
		change(r)
		return asJSON(r)
	}
	renamed := func(id, text string) func(obj) {
		return func(r obj) {
			r["trajectory_id"] = id
			r["trajectory"].([]any)[1].(obj)["content"] = text
		}
	}
	rows := []string{
		with(func(obj) {}),
		with(func(r obj) { r["trajectory_id"] = "same" }), // the same conversation
		with(renamed("t2", "Fix two.")),                   // the same task again
		with(func(r obj) { renamed("lost", "Fix three.")(r); r["resolved"] = 0 }),
		with(func(r obj) { renamed("open", "Fix four.")(r); delete(r, "resolved"); r["instance_id"] = "org__repo-4" }),
		with(func(r obj) { renamed("cut", "Fix five.")(r); r["exit_status"] = "max_iterations" }),
		with(func(r obj) { renamed("long", strings.Repeat("word ", 5000))(r) }),
	}
	file := put(t, "rows.jsonl", strings.Join(rows, "\n"))
	ids := func(o Options) string {
		demos, _, _ := imported(t, o)
		var out []string
		for _, d := range demos {
			out = append(out, d.ID)
		}
		return strings.Join(out, " ")
	}
	base := options("", file)
	base.Unresolved = false
	for _, c := range []struct {
		change func(*Options)
		want   string
	}{
		{func(*Options) {}, "t1 t2 cut long"},
		{func(o *Options) { o.Unresolved = true }, "t1 t2 lost open cut long"},
		{func(o *Options) { o.Exits = []string{"submit"} }, "t1 t2 long"},
		{func(o *Options) { o.MaxTokens = 2000 }, "t1 t2 cut"},
		{func(o *Options) { o.PerTask = 1 }, "t1"},
		{func(o *Options) { o.Resolved = map[string]bool{"org__repo-4": true, "org__repo-1": false} }, "open"},
	} {
		o := base
		c.change(&o)
		if got := ids(o); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
	_, _, sum := imported(t, base)
	if want := map[string]int{"there already": 1, "not resolved": 1, "not known to be resolved": 1}; !reflect.DeepEqual(sum.Left, want) || sum.Unproven != 1 {
		t.Errorf("left out %v", sum.Left)
	}
	o := base
	o.MaxTurns = 2
	o.Out = t.TempDir()
	if _, err := Import(context.Background(), o); milepost.KindOf(err) != milepost.KindLimit || !strings.Contains(err.Error(), "too many turns") {
		t.Errorf("nothing kept: %v", err)
	}
	if left, err := os.ReadDir(o.Out); err != nil || len(left) != 0 {
		t.Errorf("a failed import leaves %v, %v", left, err)
	}
}

// Two runs of the same id become two demonstrations, and an import is never written over.
func TestIDsAndConflict(t *testing.T) {
	a, b := row(), row()
	b["trajectory"].([]any)[1].(obj)["content"] = "Other."
	file := put(t, "rows.json", "["+asJSON(a)+","+asJSON(b)+"]")
	out := filepath.Join(t.TempDir(), "out")
	o := options(out, file)
	demos, index, _ := imported(t, o)
	if len(demos) != 2 || demos[1].ID != "t1-2" || index[1].ID != "t1-2" || index[1].Row != 2 {
		t.Errorf("ids %s, entries %+v", demos[1].ID, index)
	}
	if _, err := Import(context.Background(), o); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("a second import: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"nothing to import":          func(o *Options) { o.From = nil },
		`tool format "xml"`:          func(o *Options) { o.Format = "xml" },
		`mask "some"`:                func(o *Options) { o.Mask = "some" },
		`scaffold "aider"`:           func(o *Options) { o.Kit = "aider" },
		"must be at least 0":         func(o *Options) { o.MaxTurns = -1 },
		"nowhere.jsonl does not exi": func(o *Options) { o.From = []string{"nowhere.jsonl"} },
	} {
		o := options("", put(t, "rows.jsonl", asJSON(row())))
		change(&o)
		if _, err := Import(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	for content, want := range map[string]map[string]bool{
		`{"resolved_ids":["a"],"unresolved_ids":["b"],"error_ids":["c"],"schema_version":2}`: {"a": true, "b": false, "c": false},
		`{"a":{"resolved":true,"tests_status":{}},"b":{"resolved":false}}`:                   {"a": true, "b": false},
	} {
		got, err := ReadVerdicts(put(t, "report.json", content))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v", content, got, err)
		}
	}
	for _, content := range []string{`[]`, `{"a":{}}`, `{"resolved_ids":3}`, `{`} {
		if _, err := ReadVerdicts(put(t, "report.json", content)); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("%s: %v", content, err)
		}
	}
}

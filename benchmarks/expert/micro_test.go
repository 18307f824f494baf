package expert_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/expert"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// world is a repository in memory with just enough of the tools to play against.
type world struct {
	files, before map[string]string
	numbers       bool // read_file shows line numbers
	calls         []string
	edits         map[string]string // path -> last text written there
}

func (w *world) answer(t *testing.T, c toolcall.Call) string {
	t.Helper()
	var a struct{ Kind, Query, Path, Command, Old, New, Patch, Text string }
	if err := json.Unmarshal(c.Arguments, &a); err != nil {
		t.Fatalf("arguments %s: %v", c.Arguments, err)
	}
	w.calls = append(w.calls, strings.TrimSpace(c.Name+" "+a.Command))
	switch c.Name {
	case "search":
		for p, text := range w.files {
			for i, l := range strings.Split(text, "\n") {
				if strings.HasPrefix(l, "def "+a.Query+"(") {
					return fmt.Sprintf("%s:%d: %s", p, i+1, l)
				}
			}
		}
		return "no matches"
	case "read_file":
		if !w.numbers {
			return w.files[a.Path]
		}
		var b strings.Builder
		for i, l := range strings.Split(strings.TrimSuffix(w.files[a.Path], "\n"), "\n") {
			fmt.Fprintf(&b, "%d: %s\n", i+1, l)
		}
		return b.String()
	case "edit_file":
		switch a.Command {
		case "replace":
			if strings.Count(w.files[a.Path], a.Old) != 1 {
				t.Fatalf("%q occurs %d times in %s:\n%s", a.Old, strings.Count(w.files[a.Path], a.Old), a.Path, w.files[a.Path])
			}
			w.before = map[string]string{a.Path: w.files[a.Path]}
			w.files[a.Path] = strings.Replace(w.files[a.Path], a.Old, a.New, 1)
			w.edits[a.Path] = a.New
		case "create":
			if _, there := w.files[a.Path]; there {
				t.Fatalf("%s is created twice", a.Path)
			}
			w.files[a.Path] = a.Text
		case "insert": // at the start
			w.files[a.Path] = a.Text + "\n" + w.files[a.Path]
		case "undo":
			for p, text := range w.before {
				w.files[p] = text
			}
		}
		return "ok"
	}
	return "submitted"
}

// play runs one conversation to its submit and returns the text of all turns.
func play(t *testing.T, m rollout.Model, w *world, format, statement string, seed int64, task *milepost.Task) []string {
	t.Helper()
	w.edits = map[string]string{}
	specs := []toolcall.Spec{}
	c, err := m.Open(context.Background(), rollout.Opening{Format: format, Seed: seed, Tools: specs, Task: task,
		Messages: []rollout.Message{{Role: rollout.RoleSystem, Content: "Repair."}, {Role: rollout.RoleUser, Content: statement}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f, err := toolcall.New(format, specs)
	if err != nil {
		t.Fatal(err)
	}
	var turns []string
	for range 50 {
		turn, err := c.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		turns = append(turns, turn.Text)
		calls, err := f.Parse(turn.Text)
		if err != nil || len(calls) != 1 {
			t.Fatalf("turn %q: %d calls, %v", turn.Text, len(calls), err)
		}
		text := w.answer(t, calls[0])
		if calls[0].Name == "submit" {
			return turns
		}
		if err := c.Observe(context.Background(), rollout.ToolResult{Tool: calls[0].Name, Text: text}); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no submit in 50 turns")
	return nil
}

const (
	taxFile   = "def fee(x):\n    \"\"\"x plus 7.\"\"\"\n    return x - 7\n\ndef due(a, b):\n    \"\"\"a minus b.\"\"\"\n    return a - b\n"
	payFile   = "def cut(s):\n    \"\"\"Last of s, or 2 if empty.\"\"\"\n    return s[-1]\n"
	complaint = "tax.fee(4) gives -3, not 11.\npay.cut([]) raises IndexError, not 2."
	noModule  = "fee(4) gives -3, not 11.\ncut([]) raises IndexError, not 2."
)

func newWorld(numbers bool) *world {
	return &world{files: map[string]string{"tax.py": taxFile, "pay.py": payFile}, numbers: numbers}
}

func mustExpert(t *testing.T, cfg expert.Config) rollout.Model {
	t.Helper()
	m, err := expert.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPerfectExpertWritesTheRightLines(t *testing.T) {
	m := mustExpert(t, expert.Config{Right: 1, Search: .3, Distractor: .3, Undo: 1})
	for _, statement := range []string{complaint, noModule} {
		for _, format := range []string{toolcall.Hermes, toolcall.Qwen3Coder} {
			for seed := range int64(20) {
				w := newWorld(seed%2 == 0)
				play(t, m, w, format, statement, seed, nil)
				if !strings.Contains(w.files["tax.py"], "return x + 7\n") || !strings.Contains(w.files["pay.py"], "return s[-1] if s else 2\n") {
					t.Fatalf("seed %d, %s: files after the expert:\n%s\n%s", seed, format, w.files["tax.py"], w.files["pay.py"])
				}
			}
		}
	}
}

func TestImperfectExpertIsRightAsOftenAsToldAndDiverselyWrong(t *testing.T) {
	m := mustExpert(t, expert.Config{Right: .55, Search: .1, Distractor: .05, Undo: 0})
	right, lines, turns := 0, map[string]bool{}, map[string]bool{}
	const n = 1000
	for seed := range int64(n) {
		w := newWorld(false)
		turns[strings.Join(play(t, m, w, toolcall.Qwen3Coder, complaint, seed, nil), "\n")] = true
		lines[w.edits["tax.py"]] = true
		if w.edits["tax.py"] == "return x + 7" {
			right++
		}
		if strings.Contains(w.files["tax.py"], "return x - 7") || !strings.Contains(w.files["tax.py"], "return a - b") {
			t.Fatalf("the faulty line stayed, or a healthy one changed:\n%s", w.files["tax.py"])
		}
	}
	if right < n*50/100 || right > n*60/100 {
		t.Errorf("right %d times of %d, want about .55", right, n)
	}
	if len(lines) < 7 || len(turns) < 50 {
		t.Errorf("%d different lines, %d different conversations", len(lines), len(turns))
	}
}

func TestSameSeedSameConversation(t *testing.T) {
	m := mustExpert(t, expert.DefaultConfig())
	a := play(t, m, newWorld(false), toolcall.Hermes, complaint, 5, nil)
	b := play(t, m, newWorld(false), toolcall.Hermes, complaint, 5, nil)
	if strings.Join(a, "\n") != strings.Join(b, "\n") {
		t.Errorf("two conversations of one seed differ:\n%s\n%s", a, b)
	}
}

func TestUndoTakesAWrongEditBack(t *testing.T) {
	m := mustExpert(t, expert.Config{Right: 0, Undo: 1})
	w := newWorld(false)
	play(t, m, w, toolcall.Qwen3Coder, "tax.fee(4) gives -3, not 11.", 1, nil)
	if got := strings.Join(w.calls, ", "); got != "read_file, edit_file replace, edit_file undo, edit_file replace, submit" {
		t.Errorf("calls: %s", got)
	}
}

func TestReferenceAndIdle(t *testing.T) {
	task := &milepost.Task{ReferencePatch: "--- a/tax.py\n+++ b/tax.py\n@@ -3,1 +3,1 @@\n-    return x - 7\n+    return x + 7\n"}
	w := newWorld(false)
	turns := play(t, expert.NewReference(), w, toolcall.Qwen3Coder, complaint, 1, task)
	if got := strings.Join(w.calls, ", "); got != "edit_file apply_patch, submit" || !strings.Contains(turns[0], "+    return x + 7\n") {
		t.Errorf("reference: %s\n%s", got, turns[0])
	}
	w = newWorld(false)
	play(t, expert.NewIdle(), w, toolcall.Qwen3Coder, complaint, 1, nil)
	if got := strings.Join(w.calls, ", "); got != "submit" {
		t.Errorf("idle: %s", got)
	}
}

func TestOpeningsThatNoScriptCanPlay(t *testing.T) {
	for want, try := range map[string]func() error{
		"no line of the statement": func() error {
			_, err := mustExpert(t, expert.DefaultConfig()).Open(context.Background(), rollout.Opening{Format: toolcall.Hermes})
			return err
		},
		"no task with a reference patch": func() error {
			_, err := expert.NewReference().Open(context.Background(), rollout.Opening{Format: toolcall.Hermes})
			return err
		},
		"right is 1.5; allowed are 0 to 1": func() error { _, err := expert.New(expert.Config{Right: 1.5}); return err },
	} {
		if err := try(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

const specification = "tax.fee(x): x plus 7.\ntax.due(a, b): a minus b.\npay.cut(s): Last of s, or 2 if empty."

func TestExpertCarriesOutASpecification(t *testing.T) {
	w := &world{files: map[string]string{}}
	play(t, mustExpert(t, expert.Config{Right: 1}), w, toolcall.Hermes, specification, 1, nil)
	if got := strings.Join(w.calls, ", "); got != "edit_file create, edit_file insert, edit_file create, submit" {
		t.Errorf("calls: %s", got)
	}
	want := "def due(a, b):\n    return a - b\ndef fee(x):\n    return x + 7"
	if w.files["tax.py"] != want || w.files["pay.py"] != "def cut(s):\n    return s[-1] if s else 2" {
		t.Errorf("files %q", w.files)
	}
}

func TestExpertSkillOnASpecification(t *testing.T) {
	m := mustExpert(t, expert.Config{Right: .5, Skip: .2})
	written, right := 0, 0
	for seed := range int64(400) {
		w := &world{files: map[string]string{}}
		play(t, m, w, toolcall.Hermes, specification, seed, nil)
		text := w.files["tax.py"] + "\n" + w.files["pay.py"]
		written += strings.Count(text, "def ")
		for _, line := range []string{"return x + 7\n", "return a - b\n", "return s[-1] if s else 2\n"} {
			right += strings.Count(text+"\n", line)
		}
	}
	if written < 900 || written > 1020 || right < 400 || right > 560 { // 1200 functions: 960 written, 480 right
		t.Errorf("%d of 1200 functions written, %d right; about 960 and 480 are wanted", written, right)
	}
}

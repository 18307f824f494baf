package evaluate

import (
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"

	"pgregory.net/rapid"
)

func TestSelectRule(t *testing.T) {
	v := func(failing int) *Visible { return &Visible{Failing: failing, Total: 5} }
	for name, c := range map[string]struct {
		list []Candidate
		want int
	}{
		"none":                    {nil, -1},
		"fewest failing":          {[]Candidate{{0, 10, v(2)}, {1, 90, v(1)}, {2, 20, v(3)}}, 1},
		"then the smallest patch": {[]Candidate{{0, 30, v(1)}, {1, 20, v(1)}, {2, 25, v(1)}}, 1},
		"then the earliest":       {[]Candidate{{2, 20, v(1)}, {1, 20, v(1)}}, 1},
		"nothing changed is last": {[]Candidate{{0, 0, v(0)}, {1, 20, v(4)}}, 1},
		"nobody changed anything": {[]Candidate{{0, 0, v(0)}, {1, 0, v(0)}}, 0},
		"without visible tests":   {[]Candidate{{0, 30, &Visible{}}, {1, 20, nil}}, 1},
	} {
		if got := Select(c.list); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestHiddenTestsDoNotSelect: whatever the hidden tests say of the attempts (grade, score, share of tests passed,
// report), the same ones are chosen.
func TestHiddenTestsDoNotSelect(t *testing.T) {
	tasks := tasksOf(3)
	rapid.Check(t, func(t *rapid.T) {
		var h History
		h.Start = startOf(tasks, 4)
		h.Start.Identity.Select = SelectVisible
		for _, task := range tasks {
			for a := range 4 {
				r := recordOf(task.ID, a, false)
				r.PatchBytes = rapid.IntRange(0, 3).Draw(t, "patch")
				r.Visible = &Visible{Failing: rapid.IntRange(0, 2).Draw(t, "failing"), Total: 2}
				h.Records = append(h.Records, r)
			}
		}
		chosen := func() (out []int) {
			r, err := Compute(tasks, h, Prices{})
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range r.Rows {
				out = append(out, *row.Selected)
			}
			return out
		}
		before := chosen()
		for i := range h.Records {
			r := &h.Records[i]
			r.Resolved = rapid.Bool().Draw(t, "resolved")
			r.Score = rapid.Float64Range(0, 1).Draw(t, "score")
			rate := rapid.Float64Range(0, 1).Draw(t, "rate")
			r.PassRate, r.Outcome = &rate, rapid.SampledFrom([]string{"resolved", "unresolved", "tests_timed_out"}).Draw(t, "outcome")
			r.Report.Resolved = r.Resolved
		}
		if after := chosen(); !reflect.DeepEqual(after, before) {
			t.Fatalf("chosen %v, with other grades %v", before, after)
		}
	})
}

// TestVisibleTaskHidesTheGrading: two tasks that differ in nothing but what the agent cannot see are tested alike.
func TestVisibleTaskHidesTheGrading(t *testing.T) {
	task := func(secret string) *milepost.Task {
		return &milepost.Task{ID: "t", Image: "i", Workdir: "/testbed", BaseCommit: "c", PassToPass: []string{"q", "p"}, FailToPass: []string{secret},
			Tests: []string{"p", "q", secret}, ReferencePatch: secret, RelevantFiles: []string{secret}, Statement: "fix",
			Test: milepost.TestCommand{Argv: []string{"pytest"}, Hidden: map[string]string{"h": secret}},
			Grading: &milepost.Grading{Rule: milepost.GradeStates, TestPatch: benchmarks.Diff("t.py", "old\n", secret+"\n"), Commands: []string{"pytest t.py"}, TestFiles: []string{"t.py"},
				Expected: map[string]string{"h": secret}, Files: map[string]string{"h": secret}, Strip: []string{secret}, Hidden: []string{secret}, Folder: secret, Output: secret}}
	}
	a, b := VisibleTask(task("one")), VisibleTask(task("two"))
	if a == nil || !reflect.DeepEqual(a, b) {
		t.Errorf("visible tasks differ:\n%+v\n%+v", a, b)
	}
	if len(a.Tests) != 2 || a.Test.Hidden != nil || a.Grading.TestPatch != "" || a.Statement != "" {
		t.Errorf("visible task %+v", a)
	}
	blind := task("x")
	blind.Grading.Script = "run everything"
	none := task("x")
	none.PassToPass = nil
	if VisibleTask(blind) != nil || VisibleTask(none) != nil {
		t.Error("a script of hidden and visible tests, or a task without any, has visible tests")
	}
}

// layoutTask is a task in the layout of SWE-bench: its test patch changes one test file and brings another.
func layoutTask(t *testing.T) *milepost.Task {
	t.Helper()
	const tests = "import unittest\nimport m\n\n\nclass T(unittest.TestCase):\n    def test_old(self):\n        self.assertEqual(m.old, 1)\n"
	dir := filepath.Join(t.TempDir(), "repo")
	commit, tree, err := benchmarks.WriteRepo(dir, []benchmarks.File{{Path: "m.py", Data: []byte("old = 1\n")}, {Path: "tests/__init__.py"},
		{Path: "tests/test_old.py", Data: []byte(tests)}})
	must(t, err)
	changed := benchmarks.Diff("tests/test_old.py", tests, tests+"\n    def test_hidden(self):\n        self.assertEqual(m.new, 2)\n")
	brought := benchmarks.Added("tests/test_brought.py", strings.ReplaceAll(tests, "test_old", "test_extra"))
	return &milepost.Task{ID: "a-1", Kind: milepost.BugRepair, Repo: dir, BaseCommit: commit, BaseTree: tree, Image: "local:small", Test: milepost.TestCommand{Timeout: time.Minute},
		FailToPass: []string{"test_hidden (tests.test_old.T.test_hidden)"}, PassToPass: []string{"test_old (tests.test_old.T.test_old)", "test_extra (tests.test_brought.T.test_extra)"},
		Grading: &milepost.Grading{Rule: milepost.GradeStates, LogParser: "parse_log_django", TestPatch: changed + brought, TestFiles: []string{"tests/test_brought.py", "tests/test_old.py"}}}
}

// TestVisibleTestsOfATestPatch: a runner that is given a file that only the test patch brings runs nothing at all, so
// such a file is not named to it; where there are no others nothing is visible.
func TestVisibleTestsOfATestPatch(t *testing.T) {
	task := layoutTask(t)
	task.Origin = &milepost.Origin{Repo: "a/b"}
	script := grade.Script(VisibleTask(task), "/testbed")
	if !strings.Contains(script, "\npytest -rA 'tests/test_old.py'\n") || strings.Contains(script, "base64") {
		t.Errorf("script of the visible tests:\n%s", script)
	}
	only := *task.Grading
	only.TestPatch, only.TestFiles = benchmarks.Added("tests/test_brought.py", "x\n"), []string{"tests/test_brought.py"}
	task.Grading = &only
	if v := VisibleTask(task); v != nil {
		t.Errorf("all tests are the test patch's, yet visible are %+v", v.Grading)
	}
	only.TestPatch = "no diff"
	if v := VisibleTask(task); v != nil {
		t.Errorf("what is hidden cannot be told, yet visible are %+v", v.Grading)
	}
}

// TestVisibleTestsAreTheBases: an attempt is chosen neither for tests that it edited nor for having guessed the name of a
// hidden one.
func TestVisibleTestsAreTheBases(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash")
	}
	w := benchtest.Open(t, "")
	x := &grade.Executor{Env: w.Env, Bases: w.Bases, Timeout: time.Minute}
	task := layoutTask(t)
	task.Grading.Commands = []string{"python3 -m unittest -v"}
	seen := VisibleTask(task)
	const always = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_NAME(self):\n        pass\n"
	right := benchmarks.Diff("m.py", "old = 1\n", "old = 1\nnew = 2\n")
	wrong := benchmarks.Diff("m.py", "old = 1\n", "old = 3\n")
	edited := benchmarks.Diff("tests/test_old.py", "        self.assertEqual(m.old, 1)\n", "        self.assertEqual(m.old, 3)\n")
	edited = strings.Replace(edited, "@@ -1 +1 @@", "@@ -7 +7 @@", 1)
	guessed := benchmarks.Added("tests/test_brought.py", strings.ReplaceAll(always, "NAME", "extra"))
	for name, c := range map[string]struct {
		patch string
		hold  int
	}{"right": {right, 1}, "wrong": {wrong, 0}, "edited the test": {wrong + edited, 0}, "guessed the hidden file": {right + guessed, 1}} {
		ev, err := x.Run(t.Context(), seen, &c.patch, filepath.Join(t.TempDir(), "log"))
		must(t, err)
		hold, reason, err := grade.Holding(seen, ev)
		must(t, err)
		if hold != c.hold || reason != "" {
			t.Errorf("%s: %d visible tests hold (%s), want %d\n%s", name, hold, reason, c.hold, ev.Log)
		}
	}
	if !slices.Equal(task.Grading.TestFiles, []string{"tests/test_brought.py", "tests/test_old.py"}) {
		t.Errorf("the task itself has changed: %v", task.Grading.TestFiles)
	}
}

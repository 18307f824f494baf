package grade

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"
)

const (
	calc  = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return a + a\n\n\ndef third(a):\n    return a / 3\n"
	tests = "import unittest\nfrom calc import add, double\n\n\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n\n" +
		"    def test_double(self):\n        self.assertEqual(double(2), 4)\n"
	addID, doubleID = "tests.test_calc.T.test_add", "tests.test_calc.T.test_double"
)

// fix mends add.
var fix = benchmarks.Diff("calc.py", calc, strings.Replace(calc, "a - b", "a + b", 1))

// smallTask is a task over a small repository: one failing test, one passing.
func smallTask(t *testing.T) *milepost.Task {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	commit, tree, err := benchmarks.WriteRepo(dir, []benchmarks.File{
		{Path: "calc.py", Data: []byte(calc)}, {Path: "tests/__init__.py"}, {Path: "tests/test_calc.py", Data: []byte(tests)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &milepost.Task{ID: "small-1", Kind: milepost.BugRepair, Statement: "mend add", Repo: dir, BaseCommit: commit, BaseTree: tree, Image: "local:small",
		ReferencePatch: fix, RelevantFiles: []string{"calc.py"}, Protected: []string{"tests/"},
		Test:  milepost.TestCommand{Argv: []string{"python3", "-m", "unittest", "-v"}, Format: "unittest", Timeout: time.Minute},
		Tests: []string{addID, doubleID}, FailToPass: []string{addID}, PassToPass: []string{doubleID}}
}

func executor(t *testing.T) *Executor {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash")
	}
	w := benchtest.Open(t, "")
	return &Executor{Env: w.Env, Bases: w.Bases, Timeout: time.Minute}
}

// graded runs and judges one patch.
func graded(t *testing.T, x *Executor, task *milepost.Task, patch string) *Verdict {
	t.Helper()
	ev, err := x.Run(t.Context(), task, &patch, filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := Judge(task, ev)
	if err != nil {
		t.Fatal(err)
	}
	if v.Outcome == NoResults || v.Outcome == NoMarkers || v.Outcome == Unreadable {
		t.Logf("log:\n%.3000s", ev.Log)
	}
	return v
}

func wantOutcome(t *testing.T, v *Verdict, want Outcome, reason string) {
	t.Helper()
	if v.Outcome != want || !strings.Contains(v.Reason, reason) {
		t.Errorf("verdict %s, want %s for %q", v, want, reason)
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
)

// gradeCommand runs `milepost grade ARGS` in process.
func gradeCommand(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := newRootCommand()
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	code = run(context.Background(), root, append([]string{"grade"}, args...))
	return code, stdout.String(), stderr.String()
}

// gradeSet writes a task set of two tasks with a real repository, and predictions for it.
func gradeSet(t *testing.T) (set, file string) {
	t.Helper()
	dir := t.TempDir()
	const before, after = "def f():\n    return 1\n", "def f():\n    return 2\n"
	commit, tree, err := benchmarks.WriteRepo(filepath.Join(dir, "repos", "t-1"), []benchmarks.File{
		{Path: "m.py", Data: []byte(before)}, {Path: "tests/__init__.py"},
		{Path: "tests/test_m.py", Data: []byte("import unittest\nfrom m import f\n\n\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(), 2)\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	patch := benchmarks.Diff("m.py", before, after)
	task := milepost.Task{ID: "t-1", Kind: milepost.BugRepair, Statement: "f gives 2", Repo: filepath.Join(dir, "repos", "t-1"),
		BaseCommit: commit, BaseTree: tree, Image: "local:python3", ReferencePatch: patch, RelevantFiles: []string{"m.py"}, Protected: []string{"tests/"},
		Test:  milepost.TestCommand{Argv: []string{"python3", "-m", "unittest", "-v"}, Format: "unittest", Timeout: time.Minute},
		Tests: []string{"tests.test_m.T.test_f"}, FailToPass: []string{"tests.test_m.T.test_f"}}
	second := task
	second.ID = "t-2"
	if err := benchmarks.Save(dir, []*milepost.Task{&task, &second}); err != nil {
		t.Fatal(err)
	}
	bad := "nonsense"
	var b bytes.Buffer
	if err := predictions.Write(&b, []predictions.Prediction{{InstanceID: "t-1", Model: "good", Patch: &patch}, {InstanceID: "t-2", Model: "bad", Patch: &bad}}); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "predictions.jsonl")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

func TestGrade(t *testing.T) {
	needSandbox(t)
	set, file := gradeSet(t)
	out := filepath.Join(t.TempDir(), "out")
	code, stdout, stderr := gradeCommand(t, "--predictions", file, "--tasks", set, "--out", out)
	if code != exitDone || !strings.Contains(stdout, "good: 1 resolved of 1 graded") || !strings.Contains(stdout, "bad: 0 resolved of 1 graded") ||
		!strings.Contains(stdout, "patch_failed     1") {
		t.Fatalf("code %d\n%s\n%s", code, stdout, stderr)
	}
	var report map[string]predictions.Instance
	b, err := os.ReadFile(filepath.Join(out, "good", "t-1", "report.json"))
	if err == nil {
		err = json.Unmarshal(b, &report)
	}
	if err != nil || !report["t-1"].Resolved {
		t.Errorf("report %s, %v", b, err)
	}
	code, stdout, _ = gradeCommand(t, "--predictions", file, "--tasks", set, "--out", out, "--json")
	var reports map[string]*grade.RunReport
	if err := json.Unmarshal([]byte(stdout), &reports); err != nil || code != exitDone || reports["good"].Resolved != 1 || reports["bad"].Errors != 1 {
		t.Errorf("code %d, %v\n%s", code, err, stdout)
	}
}

func TestGradeWrongUse(t *testing.T) {
	set, file := gradeSet(t)
	out := t.TempDir()
	empty := filepath.Join(t.TempDir(), "empty.jsonl")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	strangers := filepath.Join(t.TempDir(), "strangers.jsonl")
	write(t, strangers, `{"instance_id":"a","model_name_or_path":"m","model_patch":""}`+"\n"+`{"instance_id":"b","model_name_or_path":"m","model_patch":""}`+"\n")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--tasks", set, "--out", out}, "--predictions is missing"},
		{[]string{"--predictions", file, "--tasks", set, "--out", out, "--timeout", "0s"}, "--timeout is 0s"},
		{[]string{"--predictions", file, "--tasks", set, "--out", out, "--workers", "0"}, "--workers is 0"},
		{[]string{"--predictions", file, "--tasks", set, "--out", out, "--set", "a=b"}, "--set goes with -c"},
		{[]string{"--predictions", strangers, "--tasks", set, "--out", out}, `2 of 2 predictions are of no task of`},
		{[]string{"--predictions", empty, "--tasks", set, "--out", out}, "holds no prediction"},
	} {
		if code, _, stderr := gradeCommand(t, c.args...); code != exitUsage && code != exitFailed || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: code %d, %s; want %q", c.args, code, stderr, c.want)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env/local"
)

// tasksCommand runs `milepost tasks ARGS` in process.
func tasksCommand(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := newRootCommand()
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	code = run(context.Background(), root, append([]string{"tasks"}, args...))
	return code, stdout.String(), stderr.String()
}

// savedSet writes a set of one task and returns its folder.
func savedSet(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := benchmarks.Save(dir, []*milepost.Task{{
		ID: "t-1", Kind: milepost.BugRepair, Split: "train", Statement: "f(1) gives 2, not 3.", Repo: filepath.Join(dir, "repos", "t-1"),
		BaseCommit: strings.Repeat("a", 40), BaseTree: strings.Repeat("b", 40), Image: "local:python3",
		ReferencePatch: benchmarks.Diff("f.py", "a\n", "b\n"), RelevantFiles: []string{"f.py"}, Protected: []string{"tests/"},
		Test:  milepost.TestCommand{Argv: []string{"python3", "-m", "unittest"}, Format: "unittest"},
		Tests: []string{"m.T.a", "m.T.b"}, FailToPass: []string{"m.T.a"}, PassToPass: []string{"m.T.b"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTasksShowAndStats(t *testing.T) {
	dir := savedSet(t)
	if code, out, _ := tasksCommand(t, "show", dir); code != exitDone || out != "t-1  1 failing, 1 passing  f(1) gives 2, not 3.\n" {
		t.Errorf("show: %d, %q", code, out)
	}
	if code, out, _ := tasksCommand(t, "show", dir, "t-1"); code != exitDone || !strings.Contains(out, "\n-a\n+b\n") || !strings.Contains(out, "fail to pass (1)\n  m.T.a\n") {
		t.Errorf("show t-1: %d, %q", code, out)
	}
	code, out, _ := tasksCommand(t, "stats", dir, "--json")
	var s benchmarks.Stats
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != exitDone || s.Tasks != 1 || s.FailToPass.Max != 1 {
		t.Errorf("stats: %d, %v, %s", code, err, out)
	}
}

func TestTasksWrongUse(t *testing.T) {
	dir := savedSet(t)
	for want, args := range map[string][]string{
		"one task set is wanted":                        {"stats"},
		"--runs is 0; it must be at least 1":            {"validate", dir, "--runs", "0"},
		"--out is missing":                              {"make", "micro"},
		"--workers is 0; allowed are 1 to 64":           {"make", "micro", "--out", "x", "--workers", "0"},
		"--count is 0; it must be at least 1":           {"make", "micro", "--out", "x", "--count", "0"},
		"unknown flag: --falts":                         {"make", "micro", "--falts", "2"},
		`package "toolz" is not NAME==VERSION`:          {"make", "inject", "--package", "toolz", "--out", "x"},
		`families: "typo" is not one of [operator`:      {"make", "micro", "--families", "typo", "--out", "x"},
		"a task set, and perhaps a task's id, are want": {"show"},
	} {
		if code, _, errOut := tasksCommand(t, args...); code != exitUsage || !strings.Contains(errOut, want) {
			t.Errorf("tasks %v: code %d, %q; want %d and %q", args, code, errOut, exitUsage, want)
		}
	}
	if _, err := local.New(local.Config{Root: t.TempDir()}); err != nil {
		t.Skipf("no sandbox on this machine: %v", err)
	}
	for want, args := range map[string][]string{
		`no task "t-9" among 1`:     {"show", dir, "t-9"},
		"no such file or directory": {"stats", filepath.Join(dir, "no")},
		"repository: stat":          {"validate", dir, "--runs", "1"}, // of the one task that cannot be checked
		"holds a task set already":  {"make", "micro", "--out", dir, "--count", "1"},
		"has a tasks.jsonl already": {"make", "inject", "--package", "p==1", "--out", dir, "--cache", dir},
	} {
		if code, _, errOut := tasksCommand(t, args...); code != exitFailed || !strings.Contains(errOut, want) {
			t.Errorf("tasks %v: code %d, %q; want %d and %q", args, code, errOut, exitFailed, want)
		}
	}
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
)

// TestEvalEndsOrphans: the server of a killed evaluation is ended by the next one; that of one at work, and that of the
// evaluation itself, which adopts it, are not.
func TestEvalEndsOrphans(t *testing.T) {
	runDir := t.TempDir()
	server := func(name string) *supervise.Process {
		p, err := supervise.Start(supervise.Spec{Name: "vllm-0", Argv: []string{"/bin/sleep", "100"}, Grace: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Stop(t.Context()); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
		})
		logs := filepath.Join(runDir, name, "logs")
		if err := os.MkdirAll(logs, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := writeIdentity(filepath.Join(logs, "vllm-0.json"), serverIdentity{Identity: p.Identity()}); err != nil {
			t.Fatal(err)
		}
		return p
	}
	killed, working, own := server("eval-1"), server("eval-2"), server("eval-3")
	release, err := orchestrator.Lock(filepath.Join(runDir, "eval-2"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = release() }()
	var said bytes.Buffer
	if err := endOrphans(t.Context(), runDir, filepath.Join(runDir, "eval-3"), newProgress(&said)); err != nil {
		t.Fatal(err)
	}
	if killed.Identity().Alive() || !working.Identity().Alive() || !own.Identity().Alive() || !strings.Contains(said.String(), "a killed evaluation left behind") {
		t.Errorf("alive: %v, %v, %v; want only the first ended. It said: %s", killed.Identity().Alive(), working.Identity().Alive(), own.Identity().Alive(), said.String())
	}
	if _, err := os.Stat(filepath.Join(runDir, "eval-1", "logs", "vllm-0.json")); err == nil {
		t.Error("the ended server's identity is still there")
	}
	for _, p := range []*supervise.Process{working, own} {
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestIsTaskSet(t *testing.T) {
	dir := t.TempDir()
	set := filepath.Join(dir, "set")
	if err := benchmarks.Save(set, []*milepost.Task{repairTask(t, "t1", "pass")}); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "rows.jsonl"), `{"instance_id": "a__b-1", "repo": "a/b", "id": 3}`+"\n")
	write(t, filepath.Join(dir, "rows.json"), "[\n{}]")
	write(t, filepath.Join(dir, "rows.parquet"), "PAR1\x00\x01")
	for path, want := range map[string]bool{
		set: true, filepath.Join(set, benchmarks.TasksFile): true, filepath.Join(dir, "missing"): true,
		filepath.Join(dir, "rows.jsonl"): false, filepath.Join(dir, "rows.json"): false, filepath.Join(dir, "rows.parquet"): false, dir: false, "hf://o/n": false,
	} {
		if got := isTaskSet(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// TestHoldingIsBlind: a hidden test that fails, and with it the test command, leaves the number of visible tests that pass.
func TestHoldingIsBlind(t *testing.T) {
	task := repairTask(t, "t1", "pass")
	task.Tests, task.FailToPass, task.PassToPass = []string{"test_m.T.test_one"}, nil, []string{"test_m.T.test_one"}
	log := func(hidden, summary string, code string) string {
		return ">>>>> Start Test Output\ntest_one (test_m.T.test_one) ... ok\ntest_two (test_m.T.test_two) ... " + hidden +
			"\n\n----------------------------------------------------------------------\nRan 2 tests in 0.001s\n\n" + summary + "\n>>>>> End Test Output\n>>>>> Test Exit Code: " + code + "\n"
	}
	for _, text := range []string{log("ok", "OK", "0"), log("FAIL", "FAILED (failures=1)", "1"), log("ERROR", "FAILED (errors=1)", "1")} {
		if n, reason, err := grade.Holding(task, &grade.Evidence{Log: text}); n != 1 || err != nil {
			t.Errorf("%d tests hold, %q, %v:\n%s", n, reason, err, text)
		}
	}
	if n, reason, err := grade.Holding(task, &grade.Evidence{Fault: grade.PatchFailed, Reason: "no"}); n != 0 || reason == "" || err != nil {
		t.Errorf("a patch that does not apply: %d, %q, %v", n, reason, err)
	}
}

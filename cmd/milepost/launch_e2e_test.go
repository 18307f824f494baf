package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// TestE2ELaunchLocal runs what launch writes for this machine: messenger, a real vLLM server that joins, trainer, workers of
// both kinds, and the orchestrator, which is killed in the middle and goes on by itself. Nothing is left running.
func TestE2ELaunchLocal(t *testing.T) {
	if os.Getenv("MILEPOST_E2E") != "1" {
		t.Skip("starts a real vLLM server, which takes two minutes: set MILEPOST_E2E=1")
	}
	dir := t.TempDir()
	program, tasks, model, run, out := filepath.Join(dir, "milepost"), filepath.Join(dir, "tasks"), filepath.Join(dir, "model"), filepath.Join(dir, "run"), filepath.Join(dir, "out")
	if b, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	for _, args := range [][]string{
		{"tasks", "make", "micro", "--seed", "7", "--count", "8", "--split", "train", "--out", tasks},
		{"launch", "--target", "local", "-c", "quickstart", "--out", out, "--program", program, "--set", "run.dir=" + run, "--set", "run.name=local",
			"--set", "model=" + model, "--set", "tasks.train=" + tasks, "--set", "rollout.max_turns=3", "--set", "rollout.max_tokens=60", "--set", "launch.rollout_workers=1",
			"--set", "schedule.groups_per_update=2", "--set", "schedule.group_size=2", "--set", "schedule.max_updates=12", "--set", "schedule.eval_every=0", "--set", "schedule.barrier=10s"},
	} {
		if code, _, errs := milepostRun(t, args...); code != exitDone {
			t.Fatal(errs)
		}
	}
	untrained(t, tasks, model)

	log, err := os.Create(filepath.Join(dir, "run.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := exec.Command(filepath.Join(out, "run.sh"))
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	t.Cleanup(func() { _ = c.Process.Signal(syscall.SIGTERM) })
	said := func() string {
		b, _ := os.ReadFile(log.Name())
		return string(b)
	}
	killed := false
	for deadline := time.Now().Add(8 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		select {
		case err := <-done:
			if err != nil || !killed || !strings.Contains(said(), "part.sh: run 0 ended with 137; again") || !strings.Contains(said(), "12 updates are done") {
				t.Errorf("%v, killed %v:\n%s", err, killed, said())
			}
			nothingLeft(t, "none", dir)
			return
		default:
		}
		if !killed && strings.Contains(said(), "weights v2 are served") {
			for _, p := range leftovers(t, "none", program) {
				if pid, command, _ := strings.Cut(p, " "); strings.HasPrefix(command, program+" train ") {
					n, err := strconv.Atoi(pid)
					killed = err == nil && syscall.Kill(n, syscall.SIGKILL) == nil
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not done after eight minutes:\n%s", said())
		}
	}
}

// untrained makes a model of random weights whose tokenizer knows the tasks.
func untrained(t *testing.T, tasks, model string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(tasks, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tasks in %s: %v", tasks, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	corpus := filepath.Join(filepath.Dir(model), "corpus.txt")
	write(t, corpus, string(text))
	environment, err := trainerbridge.Environment(trainerbridge.EnvTrainer)
	if err != nil {
		t.Fatal(err)
	}
	path, err := trainerbridge.PythonPath()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(filepath.Join(environment, "bin", "python"), "-m", "milepost_trainer", "create", "--corpus", corpus, "--out", model, "--max-context", "1024")
	c.Env = append(os.Environ(), "PYTHONPATH="+path)
	if b, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
}

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/orchestrator"
)

// trainable is a configuration whose every part is there, though the model has no weights worth serving: what a test
// spoils is what the command must name. vLLM is never started.
type trainable struct {
	file, model, tasks, run string
}

func newTrainable(t *testing.T) *trainable {
	t.Helper()
	dir := t.TempDir()
	c := &trainable{file: filepath.Join(dir, "c.yaml"), model: filepath.Join(dir, "model"), tasks: filepath.Join(dir, "tasks"), run: filepath.Join(dir, "run")}
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"} {
		write(t, filepath.Join(c.model, name), "{}")
	}
	if err := benchmarks.Save(c.tasks, []*milepost.Task{repairTask(t, "t1", "pass")}); err != nil {
		t.Fatal(err)
	}
	write(t, c.file, fmt.Sprintf("run:\n  dir: %s\nmodel: %s\ntasks:\n  train: %s\n  certificates: ignore\nserver:\n  command: [no-such-vllm, serve]\n", c.run, c.model, c.tasks))
	return c
}

// repairTask is unittestTask as a task to repair; body is what its only test does.
func repairTask(t *testing.T, id, body string) *milepost.Task {
	t.Helper()
	task := unittestTask(t)
	task.ID, task.Statement, task.ReferencePatch = id, "m is broken.", benchmarks.Diff("m.py", "a\n", "b\n")
	task.RelevantFiles, task.FailToPass = []string{"m.py"}, task.Tests
	return task
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestTrainNamesWhatIsWrong: each fault in what a run is given ends the command before anything is started, with the
// exit code of its kind and the place of the fault.
func TestTrainNamesWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*testing.T, *trainable) []string // returns further arguments
		code  int
		says  func(*trainable) []string
	}{
		"broken YAML": {func(t *testing.T, c *trainable) []string {
			write(t, c.file, "run:\n  dir: x\n seed: [1\n")
			return nil
		}, exitUsage, func(c *trainable) []string { return []string{c.file + ":"} }},
		"unknown field": {func(t *testing.T, c *trainable) []string {
			write(t, c.file, "run:\n  dir: x\nschedule:\n  group_sice: 4\n")
			return nil
		}, exitUsage, func(c *trainable) []string { return []string{c.file + ":4", "schedule.group_sice", "group_size"} }},
		"value out of range": {func(t *testing.T, c *trainable) []string {
			write(t, c.file, "run:\n  dir: x\nschedule:\n  group_size: 0\n")
			return nil
		}, exitUsage, func(c *trainable) []string { return []string{c.file + ":4", "schedule.group_size", "1 or more"} }},
		"override out of range": {func(*testing.T, *trainable) []string { return []string{"--set", "update.minibatches=-1"} },
			exitUsage, func(*trainable) []string { return []string{"minibatches", "-1"} }},
		"no such configuration": {func(t *testing.T, c *trainable) []string { remove(t, c.file); return nil },
			exitFailed, func(c *trainable) []string { return []string{c.file, "quickstart"} }},
		"missing model": {func(t *testing.T, c *trainable) []string { remove(t, c.model); return nil },
			exitFailed, func(c *trainable) []string { return []string{"model directory " + c.model + " does not exist"} }},
		"model without a tokenizer": {func(t *testing.T, c *trainable) []string {
			remove(t, filepath.Join(c.model, "tokenizer_config.json"))
			return nil
		}, exitFailed, func(c *trainable) []string { return []string{c.model, "no tokenizer_config.json"} }},
		"tokenizer without its vocabulary": {func(t *testing.T, c *trainable) []string {
			remove(t, filepath.Join(c.model, "tokenizer.json"))
			return nil
		},
			exitFailed, func(c *trainable) []string { return []string{c.model, "no tokenizer.json"} }},
		"missing task folder": {func(t *testing.T, c *trainable) []string { remove(t, c.tasks); return nil },
			exitFailed, func(c *trainable) []string { return []string{c.tasks} }},
		"corrupt line of tasks": {func(t *testing.T, c *trainable) []string {
			path := filepath.Join(c.tasks, benchmarks.TasksFile)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, string(b)+`{"id": "t2", "kind": 7}`+"\n")
			return nil
		}, exitUsage, func(c *trainable) []string { return []string{benchmarks.TasksFile + " line 2", "kind"} }},
		"resume and a configuration": {func(_ *testing.T, c *trainable) []string { return []string{"--resume", c.run} },
			exitUsage, func(*trainable) []string { return []string{"--resume", "-c"} }},
		"unknown flag": {func(*testing.T, *trainable) []string { return []string{"--fast"} },
			exitUsage, func(*trainable) []string { return []string{"--fast", "milepost train --help"} }},
	} {
		t.Run(name, func(t *testing.T) {
			given := newTrainable(t)
			args := append([]string{"train", "-c", given.file}, c.spoil(t, given)...)
			code, _, errs := milepostRun(t, args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, errs)
			}
			for _, want := range c.says(given) {
				if !strings.Contains(errs, want) {
					t.Errorf("it does not say %q: %s", want, errs)
				}
			}
			if _, err := os.Stat(given.run); err == nil {
				t.Errorf("it made the run folder all the same")
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func TestWrongCommandLines(t *testing.T) {
	empty := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"trian"}, exitUsage, `unknown command "trian"`},
		{[]string{"tasks", "mkae"}, exitUsage, `unknown command "mkae"; see milepost tasks --help`},
		{[]string{"tasks", "make", "macro"}, exitUsage, `unknown command "macro"; see milepost tasks make --help`},
		{[]string{"worker", "shaddow"}, exitUsage, `unknown command "shaddow"`},
		{[]string{"worker", "list", "--nats", "nats://127.0.0.1:1", "--wait", "-1s"}, exitUsage, "--wait -1s is not positive"},
		{[]string{"train"}, exitUsage, "-c FILE"},
		{[]string{"train", "extra", "-c", "quickstart"}, exitUsage, "extra"},
		{[]string{"config", "check"}, exitUsage, "arg"},
		{[]string{"train", "--resume", empty}, exitFailed, "holds no run to resume"},
		{[]string{"train", "--resume", filepath.Join(empty, "none")}, exitFailed, "holds no run to resume"},
		{[]string{"eval", "-c", "quickstart"}, exitUsage, "--tasks"},
		{[]string{"rft", "-c", "quickstart"}, exitUsage, "--out"},
		{[]string{"quickstart", "--set", "schedule.group_size=no"}, exitUsage, "group_size"},
	} {
		if code, _, errs := milepostRun(t, c.args...); code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%v: exit code %d, want %d with %q: %s", c.args, code, c.code, c.says, errs)
		}
	}
	if entries, err := os.ReadDir(empty); err != nil || len(entries) > 0 {
		t.Errorf("--resume of nothing left %v (%v)", entries, err)
	}
}

// TestRunFolderBelongsToOneRun: a folder that another process runs, that holds a run, or that was made for another run
// is refused before anything is started in it.
func TestRunFolderBelongsToOneRun(t *testing.T) {
	t.Run("is going", func(t *testing.T) {
		c := newTrainable(t)
		release, err := orchestrator.Lock(c.run)
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"train", "-c", c.file}, {"rft", "-c", c.file, "--out", c.run + "-model"}} {
			if code, _, errs := milepostRun(t, args...); code != exitFailed || !strings.Contains(errs, fmt.Sprintf("%s is in use by process %d", c.run, os.Getpid())) {
				t.Errorf("%v: exit code %d: %s", args, code, errs)
			}
		}
		if err := release(); err != nil {
			t.Fatal(err)
		}
		if release, err = orchestrator.Lock(c.run); err != nil {
			t.Fatalf("the lock outlives its holder: %v", err)
		}
		if err := release(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("holds a run", func(t *testing.T) {
		c, f := newTrainable(t), runFolder(t)
		if code, _, errs := milepostRun(t, "train", "-c", c.file, "--set", "run.dir="+f.Dir); code != exitFailed || !strings.Contains(errs, "--resume "+f.Dir) {
			t.Errorf("exit code %d: %s", code, errs)
		}
	})
	t.Run("another seed", func(t *testing.T) {
		c := newTrainable(t)
		if _, err := orchestrator.OpenFolder(c.run, orchestrator.Header{Seed: 41, Model: c.model}); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := milepostRun(t, "train", "-c", c.file, "--set", "run.seed=42"); code != exitFailed || !strings.Contains(errs, "seed 41") || !strings.Contains(errs, "42") {
			t.Errorf("exit code %d: %s", code, errs)
		}
	})
}

func TestPortInUse(t *testing.T) {
	needSandbox(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := newTrainable(t)
	port := l.Addr().(*net.TCPAddr).Port
	code, _, errs := milepostRun(t, "train", "-c", c.file, "--set", fmt.Sprintf("server.port=%d", port))
	if want := fmt.Sprintf("port 127.0.0.1:%d is in use", port); code != exitFailed || strings.Count(errs, want) != 1 {
		t.Errorf("exit code %d, want %q once: %s", code, want, errs)
	}
}

// TestServerThatCannotStart: the command of the server does not exist; the error names it, once.
func TestServerThatCannotStart(t *testing.T) {
	needSandbox(t)
	c := newTrainable(t)
	code, _, errs := milepostRun(t, "train", "-c", c.file, "--set", "trainer.address=127.0.0.1:1")
	if code != exitFailed || strings.Count(errs, "start no-such-vllm") != 1 {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// TestWithoutBubblewrap: the message names the package to install; nothing runs unconfined instead.
func TestWithoutBubblewrap(t *testing.T) {
	c := newTrainable(t)
	bin := t.TempDir()
	for _, program := range []string{"git", "python3"} {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			if path := filepath.Join(dir, program); syscall.Access(path, 1) == nil {
				if err := os.Symlink(path, filepath.Join(bin, program)); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
	}
	t.Setenv("PATH", bin)
	for _, args := range [][]string{{"train", "-c", c.file}, {"quickstart", "--set", "run.dir=" + c.run}, {"tasks", "validate", c.tasks}} {
		if code, out, errs := milepostRun(t, args...); code != exitFailed || !strings.Contains(errs, "bubblewrap") {
			t.Errorf("%v: exit code %d: %s%s", args, code, out, errs)
		}
	}
}

// TestFullDisk: a set of tasks that does not fit is an error that says so, and no set; with space it is made.
func TestFullDisk(t *testing.T) {
	needSandbox(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=200k"); err != nil {
		t.Skipf("no small file system can be mounted (it takes root): %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	out := filepath.Join(dir, "set")
	args := []string{"tasks", "make", "micro", "--count", "4", "--out", out}
	if code, _, errs := milepostRun(t, args...); code != exitFailed || !strings.Contains(errs, "no space left on device") || !strings.Contains(errs, dir) {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if _, err := os.Stat(filepath.Join(out, benchmarks.TasksFile)); !os.IsNotExist(err) {
		t.Errorf("a set that is not whole was left behind (%v)", err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=32m"); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := milepostRun(t, args...); code != exitDone {
		t.Errorf("with space: exit code %d: %s", code, errs)
	}
	if tasks, err := benchmarks.Load(out); err != nil || len(tasks) != 4 {
		t.Errorf("%d tasks, %v", len(tasks), err)
	}
}

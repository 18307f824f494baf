package micro_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/expert"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"
	"github.com/milepost-rl/milepost/benchmarks/micro"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/rollout"
)

// TestMadeTasksHoldAndExpertsSolveThem makes a set in real sandboxes, validates it again from disk and lets the scripted
// models play it through the real loop.
func TestMadeTasksHoldAndExpertsSolveThem(t *testing.T) {
	ctx := context.Background()
	w := benchtest.Open(t, "")
	out := filepath.Join(t.TempDir(), "set")
	const count = 6
	if _, err := micro.Make(ctx, micro.Config{Seed: 1, Count: count, Distractors: 1, Hint: micro.HintFunction}, w.Checker, out, nil); err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(t.TempDir(), "moved") // a set is whole in its folder
	if err := os.Rename(out, moved); err != nil {
		t.Fatal(err)
	}
	tasks, err := benchmarks.Load(moved)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := w.Validate(ctx, tasks, 2, nil)
	if err != nil || len(problems) > 0 || len(tasks) != count {
		t.Fatalf("%d tasks, problems %v, %v", len(tasks), problems, err)
	}
	perfect, err := expert.New(expert.Config{Right: 1, Search: .2, Distractor: .2, Undo: .2})
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := expert.New(expert.Config{Right: 0})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		model rollout.Model
		want  int
	}{"reference": {expert.NewReference(), count}, "idle": {expert.NewIdle(), 0}, "perfect": {perfect, count}, "wrong": {wrong, 0}} {
		if got := resolved(t, w, c.model, tasks); got != c.want {
			t.Errorf("%s resolves %d of %d tasks, want %d", name, got, count, c.want)
		}
	}
}

// resolved plays every task once and counts those whose final tree passes every test.
func resolved(t *testing.T, w benchtest.World, m rollout.Model, tasks []*milepost.Task) int {
	t.Helper()
	ctx, n := context.Background(), 0
	r, err := rollout.New(rollout.Default(), rollout.Deps{Env: w.Env, Bases: w.Bases, Blobs: w.Blobs, Model: m})
	if err != nil {
		t.Fatal(err)
	}
	for i, task := range tasks {
		ep, err := r.Run(ctx, rollout.Request{Episode: task.ID, Group: task.ID, Task: task, Seed: int64(i)})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range ep.Steps {
			if !s.Valid {
				t.Errorf("%s: call %q is not valid: %s", task.ID, s.Action.Text, s.Observed)
			}
		}
		out, err := w.Runner.Run(ctx, task, ep.FinalTree, ep.FinalDelta)
		if err != nil {
			t.Fatal(err)
		}
		if out.Report.AllPassed() {
			n++
		}
	}
	return n
}

func TestCheckerFindsBrokenTasks(t *testing.T) {
	ctx := context.Background()
	w := benchtest.Open(t, "")
	made, err := micro.Make(ctx, micro.Config{Seed: 2, Count: 1}, w.Checker, filepath.Join(t.TempDir(), "set"), nil)
	if err != nil {
		t.Fatal(err)
	}
	files := made[0].RelevantFiles
	for want, spoil := range map[string]func(*milepost.Task){
		"reference patch: fail_to_pass test": func(t *milepost.Task) { // repairs only some of the faults
			all := strings.SplitAfter(t.ReferencePatch, "diff --git")
			t.ReferencePatch = "diff --git" + strings.TrimSuffix(all[1], "diff --git")
		},
		"reference patch does not apply": func(t *milepost.Task) { t.ReferencePatch = strings.ReplaceAll(t.ReferencePatch, files[0], "gone.py") },
		"untouched tree: fail_to_pass test": func(t *milepost.Task) {
			t.FailToPass, t.PassToPass = append(t.FailToPass, t.PassToPass[0]), t.PassToPass[1:]
		},
		"pass_to_pass test": func(t *milepost.Task) {
			t.PassToPass, t.FailToPass = append(t.PassToPass, t.FailToPass[0]), t.FailToPass[1:]
		},
		"reference patch: test zz.Test.test_no": func(t *milepost.Task) { t.Tests = append(t.Tests, "zz.Test.test_no") },
	} {
		task := *made[0]
		spoil(&task)
		problems, err := w.Validate(ctx, []*milepost.Task{&task}, 1, nil)
		if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Reason, want) {
			t.Errorf("problems %v (%v), want %q", problems, err, want)
		}
	}
}

// TestWrongEditsMoveTheVector checks what credit lives on: breaking one file makes its own tests fail, each of them by
// name, and leaves the tests of the others as they were.
func TestWrongEditsMoveTheVector(t *testing.T) {
	ctx := context.Background()
	w := benchtest.Open(t, "")
	made, err := micro.Make(ctx, micro.Config{Seed: 3, Count: 1, Distractors: 1}, w.Checker, filepath.Join(t.TempDir(), "set"), nil)
	if err != nil {
		t.Fatal(err)
	}
	task := made[0]
	base, err := w.Bases.Base(ctx, task)
	if err != nil {
		t.Fatal(err)
	}
	path := task.RelevantFiles[0]
	hash, err := w.Blobs.Put([]byte("def broken(:\n"))
	if err != nil {
		t.Fatal(err)
	}
	delta := []milepost.TreeChange{{Path: path, Mode: repo.ModeFile, Blob: hash}}
	out, err := w.Runner.Run(ctx, task, base.Index.Apply(delta).TreeID(), delta)
	if err != nil || out.Status != milepost.ProbeCompleted || len(out.Extra) > 0 {
		t.Fatalf("outcome %+v, %v", out, err)
	}
	own := "test_" + strings.TrimSuffix(path, ".py") + "."
	for i, id := range task.Tests {
		healthy := strings.Join(task.PassToPass, " ")
		switch mine := strings.HasPrefix(id, own); {
		case mine && out.Report[i] != milepost.Errored:
			t.Errorf("%s is %s in a broken file", id, out.Report[i])
		case !mine && (out.Report[i] == milepost.Passed) != strings.Contains(healthy, id):
			t.Errorf("%s is %s, though its file is as it was", id, out.Report[i])
		}
	}
}

func TestMakeRefusesToOverwriteASet(t *testing.T) {
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, benchmarks.TasksFile), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := micro.Make(context.Background(), micro.Config{Count: 1}, &benchmarks.Checker{}, out, nil)
	if milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("error %v, want a conflict", err)
	}
}

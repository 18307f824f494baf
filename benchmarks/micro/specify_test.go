package micro_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"
	"github.com/milepost-rl/milepost/benchmarks/micro"
	"github.com/milepost-rl/milepost/env/repo"
)

func TestGenerationTasksHideTheirTestsAndCountThem(t *testing.T) {
	w := benchtest.Open(t, "")
	out := t.TempDir()
	cfg := micro.Config{Kind: micro.KindGenerate, Seed: 5, Count: 3, Files: 2, FunctionsPerFile: 2}
	if _, err := micro.Make(context.Background(), cfg, w.Checker, out, nil); err != nil {
		t.Fatal(err)
	}
	tasks, err := benchmarks.Load(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		base, err := w.Bases.Base(context.Background(), task)
		if err != nil {
			t.Fatal(err)
		}
		if len(base.Index) != 1 || base.Index["SPEC.md"].Hash == "" {
			t.Errorf("the base tree holds %v, want the specification alone", base.Index)
		}
		if task.Kind != milepost.RepoGeneration || task.Grading != nil {
			t.Errorf("%s: kind %s, grading %+v; its own tests judge it", task.ID, task.Kind, task.Grading)
		}
		if !slices.Equal(task.FailToPass, task.Tests) || len(task.PassToPass) > 0 || len(task.Test.Hidden) != 2 {
			t.Errorf("%s: %d of %d tests fail on the empty tree, %d hidden files", task.ID, len(task.FailToPass), len(task.Tests), len(task.Test.Hidden))
		}
		if strings.Contains(task.Statement, "return") || strings.Count(task.Statement, "\n") != 3 {
			t.Errorf("statement %q", task.Statement)
		}
	}
	half := levels(t, w, tasks[0])
	if len(half) < 4 || half[0] == 0 || half[len(half)-1] != len(tasks[0].Tests) {
		t.Errorf("tests passed after each function of the reference: %v", half)
	}
}

// levels writes the functions of the reference one after the other and counts the tests that pass after each.
func levels(t *testing.T, w benchtest.World, task *milepost.Task) (passed []int) {
	t.Helper()
	ctx := context.Background()
	base, err := w.Bases.Base(ctx, task)
	if err != nil {
		t.Fatal(err)
	}
	whole, _, err := repo.ApplyPatch(ctx, base, task.ReferencePatch, w.Blobs)
	if err != nil {
		t.Fatal(err)
	}
	var delta []milepost.TreeChange
	for _, c := range whole {
		data, err := w.Blobs.Get(c.Blob)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(data), "\n\n")
		for _, text := range []string{first + "\n", string(data)} {
			hash, err := w.Blobs.Put([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			now := append(slices.Clone(delta), milepost.TreeChange{Path: c.Path, Mode: c.Mode, Blob: hash})
			out, err := w.Runner.Run(ctx, task, base.Index.Apply(now).TreeID(), now)
			if err != nil || out.Status != milepost.ProbeCompleted {
				t.Fatal(out, err)
			}
			passed = append(passed, out.Report.Count(milepost.Passed))
		}
		delta = append(delta, c)
	}
	return passed
}

package benchmarks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testrun"
)

// Runner runs the tests of a task on a tree; *testrun.Runner is one. It is safe for concurrent use.
type Runner interface {
	Run(ctx context.Context, task *milepost.Task, tree string, delta []milepost.TreeChange) (testrun.Outcome, error)
}

// Checker proves tasks by running their tests on the untouched tree and on the tree that the reference patch makes.
// It is safe for concurrent use.
type Checker struct {
	Bases   *repo.Store
	Blobs   *repo.Blobs
	Runner  Runner
	Workers int // tasks checked at the same time by [Checker.Validate]; at least 1
}

// Problem is a task that did not hold, and why, in words.
type Problem struct {
	Task   string `json:"task"`
	Reason string `json:"reason"`
}

// Progress hears, from any goroutine, how many of how many are done. It may be nil.
type Progress func(done, total int)

// Validate runs every task n times: the reference patch must pass everything; the untouched tree must fail every
// FailToPass and pass every PassToPass. It returns the tasks that do not hold, in the order of tasks. The error is for
// infrastructure and cancellation only.
func (c *Checker) Validate(ctx context.Context, tasks []*milepost.Task, n int, progress Progress) ([]Problem, error) {
	found := make([]string, len(tasks))
	var done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(c.Workers, 1))
	for i, t := range tasks {
		g.Go(func() error {
			var err error
			found[i], err = c.hold(ctx, t, n)
			if progress != nil && err == nil {
				progress(int(done.Add(1)), len(tasks))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var out []Problem
	for i, reason := range found {
		if reason != "" {
			out = append(out, Problem{tasks[i].ID, reason})
		}
	}
	return out, nil
}

// hold runs one task n times and says what does not hold, or "".
func (c *Checker) hold(ctx context.Context, t *milepost.Task, n int) (string, error) {
	sides, reason, err := c.run(ctx, t, n)
	if err != nil || reason != "" {
		return reason, err
	}
	f2p := make(map[string]bool, len(t.FailToPass))
	for _, id := range t.FailToPass {
		f2p[id] = true
	}
	for i, id := range t.Tests {
		switch passed := sides.untouched[i] == milepost.Passed; {
		case f2p[id] && passed:
			return fmt.Sprintf("untouched tree: fail_to_pass test %s passes", id), nil
		case slices.Contains(t.PassToPass, id) && !passed:
			return fmt.Sprintf("untouched tree: pass_to_pass test %s is %s", id, sides.untouched[i]), nil
		}
	}
	return "", nil
}

// Discover runs a new task n times and fills FailToPass and PassToPass from what happened: the reference patch must
// pass every test and the untouched tree must do the same each time. It returns why the task is no task, or "" for a
// good one; the error is for infrastructure, cancellation and a task whose repository or patch is broken.
func (c *Checker) Discover(ctx context.Context, t *milepost.Task, n int) (string, error) {
	sides, reason, err := c.run(ctx, t, n)
	if err != nil || reason != "" {
		return reason, err
	}
	t.FailToPass, t.PassToPass = nil, nil
	for i, id := range t.Tests {
		if sides.untouched[i] == milepost.Passed {
			t.PassToPass = append(t.PassToPass, id)
		} else {
			t.FailToPass = append(t.FailToPass, id)
		}
	}
	if len(t.FailToPass) == 0 {
		return "untouched tree: every test passes", nil
	}
	return "", nil
}

// bothSides are the reports of the untouched tree and of the tree with the reference patch.
type bothSides struct{ untouched, fixed milepost.TestReport }

// run runs both trees n times. A non-empty reason says that the fixed tree does not pass everything or that runs differ.
func (c *Checker) run(ctx context.Context, t *milepost.Task, n int) (s bothSides, reason string, err error) {
	base, err := c.Bases.Base(ctx, t)
	if err != nil {
		return s, "", err
	}
	delta, tree, err := repo.ApplyPatch(ctx, base, t.ReferencePatch, c.Blobs)
	if milepost.KindOf(err) == milepost.KindInvalid {
		return s, fmt.Sprintf("reference patch does not apply: %v", err), nil
	}
	if err != nil {
		return s, "", err
	}
	for i := range max(n, 1) {
		fixed, reason, err := c.once(ctx, t, tree, delta)
		if err != nil || reason != "" {
			return s, prefix("reference patch: ", reason), err
		}
		if !fixed.AllPassed() {
			return s, "reference patch: " + firstNot(t, fixed), nil
		}
		untouched, reason, err := c.once(ctx, t, base.Tree, nil)
		if err != nil || reason != "" {
			return s, prefix("untouched tree: ", reason), err
		}
		if i > 0 && !slices.Equal(untouched, s.untouched) {
			return s, fmt.Sprintf("untouched tree: run %d differs from run 1", i+1), nil
		}
		s = bothSides{untouched, fixed}
	}
	return s, "", nil
}

// once is one run; the reason is set where it gave no dense report over exactly the task's tests.
func (c *Checker) once(ctx context.Context, t *milepost.Task, tree string, delta []milepost.TreeChange) (milepost.TestReport, string, error) {
	out, err := c.Runner.Run(ctx, t, tree, delta)
	if err != nil {
		return nil, "", err
	}
	switch {
	case out.Status != milepost.ProbeCompleted:
		return nil, fmt.Sprintf("tests ended as %s: %s", out.Status, out.Reason), nil
	case len(out.Extra) > 0:
		return nil, fmt.Sprintf("tests ran that the task does not list: %s", strings.Join(out.Extra, ", ")), nil
	case len(out.Report) != len(t.Tests):
		return nil, fmt.Sprintf("the report has %d tests, the task %d", len(out.Report), len(t.Tests)), nil
	}
	return out.Report, "", nil
}

func prefix(p, s string) string {
	if s == "" {
		return ""
	}
	return p + s
}

// firstNot names the first test that did not pass.
func firstNot(t *milepost.Task, r milepost.TestReport) string {
	for i, s := range r {
		if s != milepost.Passed {
			return fmt.Sprintf("test %s is %s", t.Tests[i], s)
		}
	}
	return "no test ran"
}

// Disjoint reports whether two task sets share no repository tree and no task id; the error names the first pair.
func Disjoint(a, b []*milepost.Task) error {
	trees, ids := map[string]string{}, map[string]bool{}
	for _, t := range a {
		trees[treeOf(t)], ids[t.ID] = t.ID, true
	}
	for _, t := range b {
		if other, ok := trees[treeOf(t)]; ok {
			return milepost.E("benchmarks: disjoint", milepost.KindConflict, "tasks %s and %s have the same tree %s", other, t.ID, treeOf(t))
		}
		if ids[t.ID] {
			return milepost.E("benchmarks: disjoint", milepost.KindConflict, "both sets have a task %s", t.ID)
		}
	}
	return nil
}

// treeOf identifies the tree a task starts from: its git tree or, where that lies in an image, image and commit.
func treeOf(t *milepost.Task) string {
	if t.BaseTree != "" {
		return t.BaseTree
	}
	return strings.TrimSpace(t.Image + " " + t.BaseCommit)
}

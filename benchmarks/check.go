package benchmarks

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
// It is safe for concurrent use. What it proved with [Checker.Discover] it remembers, for [Checker.Certify].
type Checker struct {
	Bases   *repo.Store
	Blobs   *repo.Blobs
	Runner  Runner
	Workers int // tasks checked at the same time by [Checker.Validate]; at least 1

	mu     sync.Mutex
	proven map[string]*Certificate // by task, without the row's hash: a maker still fills the task in
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
// infrastructure and cancellation only. Package certify checks more than that, and keeps what it found.
func (c *Checker) Validate(ctx context.Context, tasks []*milepost.Task, n int, progress Progress) ([]Problem, error) {
	found := make([]string, len(tasks))
	var done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(c.Workers, 1))
	for i, t := range tasks {
		g.Go(func() error {
			cert, err := NewCertificate(t, "validate")
			if err == nil {
				err = c.Prove(ctx, t, n, cert)
			}
			if err != nil {
				return err
			}
			found[i] = cert.Reason()
			if progress != nil {
				progress(int(done.Add(1)), len(tasks))
			}
			return nil
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

// Prove runs both sides of a task n times and writes into the certificate what was found. The error is for
// infrastructure and cancellation only.
func (c *Checker) Prove(ctx context.Context, t *milepost.Task, n int, cert *Certificate) error {
	untouched, reference, reason, err := c.sides(ctx, t, n)
	if err != nil {
		return err
	}
	if reason != "" {
		cert.Checks, cert.Problems = sortedChecks(append(cert.Checks, CheckRuns)...), append(cert.Problems, Finding{CheckRuns, reason})
		return nil
	}
	Weigh(t, untouched, reference, cert)
	return nil
}

// Discover runs a new task n times and fills FailToPass and PassToPass from what happened: the reference patch must
// pass every test and the untouched tree must do the same each time. It returns why the task is no task, or "" for a
// good one; the error is for infrastructure, cancellation and a task whose repository or patch is broken.
func (c *Checker) Discover(ctx context.Context, t *milepost.Task, n int) (string, error) {
	untouched, reference, reason, err := c.sides(ctx, t, n)
	if err != nil || reason != "" {
		return reason, err
	}
	t.FailToPass, t.PassToPass = nil, nil
	for _, id := range t.Tests {
		if len(untouched) > 0 && untouched[0].Passed[id] {
			t.PassToPass = append(t.PassToPass, id)
		} else {
			t.FailToPass = append(t.FailToPass, id)
		}
	}
	cert := &Certificate{Format: certificateFormat}
	Weigh(t, untouched, reference, cert)
	switch {
	case cert.Reason() != "":
		return cert.Reason(), nil
	case len(cert.Flaky) > 0:
		return fmt.Sprintf("%s: runs of test %s differ", cert.Flaky[0].Side, cert.Flaky[0].Test), nil
	case len(t.FailToPass) == 0:
		return "untouched tree: every test passes", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proven == nil {
		c.proven = map[string]*Certificate{}
	}
	c.proven[t.ID] = cert
	return "", nil
}

// Certify writes certificates of the tasks of a finished set that [Checker.Discover] proved, on behalf of a maker. more,
// which may be nil, adds to each what else the maker knows.
func (c *Checker) Certify(set, by string, tasks []*milepost.Task, more func(*milepost.Task, *Certificate) error) error {
	out := map[string]*Certificate{}
	for _, t := range tasks {
		c.mu.Lock()
		proven := c.proven[t.ID]
		delete(c.proven, t.ID)
		c.mu.Unlock()
		if proven == nil {
			continue
		}
		cert, err := NewCertificate(t, by)
		if err != nil {
			return err
		}
		cert.Checks, cert.Runs, cert.Times = proven.Checks, proven.Runs, proven.Times
		CheckWords(t, cert)
		if more != nil {
			if err := more(t, cert); err != nil {
				return err
			}
		}
		out[t.ID] = cert
	}
	if len(out) == 0 {
		return nil
	}
	return SaveCertificates(set, out)
}

// sides runs both trees n times. A non-empty reason says why nothing could be run.
func (c *Checker) sides(ctx context.Context, t *milepost.Task, n int) (untouched, reference []Trial, reason string, err error) {
	base, err := c.Bases.Base(ctx, t)
	if err != nil {
		return nil, nil, "", err
	}
	var delta []milepost.TreeChange
	tree := base.Tree
	if t.ReferencePatch != "" {
		delta, tree, err = repo.ApplyPatch(ctx, base, t.ReferencePatch, c.Blobs)
		if milepost.KindOf(err) == milepost.KindInvalid {
			return nil, nil, fmt.Sprintf("reference patch does not apply: %v", err), nil
		}
		if err != nil {
			return nil, nil, "", err
		}
	}
	for range max(n, 1) {
		if t.ReferencePatch != "" {
			trial, err := c.Try(ctx, t, tree, delta)
			if err != nil {
				return nil, nil, "", err
			}
			if reference = append(reference, trial); trial.Fault != "" {
				break // it would be the same, or worse, the next time
			}
		}
		trial, err := c.Try(ctx, t, base.Tree, nil)
		if err != nil {
			return nil, nil, "", err
		}
		if untouched = append(untouched, trial); trial.Fault != "" {
			break
		}
	}
	return untouched, reference, "", nil
}

// Try runs the tests once. A run that gives no dense report over exactly the task's tests has a fault.
func (c *Checker) Try(ctx context.Context, t *milepost.Task, tree string, delta []milepost.TreeChange) (Trial, error) {
	began := time.Now()
	out, err := c.Runner.Run(ctx, t, tree, delta)
	if err != nil {
		return Trial{}, err
	}
	trial := Trial{Ran: time.Since(began)}
	switch {
	case out.Status != milepost.ProbeCompleted:
		trial.Fault = fmt.Sprintf("tests ended as %s: %s", out.Status, out.Reason)
	case len(out.Extra) > 0:
		trial.Fault = fmt.Sprintf("tests ran that the task does not list: %s", strings.Join(out.Extra, ", "))
	case len(out.Report) != len(t.Tests):
		trial.Fault = fmt.Sprintf("the report has %d tests, the task %d", len(out.Report), len(t.Tests))
	default:
		trial.Resolved, trial.Passed = t.Passes(out.Report), make(map[string]bool, len(t.Tests))
		for i, id := range t.Tests {
			trial.Passed[id] = out.Report[i] == milepost.Passed
		}
	}
	return trial, nil
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

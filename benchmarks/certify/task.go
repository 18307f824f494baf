package certify

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
)

// noChange is a patch that changes nothing that a test could see: gradings by a data set's rule need one.
const noChange = "diff --git a/milepost-untouched.txt b/milepost-untouched.txt\nnew file mode 100644\n--- /dev/null\n+++ b/milepost-untouched.txt\n@@ -0,0 +1 @@\n+untouched\n"

// Task checks one task, with n runs of each side, and returns its certificate. What the task does wrong is in the
// certificate; the error is for infrastructure and cancellation.
func (c *Certifier) Task(ctx context.Context, t *milepost.Task, n int) (*benchmarks.Certificate, error) {
	cert, err := benchmarks.NewCertificate(t, "validate")
	if err != nil {
		return nil, err
	}
	if c.Digest != nil {
		if cert.Digest, err = c.Digest(ctx, t.Image); err != nil {
			return nil, err
		}
	}
	benchmarks.CheckWords(t, cert)
	if t.Grading == nil {
		err = c.Checker.Prove(ctx, t, n, cert)
	} else {
		err = c.proveGraded(ctx, t, n, cert)
	}
	if err != nil {
		return nil, err
	}
	if err := c.look(ctx, t, cert); err != nil {
		return nil, err
	}
	return cert, nil
}

// proveGraded runs both sides by the data set's own rule.
func (c *Certifier) proveGraded(ctx context.Context, t *milepost.Task, n int, cert *benchmarks.Certificate) error {
	var untouched, reference []benchmarks.Trial
	for range max(n, 1) {
		if t.ReferencePatch != "" {
			trial, err := c.grade(ctx, t, t.ReferencePatch)
			if err != nil {
				return err
			}
			reference = append(reference, trial)
		}
		trial, err := c.grade(ctx, t, noChange)
		if err != nil {
			return err
		}
		untouched = append(untouched, trial)
		if trial.Fault != "" {
			break
		}
	}
	benchmarks.Weigh(t, untouched, reference, cert)
	return nil
}

// grade is one run by the data set's own rule.
func (c *Certifier) grade(ctx context.Context, t *milepost.Task, patch string) (benchmarks.Trial, error) {
	dir, err := os.MkdirTemp(c.Dir, "grade-")
	if err != nil {
		return benchmarks.Trial{}, milepost.Wrap("certify: grade", milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	ev, err := c.Executor.Run(ctx, t, &patch, filepath.Join(dir, "log"))
	if err != nil {
		return benchmarks.Trial{}, err
	}
	v, err := grade.Judge(t, ev)
	if err != nil {
		return benchmarks.Trial{}, err
	}
	trial := benchmarks.Trial{Resolved: v.Outcome == grade.Resolved, Ran: time.Since(began), Passed: map[string]bool{}}
	if !v.Outcome.Ran() {
		trial.Fault = fmt.Sprintf("%s: %s", v.Outcome, v.Reason)
	}
	if v.Tests != nil {
		for _, id := range slices.Concat(v.Tests.FailToPass.Success, v.Tests.PassToPass.Success) {
			trial.Passed[id] = true
		}
	}
	return trial, nil
}

// look opens the agent's view, searches it for leaks, and tries to sway the grader with what it finds there.
func (c *Certifier) look(ctx context.Context, t *milepost.Task, cert *benchmarks.Certificate) error {
	v, err := c.open(ctx, t)
	if err != nil {
		return err
	}
	err = v.leaks(ctx, cert)
	if err == nil {
		err = sabotageAll(ctx, v.source, func(patch string) (benchmarks.Trial, error) { return c.try(ctx, t, patch) }, cert)
	}
	if closeErr := v.box.Close(context.WithoutCancel(ctx)); err == nil {
		err = closeErr
	}
	return err
}

// open makes a sandbox as the agent loop does, before the agent's first action.
func (c *Certifier) open(ctx context.Context, t *milepost.Task) (*view, error) {
	if t.BaseTree == "" {
		return nil, milepost.E("certify: open", milepost.KindInvalid, "its repository lies in image %s and was not taken from there yet; run milepost tasks prepare on its set", t.Image)
	}
	base, err := c.Checker.Bases.Base(ctx, t)
	if err != nil {
		return nil, err
	}
	spec := env.Spec{Name: "certify " + t.ID, Base: base.Dir, Image: t.Image, Workdir: t.Workdir, Env: t.Test.Env, Limits: c.Limits}
	if t.Grading != nil && t.Workdir != "" {
		spec.Hidden = t.Grading.Hidden
	}
	box, err := c.Env.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &view{box: box, root: box.Root(), task: t, source: treeSource(t, base)}, nil
}

// try runs one sabotage by the way that the task's verdicts are found.
func (c *Certifier) try(ctx context.Context, t *milepost.Task, patch string) (benchmarks.Trial, error) {
	if t.Grading != nil {
		return c.grade(ctx, t, patch)
	}
	judge := c.Checker
	if c.Judge != nil {
		judge = &benchmarks.Checker{Bases: c.Checker.Bases, Blobs: c.Checker.Blobs, Runner: c.Judge}
	}
	return tryOwn(ctx, judge, t, patch)
}

// tryOwn runs the tests of a task of Milepost's own on the tree that a patch makes.
func tryOwn(ctx context.Context, check *benchmarks.Checker, t *milepost.Task, patch string) (benchmarks.Trial, error) {
	base, err := check.Bases.Base(ctx, t)
	if err != nil {
		return benchmarks.Trial{}, err
	}
	delta, tree, err := repo.ApplyPatch(ctx, base, patch, check.Blobs)
	if err != nil {
		return benchmarks.Trial{}, err
	}
	return check.Try(ctx, t, tree, delta)
}

func appendCheck(checks []string, check string) []string {
	if !slices.Contains(checks, check) {
		checks = append(checks, check)
	}
	slices.Sort(checks)
	return checks
}

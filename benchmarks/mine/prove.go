package mine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testrun"
)

// prover makes tasks of candidates and runs them.
type prover struct {
	cfg     Config
	check   *benchmarks.Checker
	from    repository
	store   *git.Repository // of the set: a branch without history for each task
	repoDir string
}

// prove runs a candidate. A reason, with detail in words, says why it is no task; the error is for infrastructure and cancellation.
func (p *prover) prove(ctx context.Context, c *candidate) (t *milepost.Task, reason, detail string, err error) {
	files, plain, err := filesOf(p.from, c.from)
	if err != nil {
		return nil, "", "", err
	}
	if !plain {
		return nil, reasonFiles, "the tree has links or submodules", nil
	}
	if c.statement(p.cfg) == "" {
		return nil, reasonMessage, "", nil
	}
	t, err = p.draft(c, files)
	if err != nil {
		return nil, "", "", err
	}
	reason, detail, err = p.run(ctx, t, c, c.modules)
	if reason == reasonNoPass && err == nil { // the changed modules cannot even be collected before the change: take the whole suite
		reason, detail, err = p.run(ctx, t, c, nil)
	}
	if reason == "" && err == nil && c.about {
		reason, err = p.reduce(ctx, t, c)
	}
	if reason != "" || err != nil {
		return nil, reason, detail, err
	}
	if err := benchmarks.Check(t); err != nil {
		return nil, reasonRefused, err.Error(), nil
	}
	return t, "", "", nil
}

// draft writes the repository of a candidate and everything of its task but the tests.
func (p *prover) draft(c *candidate, files []benchmarks.File) (*milepost.Task, error) {
	const op = "mine: write task"
	id := projectOf(p.cfg) + "-" + c.id
	commit, err := benchmarks.CommitFiles(p.store, plumbing.NewBranchReferenceName(id), files)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	tree, err := benchmarks.TreeID(files)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindInternal, err)
	}
	t := &milepost.Task{
		ID: "mine-" + id, Kind: milepost.BugRepair, Split: p.cfg.Split, Source: "mine " + projectOf(p.cfg) + ", " + c.source,
		Statement: c.statement(p.cfg), Repo: p.repoDir, BaseCommit: commit.String(), BaseTree: tree, Image: p.cfg.Image,
		ReferencePatch: c.patch(), RelevantFiles: c.relevant(),
		Meta: map[string]string{"from": c.from, "to": c.to, "patch_lines": itoa(lines(c.patch())), "test_modules": itoa(len(c.modules))},
	}
	after := slices.Clone(files)
	for name := range c.hidden {
		after = append(after, benchmarks.File{Path: name})
	}
	t.Protected = pypkg.Protected(after)
	t.Test.Hidden = c.hidden
	return t, nil
}

// run finds the tests of a task among those of the modules (all, where there are none) and proves both sides.
func (p *prover) run(ctx context.Context, t *milepost.Task, c *candidate, modules []string) (reason, detail string, err error) {
	base, err := p.check.Bases.Base(ctx, t)
	if err != nil {
		return "", "", err
	}
	t.Test.Argv, t.FailToPass, t.PassToPass = nil, nil, nil
	var all []benchmarks.File
	for name := range base.Index {
		all = append(all, benchmarks.File{Path: name})
	}
	hidden := t.Test.Hidden
	t.Test = pypkg.TestCommand(all, modules, p.cfg.Timeout)
	t.Test.Hidden = hidden
	delta, tree, err := repo.ApplyPatch(ctx, base, t.ReferencePatch, p.check.Blobs)
	if err != nil {
		return "", "", err
	}
	ran, err := pypkg.Settle(t, p.cfg.Runs, func() (testrun.Outcome, error) {
		out, err := p.check.Runner.Run(ctx, t, tree, delta)
		if err == nil && out.Status != milepost.ProbeCompleted {
			err = milepost.E("mine: run tests", milepost.KindInvalid, "ended as %s: %s: %s", out.Status, out.Reason, pypkg.LastLines(out.Log, 3))
		}
		return out, err
	})
	if milepost.KindOf(err) == milepost.KindInvalid {
		return reasonSuite, err.Error(), nil
	}
	if err != nil {
		return "", "", err
	}
	if t.Test.Timeout == 0 {
		t.Test.Timeout = max(10*ran, 10*time.Second).Round(time.Second)
	}
	why, err := p.check.Discover(ctx, t, p.cfg.Runs)
	switch {
	case err != nil:
		return "", "", err
	case len(t.FailToPass) == 0 && len(t.PassToPass) == len(t.Tests):
		return reasonNoFail, "", nil
	case why != "":
		return reasonUnsteady, why, nil
	case len(t.PassToPass) == 0:
		return reasonNoPass, fmt.Sprintf("%d tests fail before the change", len(t.FailToPass)), nil
	}
	return "", "", nil
}

// reduce takes files out of the reference patch of a group, one at a time and in the order of their paths, as long as all of
// its tests still pass. A group that needs every file is the whole release's task again.
func (p *prover) reduce(ctx context.Context, t *milepost.Task, c *candidate) (reason string, err error) {
	base, err := p.check.Bases.Base(ctx, t)
	if err != nil {
		return "", err
	}
	before := len(c.code)
	for i := 0; i < len(c.code) && len(c.code) > 1; {
		less := *c
		less.code = slices.Delete(slices.Clone(c.code), i, i+1)
		delta, tree, err := repo.ApplyPatch(ctx, base, less.patch(), p.check.Blobs)
		if err != nil {
			return "", err
		}
		out, err := p.check.Runner.Run(ctx, t, tree, delta)
		if err != nil {
			return "", err
		}
		if out.Status == milepost.ProbeCompleted && len(out.Extra) == 0 && out.Report.AllPassed() {
			c.code = less.code
		} else {
			i++
		}
	}
	if len(c.code) == before {
		return reasonCovered, nil
	}
	t.ReferencePatch, t.RelevantFiles, t.Statement = c.patch(), c.relevant(), c.statement(p.cfg)
	t.Meta["patch_lines"] = itoa(lines(t.ReferencePatch))
	t.Meta["patch_files_of_release"] = itoa(before)
	why, err := p.check.Discover(ctx, t, p.cfg.Runs)
	if err == nil && (why != "" || len(t.PassToPass) == 0) {
		return reasonUnsteady, nil
	}
	return "", err
}

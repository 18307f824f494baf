package inject

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
	"github.com/milepost-rl/milepost/env/testrun"
)

// healthyRuns is how often the healthy suite is run; only tests that pass each time are in the tasks.
const healthyRuns = 2

// healthy is the untouched package: its files, its tests and how they are run.
type healthy struct {
	files   []benchmarks.File
	sources map[string]string
	task    *milepost.Task // a stand-in whose tree is the healthy one: tests, test command, protected paths
	ran     time.Duration  // of one healthy run
}

// measure makes a repository of the healthy files in dir and finds the tests that pass in every run. Tests that do not
// are deselected on the command line, so that a report holds the task's tests and no others.
func measure(ctx context.Context, cfg Config, files []benchmarks.File, check *benchmarks.Checker, dir string) (*healthy, error) {
	sources, err := sourcesOf(cfg, files)
	if err != nil {
		return nil, err
	}
	commit, tree, err := benchmarks.WriteRepo(filepath.Join(dir, "healthy"), files)
	if err != nil {
		return nil, err
	}
	h := &healthy{files: files, sources: sources, task: &milepost.Task{
		ID: "healthy-" + tree[:12], Kind: milepost.BugRepair, Statement: "healthy", Split: cfg.Split,
		Repo: filepath.Join(dir, "healthy"), BaseCommit: commit, BaseTree: tree, Image: cfg.Image,
		Protected: pypkg.Protected(files), Test: pypkg.TestCommand(files, cfg.Tests, cfg.Timeout),
	}}
	if cfg.Golang() {
		h.task.Protected, h.task.Test = protectedGo(files), goTestCommand(ctx, cfg, files)
	}
	if err := h.findTests(ctx, cfg, check); err != nil {
		return nil, err
	}
	if h.task.Test.Timeout = cfg.Timeout; cfg.Timeout == 0 {
		h.task.Test.Timeout = max(10*h.ran, 10*time.Second).Round(time.Second)
	}
	return h, nil
}

// findTests fills the task's tests: all that the suite reports, less those that do not pass in every run.
func (h *healthy) findTests(ctx context.Context, cfg Config, check *benchmarks.Checker) error {
	var err error
	settle := pypkg.Settle
	if cfg.Golang() {
		settle = settleGo
	}
	h.ran, err = settle(h.task, healthyRuns, func() (testrun.Outcome, error) { return h.once(ctx, check) })
	if err != nil {
		return milepost.E("inject: baseline", milepost.KindOf(err), "%s: %w: name good test files in tests, or give the sandbox an interpreter that has what they import", cfg.Package, err)
	}
	return nil
}

// once runs the healthy suite.
func (h *healthy) once(ctx context.Context, check *benchmarks.Checker) (testrun.Outcome, error) {
	out, err := check.Runner.Run(ctx, h.task, h.task.BaseTree, nil)
	if err != nil {
		return out, err
	}
	if out.Status != milepost.ProbeCompleted {
		return out, milepost.E("inject: baseline", milepost.KindInvalid, "%s of the healthy package ended as %s: %s: %s",
			strings.Join(h.task.Test.Argv, " "), out.Status, out.Reason, pypkg.LastLines(out.Log, 5))
	}
	return out, nil
}

// workDir is a private folder below the task set for what must not stay in it; the caller removes it.
func workDir(outDir string) (string, error) {
	if err := os.MkdirAll(outDir, 0o755); err != nil {
		return "", milepost.Wrap("inject: make", milepost.KindUnavailable, err)
	}
	dir, err := os.MkdirTemp(outDir, ".work-")
	return dir, milepost.Wrap("inject: make", milepost.KindUnavailable, err)
}

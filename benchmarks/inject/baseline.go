package inject

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env/testrun"
)

// maxDeselected bounds how many tests of the healthy package may fail, be skipped by name or flicker before the suite is refused.
const maxDeselected = 200

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
		Protected: protected(files), Test: testCommand(cfg, files),
	}}
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
	const op = "inject: baseline"
	out, err := h.once(ctx, check)
	if err != nil {
		return err
	}
	h.task.Tests = out.Extra // nothing is listed yet
	dropped := 0
	for range healthyRuns {
		out, err := h.once(ctx, check)
		if err != nil {
			return err
		}
		var good []string
		for i, id := range h.task.Tests {
			if out.Report[i] == milepost.Passed {
				good = append(good, id)
				continue
			}
			dropped++
			h.task.Test.Argv = append(h.task.Test.Argv, "--deselect="+id)
			if len(good) == 0 && i == len(h.task.Tests)-1 || dropped > maxDeselected {
				return milepost.E(op, milepost.KindInvalid, "%s: %d tests of the healthy package do not pass (at most %d may), the last is %s (%s): "+
					"name good test files in tests, or give the sandbox an interpreter that has what they import",
					cfg.Package, dropped, maxDeselected, id, out.Report[i])
			}
		}
		h.task.Tests, h.ran = good, out.Ran
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
			strings.Join(h.task.Test.Argv, " "), out.Status, out.Reason, lastLines(out.Log, 5))
	}
	return out, nil
}

// testCommand runs pytest so that its log is short, complete and the same each time. Reasons in the summary are cut at
// the width of the terminal, which is COLUMNS.
func testCommand(cfg Config, files []benchmarks.File) milepost.TestCommand {
	argv := []string{"python3", "-m", "pytest", "-rA", "-q", "--tb=no", "-p", "no:cacheprovider"}
	environ := map[string]string{"COLUMNS": "300", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
	for _, f := range files {
		if dir, rest, ok := strings.Cut(f.Path, "/"); ok && dir == "src" && strings.HasSuffix(rest, ".py") {
			environ["PYTHONPATH"] = "src"
		}
	}
	return milepost.TestCommand{Argv: append(argv, cfg.Tests...), Format: "pytest", Env: environ, Timeout: cfg.Timeout}
}

// protected are the tests (whole folders where they have one) and what configures pytest, present or not: a new
// conftest.py would count too.
func protected(files []benchmarks.File) []string {
	out := []string{"conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"}
	for _, f := range files {
		if dir := testFolder(f.Path); dir != "" {
			out = append(out, dir)
		} else if isTest(f.Path) {
			out = append(out, f.Path)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// workDir is a private folder below the task set for what must not stay in it; the caller removes it.
func workDir(outDir string) (string, error) {
	if err := os.MkdirAll(outDir, 0o755); err != nil {
		return "", milepost.Wrap("inject: make", milepost.KindUnavailable, err)
	}
	dir, err := os.MkdirTemp(outDir, ".work-")
	return dir, milepost.Wrap("inject: make", milepost.KindUnavailable, err)
}

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
	const op = "inject: baseline"
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
	var dropped []string
	for range healthyRuns + 1 { // the first run finds the ids
		ids, bad, ran, err := h.once(ctx, check)
		if err != nil {
			return nil, err
		}
		h.ran, dropped = ran, append(dropped, bad...)
		h.task.Tests = slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(bad, id) })
		for _, id := range bad {
			h.task.Test.Argv = append(h.task.Test.Argv, "--deselect="+id)
		}
		if len(h.task.Tests) == 0 || len(dropped) > maxDeselected {
			return nil, milepost.E(op, milepost.KindInvalid,
				"%s: %d tests pass and %d do not (at most %d may); the first is %q: name good test files in tests, or an interpreter that has what they import",
				cfg.Package, len(h.task.Tests), len(dropped), maxDeselected, append(dropped, "")[0])
		}
	}
	if h.task.Test.Timeout = cfg.Timeout; cfg.Timeout == 0 {
		h.task.Test.Timeout = max(10*h.ran, 10*time.Second).Round(time.Second)
	}
	return h, nil
}

// once runs the healthy suite and tells all ids it reports and those that do not pass.
func (h *healthy) once(ctx context.Context, check *benchmarks.Checker) (ids, bad []string, ran time.Duration, err error) {
	out, err := check.Runner.Run(ctx, h.task, h.task.BaseTree, nil)
	if err != nil {
		return nil, nil, 0, err
	}
	if infra(out.Status) {
		return nil, nil, 0, milepost.E("inject: baseline", milepost.KindUnavailable, "%s", out.Reason)
	}
	ids, bad, err = readStates(h.task.Test.Format, out.Log)
	if err == nil && len(ids) == 0 {
		err = milepost.E("inject: baseline", milepost.KindInvalid, "%v gave no test results (%s): %s",
			h.task.Test.Argv, out.Status, lastLines(out.Log, 5))
	}
	return ids, bad, out.Ran, err
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

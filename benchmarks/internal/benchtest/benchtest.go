// Package benchtest gives the tests of the task makers a real checker: real sandboxes, repositories and test runs.
package benchtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testrun"
)

// World is what tests run in.
type World struct {
	*benchmarks.Checker
	Env *env.Env
}

// Open opens a world that lives as long as the test; python is the interpreter of the sandboxes, "" the one of PATH. A
// machine without bubblewrap skips the test.
func Open(t *testing.T, python string) World {
	t.Helper()
	dir := t.TempDir()
	driver, err := local.New(local.Config{Root: filepath.Join(dir, "sandboxes"), Python: python})
	if milepost.KindOf(err) == milepost.KindUnavailable {
		t.Skipf("no sandbox on this machine: %v", err)
	}
	must(t, err)
	e := env.New(driver)
	t.Cleanup(func() { must(t, e.Close()) })
	bases, err := repo.NewStore(filepath.Join(dir, "bases"))
	must(t, err)
	blobs, err := repo.NewBlobs(filepath.Join(dir, "blobs"))
	must(t, err)
	cfg := testrun.Default()
	cfg.Slots = 2
	runner := testrun.New(cfg, e, bases, blobs)
	t.Cleanup(func() { must(t, runner.Close()) })
	return World{Checker: &benchmarks.Checker{Bases: bases, Blobs: blobs, Runner: runner, Workers: 2}, Env: e}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// PytestPython finds an interpreter that has pytest: $MILEPOST_TEST_PYTHON, the one of PATH, or an installed trainer
// environment. Without one it skips the test.
func PytestPython(t *testing.T) string {
	t.Helper()
	candidates := []string{os.Getenv("MILEPOST_TEST_PYTHON"), "python3"}
	home := os.Getenv("MILEPOST_HOME")
	if cache, err := os.UserCacheDir(); err == nil && home == "" {
		home = filepath.Join(cache, "milepost")
	}
	installed, err := filepath.Glob(filepath.Join(home, "envs", "trainer-*", "bin", "python"))
	must(t, err)
	for _, p := range append(candidates, installed...) {
		if p != "" && exec.Command(p, "-c", "import pytest").Run() == nil {
			return p
		}
	}
	t.Skip("no interpreter with pytest; name one in MILEPOST_TEST_PYTHON")
	return ""
}

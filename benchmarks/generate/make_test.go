package generate_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/generate"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"
)

const core = `"""Numbers within bounds."""
import os

LIMIT = 9
_CACHE = {}
HOME = os.sep


def clamp(x, lo: int = 0, hi: int = LIMIT) -> int:
    """x, but not below lo nor above hi."""
    if x < lo:
        return lo
    wide = hi - lo
    return hi if wide >= 0 and x > hi else x


def _secret(x):
    """Not told."""
    return clamp(x) + 40


def _tested(x):
    """Half of x."""
    return x // 2


class Range:
    """From lo to hi."""

    step = 1

    def __init__(self, lo, hi):
        self.lo, self.hi = lo, hi

    @property
    def width(self):
        """How wide it is."""
        return self.hi - self.lo

    def _hidden(self):
        return 77
`

// bounds is a package with documentation, one of which quotes a body, tests that need it, and one that does not.
var bounds = map[string]string{
	"bounds-1.0/bounds/__init__.py": "from .core import clamp, Range\n__all__ = ['clamp', 'Range']\n",
	"bounds-1.0/bounds/core.py":     core,
	"bounds-1.0/bounds/data.txt":    "one\n",
	"bounds-1.0/README.md":          "# bounds\n\nKeeps numbers within bounds.\n",
	"bounds-1.0/docs/inside.md":     "It works so:\n\n    if x < lo:\n        return lo\n    wide = hi - lo\n    return hi if wide >= 0 and x > hi else x\n",
	"bounds-1.0/docs/use.md":        "`clamp(12)` is 9.\n",
	"bounds-1.0/setup.cfg":          "[metadata]\nname = bounds\n",
	"bounds-1.0/build/core.py":      core,
	"bounds-1.0/tests/test_core.py": "import pytest\nfrom bounds import Range, clamp\nfrom bounds.core import _tested\n\n\n" +
		"@pytest.mark.parametrize('x', [0, 1, 5, 9, 12])\ndef test_clamp(x):\n    assert clamp(x, 1) == sorted([1, x, 9])[1]\n\n\n" +
		"def test_width():\n    assert Range(2, 5).width == 3\n\n\ndef test_half():\n    assert _tested(9) == 4\n\n\ndef test_broken():\n    assert clamp(1) == 7\n",
	"bounds-1.0/tests/test_free.py": "def test_nothing():\n    assert True\n",
}

func archive(t *testing.T, name string, members map[string]string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, benchtest.Tarball(t, members), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAPackageIsAskedForAnew(t *testing.T) {
	python := benchtest.PytestPython(t)
	w := benchtest.Open(t, python)
	out := filepath.Join(t.TempDir(), "set")
	cfg := generate.Config{Package: "bounds==1.0", Archive: archive(t, "b.tar.gz", bounds), Runs: 2, Python: python}
	if _, err := generate.Make(context.Background(), cfg, w.Checker, out); err != nil {
		t.Fatal(err)
	}
	tasks, err := benchmarks.Load(out)
	if err != nil || len(tasks) != 1 {
		t.Fatal(tasks, err)
	}
	task := tasks[0]
	for _, told := range []string{"Keeps numbers within bounds.", "`clamp(12)` is 9.", "def clamp(x, lo: int=0, hi: int=LIMIT) -> int:", "x, but not below lo",
		"LIMIT = 9", "HOME = ...", "def _tested(x):", "@property", "step = 1", "from .core import clamp, Range"} {
		if !strings.Contains(task.Statement, told) {
			t.Errorf("the specification lacks %q:\n%s", told, task.Statement)
		}
	}
	for _, secret := range []string{"return hi", "wide =", "_secret", "_hidden", "self.lo,", "test_", "_CACHE", "x // 2"} {
		if strings.Contains(task.Statement, secret) {
			t.Errorf("the specification holds %q", secret)
		}
	}
	base, err := w.Bases.Base(context.Background(), task)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for p := range base.Index {
		have = append(have, p)
	}
	slices.Sort(have)
	if want := []string{"SPEC.md", "bounds/data.txt", "setup.cfg"}; !slices.Equal(have, want) {
		t.Errorf("the emptied tree holds %v, want %v", have, want)
	}
	if n := len(task.Tests); n != 7 || task.Grading != nil || len(task.FailToPass) != n || task.Kind != milepost.RepoGeneration {
		t.Errorf("%d tests, %d fail on the emptied tree, grading %+v; want the 7 that need the package and pass", n, len(task.FailToPass), task.Grading)
	}
	if problems, err := w.Validate(context.Background(), tasks, 1, nil); err != nil || len(problems) > 0 {
		t.Errorf("problems %v, %v", problems, err)
	}
}

func TestAPackageThatTheEnvironmentHoldsIsRefused(t *testing.T) {
	python := benchtest.PytestPython(t)
	w := benchtest.Open(t, python)
	members := map[string]string{"pytest-1.0/pytest/__init__.py": "def main():\n    return 0\n", "pytest-1.0/tests/test_a.py": "def test_a():\n    import pytest\n"}
	cfg := generate.Config{Package: "pytest==1.0", Archive: archive(t, "p.tar.gz", members), Python: python}
	_, err := generate.Make(context.Background(), cfg, w.Checker, filepath.Join(t.TempDir(), "set"))
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "the environment holds pytest==1.0") || !strings.Contains(err.Error(), "importable") {
		t.Errorf("error %v", err)
	}
}

func TestDistributionsThatMakeNoTask(t *testing.T) {
	for want, members := range map[string]map[string]string{
		"compiled code":           {"p-1/p/__init__.py": "", "p-1/p/fast.pyx": "", "p-1/tests/test_a.py": ""},
		"brings no tests":         {"p-1/p/__init__.py": ""},
		"no module to be written": {"p-1/README.md": "", "p-1/tests/test_a.py": ""},
		"does not parse":          {"p-1/p/__init__.py": "def (", "p-1/tests/test_a.py": ""},
		"no such file":            nil,
	} {
		cfg := generate.Config{Package: "p==1", Archive: filepath.Join(t.TempDir(), "none.tar.gz")}
		if members != nil {
			cfg.Archive = archive(t, "p.tar.gz", members)
		}
		_, err := generate.Make(context.Background(), cfg, &benchmarks.Checker{}, t.TempDir())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	_, err := generate.Make(context.Background(), generate.Config{Package: "p"}, &benchmarks.Checker{}, t.TempDir())
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "NAME==VERSION") {
		t.Errorf("error %v", err)
	}
}

package inject

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"
)

// tiny is a package whose suite has good tests, one that fails and one that is skipped.
var tiny = map[string]string{
	"tiny-1.0/tiny/__init__.py": "from .core import clamp, spread\n",
	"tiny-1.0/tiny/core.py": "def clamp(x, lo, hi):\n    if x < lo:\n        return lo\n    return hi if x > hi else x\n\n\n" +
		"def spread(seq):\n    if not seq:\n        return 0\n    return max(seq) - min(seq)\n\n\n" +
		"def unseen(a, b):\n    return a * b\n",
	"tiny-1.0/tests/test_core.py": "import pytest\nfrom tiny import clamp, spread\n\n\n" +
		"@pytest.mark.parametrize('x', [0, 1, 2, 3, 4, 5])\ndef test_clamp(x):\n    assert clamp(x, 1, 4) == sorted([1, x, 4])[1]\n\n\n" +
		"def test_spread():\n    assert spread([3, 9, 4]) == 6\n\n\ndef test_empty():\n    assert spread([]) == 0\n\n\n" +
		"def test_broken():\n    assert clamp(1, 0, 2) == 7\n\n\n@pytest.mark.skip\ndef test_skipped():\n    pass\n",
}

func tinyConfig(t *testing.T) Config {
	t.Helper()
	cache := t.TempDir()
	if err := os.MkdirAll(filepath.Join(cache, "tiny-1.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cache, "tiny-1.0", "tiny-1.0.tar.gz"), benchtest.Tarball(t, tiny), 0o644); err != nil {
		t.Fatal(err)
	}
	return Config{Package: "tiny==1.0", Count: 2, Seed: 1, Cache: cache, Hint: HintFunction}
}

// TestMadeTasksHold makes tasks from a package in the cache, so without a network, and checks them from disk.
func TestMadeTasksHold(t *testing.T) {
	ctx := context.Background()
	w := benchtest.Open(t, benchtest.PytestPython(t))
	out := filepath.Join(t.TempDir(), "set")
	if _, err := Make(ctx, tinyConfig(t), w.Checker, out, nil); err != nil {
		t.Fatal(err)
	}
	tasks, err := benchmarks.Load(out)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := w.Validate(ctx, tasks, 1, nil)
	if err != nil || len(problems) > 0 || len(tasks) != 2 {
		t.Fatalf("%d tasks, problems %v, %v", len(tasks), problems, err)
	}
	for _, task := range tasks {
		if len(task.Tests) != 8 { // 6 + 2; the broken one is deselected, the skipped one has no id
			t.Errorf("%s has tests %v", task.ID, task.Tests)
		}
		if !strings.Contains(task.Statement, "tests/test_core.py::test_") ||
			!strings.Contains(task.Statement, " in tiny/core.py.") {
			t.Errorf("%s: statement %q", task.ID, task.Statement)
		}
		if strings.Contains(task.Meta["functions"], "unseen") {
			t.Errorf("%s has a fault that no test runs into", task.ID)
		}
	}
	onlyBranchesWithoutHistory(t, tasks)
	if left, _ := filepath.Glob(filepath.Join(out, ".work-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// onlyBranchesWithoutHistory checks that nothing a task's commit reaches holds the fixed file.
func onlyBranchesWithoutHistory(t *testing.T, tasks []*milepost.Task) {
	t.Helper()
	for _, task := range tasks {
		out, err := exec.Command("git", "-C", task.Repo, "rev-list", "--objects", task.BaseCommit).Output()
		if err != nil {
			t.Fatal(err)
		}
		fixed, err := exec.Command("sh", "-c", "printf %s \"$1\" | git hash-object --stdin", "-", tiny["tiny-1.0/tiny/core.py"]).Output()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), strings.TrimSpace(string(fixed))) || strings.Count(string(out), "\n") != 7 {
			t.Errorf("%s reaches more than its own tree:\n%s", task.ID, out)
		}
	}
}

func TestTooFewFaultsAreAnErrorThatSaysSo(t *testing.T) {
	w := benchtest.Open(t, benchtest.PytestPython(t))
	cfg := tinyConfig(t)
	cfg.Count, cfg.Families = 50, []string{"swapped"}
	_, err := Make(context.Background(), cfg, w.Checker, filepath.Join(t.TempDir(), "set"), nil)
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "ask for fewer tasks") {
		t.Errorf("error %v", err)
	}
}

func TestConfigErrorsNameFieldAndRange(t *testing.T) {
	good := Config{Package: "p==1", Cache: "cache"}
	for want, change := range map[string]func(*Config){
		`package "p" is not NAME==VERSION`: func(c *Config) { c.Package = "p" },
		`families: "typo" is not one of`:   func(c *Config) { c.Families = []string{"typo"} },
		"max_fail is 1.5":                  func(c *Config) { c.MaxFail = 1.5 },
		`"../x" is not a path relative`:    func(c *Config) { c.Tests = []string{"../x"} },
		"count is -1; allowed are":         func(c *Config) { c.Count = -1 },
		"cache is empty":                   func(c *Config) { c.Cache = "" },
	} {
		c := good
		change(&c)
		if _, err := c.withDefaults(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestStatementShowsMessagesWithoutAddresses(t *testing.T) {
	log := []byte("PASSED t.py::test_ok\nFAILED t.py::test_a - assert <p.X object at 0x7ff10414a910> == 1\nFAILED t.py::test_b[x - y] - ValueError: no\n")
	got := statement(Config{Package: "p==1", Hint: HintFile}, []mutant{{Path: "p/m.py", Function: "f"}}, []string{"t.py::test_a", "t.py::test_b[x - y]"}, log)
	want := "p misbehaves: 2 tests fail. For example:\n- t.py::test_a: assert <p.X object at 0x...> == 1\n- t.py::test_b[x - y]: ValueError: no\nLook at p/m.py."
	if got != want {
		t.Errorf("statement:\n%s\nwant\n%s", got, want)
	}
}

func TestLineHintCountsInTheFaultyFile(t *testing.T) {
	set := []mutant{
		{Path: "p/m.py", Function: "g", Line: 30, Start: 500, Old: "1", New: "2"},
		{Path: "p/m.py", Function: "f", Line: 10, Start: 100, Old: "    if x:\n        return\n"},
		{Path: "p/n.py", Function: "h", Line: 5, Start: 900, Old: "a", New: "b"},
	}
	want := "Look at g in p/m.py, line 28, f in p/m.py, line 10, h in p/n.py, line 5.\n"
	if got := hint(HintLine, set); got != want {
		t.Errorf("hint %q, want %q", got, want)
	}
}

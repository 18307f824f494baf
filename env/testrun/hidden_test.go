package testrun

import (
	"testing"

	"github.com/milepost-rl/milepost"
)

// TestHiddenFilesJudgeWhateverTheTreeHolds: hidden tests run on trees that have none, that plant other tests in their
// place, and that put a file where their folder or a folder where their file goes.
func TestHiddenFilesJudgeWhateverTheTreeHolds(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bench) {
		source := map[string]string{"calc/__init__.py": calc["calc/__init__.py"], "calc/core.py": calc["calc/core.py"], "README.md": "calc\n"}
		task := b.task(source, calcTests[:2]...)
		task.Test.Hidden = map[string]string{"tests/__init__.py": "", "tests/test_core.py": calc["tests/test_core.py"]}
		b.run(task, milepost.ProbeCompleted, "FP")
		right := text("def add(a, b):\n    return a + b\n")
		for name, change := range map[string]map[string]*string{
			"right":   {"calc/core.py": right},
			"planted": {"calc/core.py": right, "tests/__init__.py": text("raise SystemExit(0)\n"), "tests/test_core.py": text("import os; os._exit(0)\n")},
			"file":    {"calc/core.py": right, "tests": text("no folder\n")},
			"folder":  {"calc/core.py": right, "tests/test_core.py/a.py": text("no file\n")},
		} {
			delta, tree := b.delta(task, change)
			out := b.runOn(task, tree, delta, milepost.ProbeCompleted, "PP")
			if out.Tree != tree {
				t.Errorf("%s: the run proves tree %s, not the %s without hidden files", name, out.Tree, tree)
			}
		}
		// In the base, too: the repository's own tests stand in the place of hidden ones.
		task = b.task(map[string]string{"calc/__init__.py": calc["calc/__init__.py"], "calc/core.py": *right, "tests": "no folder\n"}, calcTests[:2]...)
		task.Test.Hidden = map[string]string{"tests/__init__.py": "", "tests/test_core.py": calc["tests/test_core.py"]}
		b.run(task, milepost.ProbeCompleted, "PP")
	})
}

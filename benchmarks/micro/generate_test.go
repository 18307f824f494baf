package micro

import (
	"fmt"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

func worldsOf(t *testing.T, cfg Config) []*world {
	t.Helper()
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	worlds, err := generate(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return worlds
}

func treeOf(t *testing.T, w *world) string {
	t.Helper()
	tree, err := benchmarks.TreeID(w.render(false).list())
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestTestsTellEveryWrongBodyFromTheRightOne(t *testing.T) {
	for _, w := range worldsOf(t, Config{Seed: 3, Count: 200}) {
		for _, m := range w.modules {
			for _, fn := range m.functions {
				for _, v := range fn.wrong {
					caught := false
					for _, e := range fn.tests {
						caught = caught || v.eval(e.in) != e.want
					}
					if !caught {
						t.Errorf("%s.%s: no test of %v fails with return %s", m.name, fn.Name, fn.tests, v.expr)
					}
				}
				if n := len(fn.tests); n < minTests || n > maxTests+1 {
					t.Errorf("%s.%s has %d tests", m.name, fn.Name, n)
				}
			}
		}
	}
}

func TestEveryFaultyLineIsUniqueInItsFileAndStaysSo(t *testing.T) {
	for _, w := range worldsOf(t, Config{Seed: 4, Count: 200, FunctionsPerFile: 4}) {
		for _, m := range w.modules {
			for _, fn := range m.functions {
				for _, body := range append(fn.Wrong(), fn.Right()) {
					for _, other := range m.functions {
						if other == fn {
							continue
						}
						for _, line := range append(other.Wrong(), other.Right()) {
							if strings.Contains(line, body) {
								t.Fatalf("%s.py: %q of %s lies in %q of %s", m.name, body, fn.Name, line, other.Name)
							}
						}
					}
				}
			}
		}
	}
}

func TestFaultsAreSpreadOverFilesAndFamilies(t *testing.T) {
	per := map[Family]int{}
	for _, w := range worldsOf(t, Config{Seed: 5, Count: 300, Distractors: 1}) {
		files := map[string]bool{}
		for _, f := range w.faults {
			per[f.wrong.family]++
			files[f.module] = true
			if f.wrong.eval(f.shown.in) == f.shown.want {
				t.Errorf("%s.%s(%s) shows no fault", f.module, f.fn.Name, f.shown.in)
			}
		}
		if len(w.faults) != 3 || len(files) != 3 || len(w.modules) != 4 {
			t.Errorf("%d faults in %d files of %d", len(w.faults), len(files), len(w.modules))
		}
	}
	for _, f := range Families {
		if per[f] < 130 {
			t.Errorf("family %s: %d of 900 faults", f, per[f])
		}
	}
}

func TestSplitsShareNoRepositoryAndSeedsRepeat(t *testing.T) {
	seen := map[string]string{}
	for _, split := range splits {
		for _, seed := range []int64{1, 2} {
			for i, w := range worldsOf(t, Config{Seed: seed, Count: 300, Split: split, Faults: 1, Files: 1, Distractors: 0, FunctionsPerFile: 1}) {
				tree := treeOf(t, w)
				if other, ok := seen[tree]; ok && other != split {
					t.Fatalf("tree %s is in %s and %s", tree, other, split)
				}
				seen[tree] = split
				_ = i
			}
		}
	}
	a, b := worldsOf(t, Config{Seed: 9, Count: 20}), worldsOf(t, Config{Seed: 9, Count: 20})
	for i := range a {
		if treeOf(t, a[i]) != treeOf(t, b[i]) || a[i].statement(HintModule) != b[i].statement(HintModule) {
			t.Fatalf("world %d differs between two runs of one seed", i)
		}
	}
}

func TestStatementNamesNoFix(t *testing.T) {
	for _, w := range worldsOf(t, Config{Seed: 6, Count: 100}) {
		s := w.statement(HintModule)
		if n := strings.Count(s, "\n") + 1; n != len(w.faults) {
			t.Fatalf("%d lines for %d faults:\n%s", n, len(w.faults), s)
		}
		for _, f := range w.faults {
			if strings.Contains(s, f.fn.right.expr) || !strings.Contains(s, f.module+"."+f.fn.Name+"(") {
				t.Errorf("statement shows the fix or lacks the function %s:\n%s", f.fn.Name, s)
			}
			if h := w.statement(HintFunction); strings.Contains(h, f.module+".") {
				t.Errorf("statement with hint function names a module:\n%s", h)
			}
		}
	}
}

func TestConfigErrorsNameFieldAndRange(t *testing.T) {
	for want, cfg := range map[string]Config{
		`split "test" is not one of [train validation heldout]`: {Split: "test"},
		"faults is 7; allowed are 1 to 6":                       {Faults: 7},
		"functions_per_file is 5; allowed are 1 to 4":           {FunctionsPerFile: 5},
		`families: "typo" is not one of [operator`:              {Families: []Family{"typo"}},
		`hint "line" is not one of [module function]`:           {Hint: "line"},
		"distractors is -1; allowed are 0 to 8":                 {Distractors: -1},
	} {
		_, err := cfg.withDefaults()
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

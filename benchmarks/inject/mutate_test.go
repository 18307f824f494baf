package inject

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

const sample = `"""Module."""
LIMIT = 3


def pick(seq, n=1):
    """Docstring with 7 and True."""
    if not seq:
        return None
    if n < LIMIT and seq[0] == 'é + 1':
        return seq[1:]
    total = n - 2  # n - 2
    for i in range(n):
        total += divmod(i, n)[0]
    return total if total else f"{n + 1}"


class Box:
    size = 4

    def full(self) -> "1 + 2":
        return self.size >= 4 or True
`

// list is what mutate.py finds in the sample, one line each.
func list(t *testing.T, families ...string) []string {
	t.Helper()
	all, err := listMutants(context.Background(), Config{Package: "p==1", Python: "python3", Families: families}, map[string]string{"p/m.py": sample})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range all {
		line := strings.Split(m.apply(sample), "\n")[m.Line-1]
		out = append(out, fmt.Sprintf("%s %s %s:%d: %s", m.Function, m.Family, m.Kind, m.Line, strings.TrimSpace(line)))
	}
	return out
}

func TestMutantsOfASample(t *testing.T) {
	for family, want := range map[string][]string{
		"operator": {
			"pick operator comparison:9: if n > LIMIT and seq[0] == 'é + 1':",
			"pick operator boolean:9: if n < LIMIT or seq[0] == 'é + 1':",
			"pick operator comparison:9: if n < LIMIT and seq[0] != 'é + 1':",
			"pick operator arithmetic:11: total = n + 2  # n - 2",
			"Box.full operator comparison:21: return self.size <= 4 or True",
			"Box.full operator boolean:21: return self.size >= 4 and True",
		},
		"constant": {
			"pick constant number:9: if n < LIMIT and seq[2] == 'é + 1':",
			"pick constant number:10: return seq[3:]",
			"pick constant number:11: total = n - 4  # n - 2",
			"pick constant number:13: total += divmod(i, n)[2]",
			"Box.full constant number:21: return self.size >= 6 or True",
			"Box.full constant truth:21: return self.size >= 4 or False",
		},
		"off_by_one": {
			"pick off_by_one boundary:9: if n <= LIMIT and seq[0] == 'é + 1':",
			"pick off_by_one index:9: if n < LIMIT and seq[1] == 'é + 1':",
			"pick off_by_one index:10: return seq[2:]",
			"pick off_by_one range:12: for i in range(n - 1):",
			"pick off_by_one index:13: total += divmod(i, n)[1]",
			"Box.full off_by_one boundary:21: return self.size > 4 or True",
		},
		"swapped": {
			"pick swapped arguments:11: total = 2 - n  # n - 2",
			"pick swapped arguments:13: total += divmod(n, i)[0]",
		},
		"guard": {
			"pick guard removed:7: if n < LIMIT and seq[0] == 'é + 1':",
			"pick guard inverted:7: if seq:",
			"pick guard removed:9: total = n - 2  # n - 2",
			"pick guard expression:14: return total",
		},
	} {
		if got := list(t, family); !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", family, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestEveryMutantParsesAndImports(t *testing.T) {
	all, err := listMutants(context.Background(), Config{Package: "p==1", Python: "python3", Families: Families}, map[string]string{"p/m.py": sample})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		cmd := exec.Command("python3", "-c", m.apply(sample))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%+v: %v: %s", m, err, out)
		}
	}
}

func TestSplitsShareNoFunctionAndPatchesAreUnique(t *testing.T) {
	var text strings.Builder
	for i := range 40 {
		fmt.Fprintf(&text, "def f%d(a, b):\n    return a + b * %d\n\n\ndef g%d(a):\n    return a + 1\n\n\n", i, i, i)
	}
	sources := map[string]string{"p/m.py": text.String()}
	all, err := listMutants(context.Background(), Config{Package: "p==1", Python: "python3", Families: Families}, sources)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, split := range splits[1:] {
		kept := usable(all, split, sources)
		if len(kept) < 5 {
			t.Errorf("split %s has only %d mutants", split, len(kept))
		}
		for _, m := range kept {
			if other := seen[m.Function]; other != "" && other != split {
				t.Errorf("function %s is in %s and %s", m.Function, other, split)
			}
			seen[m.Function] = split
			if strings.Count(m.apply(sources[m.Path]), m.Old) < 1 || strings.HasPrefix(m.Function, "g") && m.Family != "" &&
				m.New == "-" && strings.Count(m.apply(sources[m.Path]), "return a - 1") != 1 {
				t.Errorf("the faulty line of %+v is not unique", m)
			}
		}
	}
	if edits, err := benchmarks.Edits(benchmarks.Diff("p/m.py", all[0].apply(sources["p/m.py"]), sources["p/m.py"])); err != nil || len(edits) != 1 {
		t.Errorf("edits %v, %v", edits, err)
	}
}

func TestSourcesThatDoNotParseAreNamed(t *testing.T) {
	_, err := listMutants(context.Background(), Config{Package: "p==1", Python: "python3", Families: Families}, map[string]string{"p/m.py": "def ("})
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "p/m.py does not parse") {
		t.Errorf("error %v", err)
	}
}

func TestSourcesOfADistribution(t *testing.T) {
	files := []benchmarks.File{{Path: "setup.py"}, {Path: "p/__init__.py"}, {Path: "p/a.py"}, {Path: "p/_version.py"}, {Path: "p/test_a.py"},
		{Path: "p/tests/__init__.py"}, {Path: "p/tests/util.py"}, {Path: "docs/conf.py"}, {Path: "test/test_b.py"}, {Path: "p/data.txt"}}
	got, err := sourcesOf(Config{Package: "p==1"}, files)
	if err != nil || len(got) != 2 {
		t.Errorf("sources %v, %v; want p/__init__.py and p/a.py", got, err)
	}
	if _, err := sourcesOf(Config{Package: "p==1", Sources: []string{"p/b.py"}}, files); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("a source that is not there: %v", err)
	}
	want := append([]string{".pytest.ini", "conftest.py", "p/test_a.py", "p/tests/", "pyproject.toml", "pytest.ini", "setup.cfg", "test/", "tox.ini"}, pypkg.Runners...)
	slices.Sort(want)
	if got := pypkg.Protected(files); !slices.Equal(got, want) {
		t.Errorf("protected %v, want %v", got, want)
	}
}

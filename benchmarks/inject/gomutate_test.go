package inject

import (
	"archive/zip"
	"context"
	"fmt"
	"go/format"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/testrun"
)

const goSample = `// Package tiny is small.
package tiny

import "errors"

// ErrEmpty says that there is nothing.
var ErrEmpty = errors.New("empty")

// Clamp bounds x.
func Clamp(x, lo, hi int) int {
	if x < lo {
		return lo
	}
	if x > hi {
		x = hi
	} else {
		x += 0
	}
	return x
}

// Spread is the greatest less the least.
func Spread(list []int) (int, error) {
	if len(list) == 0 {
		return 0, ErrEmpty
	}
	least, most := list[0], list[0]
	for _, v := range list {
		least = min(least, v)
		most = max(most, v)
	}
	return most - least, nil
}

// Box holds a number.
type Box struct{ n int }

// Add adds.
func (b *Box) Add(n int) bool {
	b.n += n
	return b.n > 0 && n != 1 && true
}
`

const goSampleTest = `package tiny

import "testing"

func TestClamp(t *testing.T) {
	for _, c := range []struct{ name string; x, want int }{{"low", 0, 1}, {"in", 2, 2}, {"high", 9, 4}} {
		t.Run(c.name, func(t *testing.T) {
			if got := Clamp(c.x, 1, 4); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestSpread(t *testing.T) {
	if got, err := Spread([]int{3, 9, 4}); got != 6 || err != nil {
		t.Errorf("spread %d, %v", got, err)
	}
}

func TestEmpty(t *testing.T) {
	if _, err := Spread(nil); err == nil {
		t.Error("no error")
	}
}

func TestBox(t *testing.T) {
	var b Box
	if !b.Add(2) || b.n != 2 {
		t.Errorf("box %v", b)
	}
}

func TestBroken(t *testing.T) { t.Skip("always") }
`

func goList(t *testing.T, families ...string) []mutant {
	t.Helper()
	all, err := listMutants(context.Background(), Config{Package: "example.com/tiny@v1.0.0", Families: families}, map[string]string{"tiny.go": goSample})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestGoMutantsOfASample(t *testing.T) {
	for family, want := range map[string][]string{
		"operator":   {"Clamp comparison: if x > lo {", "Clamp comparison: if x < hi {", "Spread comparison: if len(list) != 0 {", "Spread arithmetic: return most + least, nil", "Box.Add boolean: return b.n > 0 && n != 1 || true", "Box.Add comparison: return b.n < 0 && n != 1 && true", "Box.Add boolean: return b.n > 0 || n != 1 && true", "Box.Add comparison: return b.n > 0 && n == 1 && true"},
		"off_by_one": {"Clamp boundary: if x <= lo {", "Clamp boundary: if x >= hi {", "Spread index: least, most := list[1], list[0]", "Spread index: least, most := list[0], list[1]", "Box.Add boundary: return b.n >= 0 && n != 1 && true"},
		"guard":      {"Clamp removed: if x > hi {", "Spread removed: least, most := list[0], list[0]"},
		"branch":     {"Clamp exchanged: if x > hi {"},
		"exception":  {"Spread lost: return 0, nil"},
		"order":      {"Spread statements: most = max(most, v)"},
	} {
		var got []string
		for _, m := range goList(t, family) {
			line := strings.Split(m.apply(goSample), "\n")[m.Line-1]
			got = append(got, fmt.Sprintf("%s %s: %s", m.Function, m.Kind, strings.TrimSpace(line)))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", family, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestGoMutantsAreFormattedAndCompile: what gives a fault away to a formatter or the compiler is none.
func TestGoMutantsAreFormattedAndCompile(t *testing.T) {
	all := goList(t, Families...)
	if len(all) < 30 {
		t.Errorf("only %d mutants", len(all))
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/tiny\n\ngo 1.22\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var packages strings.Builder
	for i, m := range all {
		text := m.apply(goSample)
		if b, err := format.Source([]byte(text)); err != nil || string(b) != text {
			t.Errorf("%+v is not formatted: %v", m, err)
		}
		sub := filepath.Join(dir, fmt.Sprintf("m%02d", i))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sub, "tiny.go"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&packages, "%s\n", m.Family)
	}
	cmd := exec.Command("go", "build", "./...")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("a mutant does not compile: %v\n%s", err, out)
	}
	for _, family := range []string{"operator", "constant", "off_by_one", "swapped", "guard", "branch", "removed", "order", "chain", "exception", "variable"} {
		if !strings.Contains(packages.String(), family+"\n") {
			t.Errorf("no mutant of family %s", family)
		}
	}
}

// proxied puts the sample into a module proxy of files, so that no network is needed.
func proxied(t *testing.T) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "example.com", "tiny", "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	mod := "module example.com/tiny\n\ngo 1.22\n"
	f, err := os.Create(filepath.Join(at, "v1.0.0.zip"))
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for name, text := range map[string]string{"go.mod": mod, "tiny.go": goSample, "tiny_test.go": goSampleTest} {
		w, err := z.Create("example.com/tiny@v1.0.0/" + name)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	for name, text := range map[string]string{"v1.0.0.mod": mod, "v1.0.0.info": `{"Version": "v1.0.0"}`} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cache := t.TempDir()
	t.Setenv("GOMODCACHE", cache)
	t.Setenv("GOPROXY", "file://"+strings.TrimSuffix(at, "/example.com/tiny/@v"))
	t.Setenv("GONOSUMDB", "*")
	t.Cleanup(func() { _ = exec.Command("chmod", "-R", "u+w", cache).Run() })
}

// TestMadeGoTasksHold makes tasks from a Go module and runs its tests in sandboxes without a network.
func TestMadeGoTasksHold(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the standard library")
	}
	proxied(t)
	ctx := context.Background()
	cache, err := os.MkdirTemp("", "milepost-go-build-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(cache) })
	w := benchtest.Open(t, "")
	driver, err := local.New(local.Config{Root: t.TempDir(), ReadOnly: []string{cache}})
	if err != nil {
		t.Fatal(err)
	}
	e := env.New(driver)
	t.Cleanup(func() { _ = e.Close() })
	runner := testrun.New(testrun.Default(), e, w.Bases, w.Blobs)
	t.Cleanup(func() { _ = runner.Close() })
	w.Checker.Runner = runner
	out := filepath.Join(t.TempDir(), "set")
	cfg := Config{Package: "example.com/tiny@v1.0.0", Count: 1, Seed: 3, Cache: t.TempDir(), GoCache: cache, Shares: Shares{2: 1}, MaxFail: .9}
	if _, err := Make(ctx, cfg, w.Checker, out, nil); err != nil {
		t.Fatal(err)
	}
	taken, err := benchmarks.LoadCertified(out, benchmarks.TrustRequire, nil)
	if err != nil || len(taken.Tasks) != 1 {
		t.Fatalf("%+v, %v", taken, err)
	}
	for _, task := range taken.Tasks {
		if len(task.FailToPass) == 0 || len(task.PassToPass) == 0 || slices.Contains(task.Tests, "example.com/tiny::TestBroken") ||
			len(task.Tests) != 7 || task.Meta["faults"] != "2" || !slices.Contains(task.Protected, "tiny_test.go") {
			t.Errorf("%s: fails %v, passes %v, %v", task.ID, task.FailToPass, task.PassToPass, task.Meta)
		}
		if !strings.HasPrefix(task.Statement, "example.com/tiny misbehaves: ") {
			t.Errorf("statement %q", task.Statement)
		}
		for _, line := range benchmarks.FixLines(task.ReferencePatch) {
			if strings.Contains(task.Statement, line) {
				t.Errorf("the statement tells the fix: %q", line)
			}
		}
	}
}

func TestSharesOfFaults(t *testing.T) {
	cfg := Config{Faults: 1, Shares: Shares{1: 5, 2: 3, 4: 2}}
	counts := map[int]int{}
	sizes := cfg.sizes(4000, rand.New(rand.NewPCG(1, 1)))
	for _, n := range sizes {
		counts[n]++
	}
	for n, want := range map[int]float64{1: 2000, 2: 1200, 4: 800} {
		if math.Abs(float64(counts[n])-want) > 120 {
			t.Errorf("%d tasks of %d faults, want about %v", counts[n], n, want)
		}
	}
	if !slices.Equal(sizes, cfg.sizes(4000, rand.New(rand.NewPCG(1, 1)))) {
		t.Error("the same seed draws other sizes")
	}
}

func TestPlacesOfFaults(t *testing.T) {
	var caught []catch
	for i := range 12 {
		caught = append(caught, catch{mutant: mutant{Path: fmt.Sprintf("f%d.py", i%3), Function: fmt.Sprint(i), Start: 10 * i, End: 10*i + 1}})
	}
	for place, files := range map[Place]int{PlaceOneFile: 1, PlaceFiles: 3} {
		m := &maker{cfg: Config{Place: place}, sizes: []int{3}}
		sets := m.combine(caught)
		if len(sets) < 3 {
			t.Errorf("%s: %d sets", place, len(sets))
		}
		for _, set := range sets {
			paths := map[string]bool{}
			for _, c := range set {
				paths[c.Path] = true
			}
			if len(paths) != files || len(set) != 3 {
				t.Errorf("%s: %d faults in %d files", place, len(set), len(paths))
			}
		}
	}
}

func TestGoModuleErrorsSayWhatIsWanted(t *testing.T) {
	for want, pkg := range map[string]string{"is not NAME==VERSION": "example.com/tiny", "or MODULE@vVERSION": "Example@1"} {
		c := Config{Package: pkg, Cache: "c"}
		if _, err := c.withDefaults(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", pkg, err)
		}
	}
}

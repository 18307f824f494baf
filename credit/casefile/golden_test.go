package casefile_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit/casefile"
)

const goldenDir = "../testdata/golden"

// goldenCount is the number of golden cases. It changes with the folder, so that a lost file fails the test.
const goldenCount = 35

func TestGolden(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(goldenDir, "*"))
	if err != nil || len(files) != goldenCount {
		t.Fatalf("%d golden files (error %v), want %d", len(files), err, goldenCount)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c := decodeFile(t, file)
			if len(c.Expected) == 0 || len(c.Expected) != len(c.Inputs) {
				t.Fatalf("case expects %d episodes and has %d", len(c.Expected), len(c.Inputs))
			}
			r, err := c.Recompute()
			if err != nil {
				t.Fatal(err)
			}
			compare(t, r.Episodes, c.Expected)
		})
	}
}

func decodeFile(t *testing.T, file string) *casefile.Case {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := casefile.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func compare(t *testing.T, got, want []milepost.EpisodeCredit) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d episodes, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.ID != w.ID || g.Excluded != w.Excluded || len(g.Steps) != len(w.Steps) || (g.Steps == nil) != (w.Steps == nil) {
			t.Fatalf("episode %d: %s excluded %v %d steps, want %s %v %d", i, g.ID, g.Excluded, len(g.Steps), w.ID, w.Excluded, len(w.Steps))
		}
		for k := range w.Steps {
			a, b := values(g.Steps[k]), values(w.Steps[k])
			for j := range b {
				if !(math.Abs(a[j]-b[j]) <= 1e-9) {
					t.Fatalf("episode %s step %d: got %+v, want %+v", w.ID, k, g.Steps[k], w.Steps[k])
				}
			}
		}
	}
}

func values(c milepost.StepCredit) []float64 {
	return []float64{c.PhiVer, c.PhiNav, c.R, c.B, c.F, c.P, c.AOut, c.Advantage}
}

package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestBootstrapKnown(t *testing.T) {
	if m, lo, hi := Bootstrap(nil); m != 0 || lo != 0 || hi != 0 {
		t.Errorf("nothing: %v %v %v", m, lo, hi)
	}
	if m, lo, hi := Bootstrap([]float64{.5, .5, .5}); m != .5 || lo != .5 || hi != .5 {
		t.Errorf("constant: %v %v %v", m, lo, hi)
	}
	x := make([]float64, 400)
	for i := range x {
		x[i] = float64(i % 2)
	}
	// 400 coin flips: the standard error of the mean is 0.025.
	m, lo, hi := Bootstrap(x)
	if m != .5 || math.Abs(lo-.451) > .004 || math.Abs(hi-.549) > .004 {
		t.Errorf("coin: %v in %v to %v", m, lo, hi)
	}
	if m2, lo2, hi2 := Bootstrap(x); m2 != m || lo2 != lo || hi2 != hi {
		t.Error("not repeatable")
	}
}

// TestBootstrapCovers: about 95 % of intervals over 60 tasks hold the truth.
func TestBootstrapCovers(t *testing.T) {
	if testing.Short() {
		t.Skip("300 bootstraps")
	}
	r := rand.New(rand.NewPCG(7, 7))
	held := 0
	const studies = 300
	for range studies {
		x := make([]float64, 60)
		for i := range x {
			if r.Float64() < .4 {
				x[i] = 1
			}
		}
		if _, lo, hi := Bootstrap(x); lo <= .4 && .4 <= hi {
			held++
		}
	}
	if share := float64(held) / studies; share < .90 || share > .99 {
		t.Errorf("%.3f of intervals hold the truth", share)
	}
}

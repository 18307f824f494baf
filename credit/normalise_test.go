package credit

import (
	"math"
	"testing"
)

// Numbers whose squares overflow or vanish are normalised like any others.
func TestExtremeNumbersAreNormalised(t *testing.T) {
	for _, unit := range []float64{1e-250, 1, 1e200, 1e308} {
		for d, want := range map[deviation]float64{sampleStd: math.Sqrt(.5), populationStd: 1} {
			x := []float64{0, unit}
			normalise(x, d, 0)
			if math.Abs(x[1]-want) > 1e-12 || math.Abs(x[0]+want) > 1e-12 {
				t.Errorf("unit %g, deviation %d: %v, want ±%v", unit, d, x, want)
			}
		}
	}
	x := []float64{0, 1e-200}
	normalise(x, sampleStd, 1e-6)
	if x[0] != -x[1] || !(x[1] >= 0 && x[1] < 1e-190) {
		t.Errorf("below eps: %v", x)
	}
	for _, unit := range []float64{1, 1e200} {
		mean, scale := whitening([]float64{0, unit, 0, unit}, nil)
		if got := (unit - mean) * scale; math.Abs(got-math.Sqrt(.75)) > 1e-6 {
			t.Errorf("whitening in units of %g gives %v, want %v", unit, got, math.Sqrt(.75))
		}
		if mean, std := spreadOf([]float64{0, unit}); math.Abs(mean/unit-.5) > 1e-12 || math.Abs(std/unit-math.Sqrt(.5)) > 1e-12 {
			t.Errorf("spread in units of %g: %v, %v", unit, mean, std)
		}
	}
	if _, std := spreadOf([]float64{-math.MaxFloat64, math.MaxFloat64}); !isFinite(std) {
		t.Errorf("std is %v", std)
	}
}

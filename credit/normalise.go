package credit

import (
	"math"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"
)

// deviation says how a group of numbers is centred and scaled.
type deviation int

const (
	sampleStd     deviation = iota // (x-mean)/(std+eps), std with n-1
	populationStd                  // (x-mean)/(std+eps), std with n
	meanOnly                       // x-mean
)

// deviation returns meanOnly where group_norm asks for it and scaled otherwise.
func (c *Config) deviation(scaled deviation) deviation {
	if c.GroupNorm == NormMean {
		return meanOnly
	}
	return scaled
}

// normalise centres and scales x in place. A group of one and all-equal numbers give exactly 0.
func normalise(x []float64, d deviation, eps float64) {
	if allEqual(x) {
		clear(x)
		return
	}
	unit := 1.0
	if d != meanOnly {
		unit = unitOf(x)
	}
	floats.Scale(1/unit, x)
	mean, std := stat.MeanStdDev(x, nil)
	if d == populationStd {
		mean, std = stat.PopMeanStdDev(x, nil)
	}
	floats.AddConst(-mean, x)
	if d != meanOnly {
		floats.Scale(1/(std+eps/unit), x)
	}
}

// unitOf is what numbers are divided by before they are squared: 1, or their largest absolute value where squares would
// overflow or vanish, which would turn their differences into 0 or infinity without a word. x has two different numbers.
func unitOf(x []float64) float64 {
	largest := 0.0
	for _, v := range x {
		largest = max(largest, math.Abs(v))
	}
	if largest > 1e100 || largest < 1e-100 && 1/largest <= math.MaxFloat64 {
		return largest
	}
	return 1
}

func allEqual(x []float64) bool {
	for _, v := range x {
		if v != x[0] {
			return false
		}
	}
	return true
}

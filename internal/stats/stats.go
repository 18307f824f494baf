// Package stats holds the statistics that evaluations share, of the trainer and of `milepost eval`: a mean over tasks with
// its interval. A further statistic that both need is a further function here; what one alone needs stays with it.
package stats

import (
	"math/rand/v2"
	"sort"
)

// Resamples is how often [Bootstrap] draws.
const Resamples = 10000

// Mean is the mean of x, 0 where x is empty.
func Mean(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s / float64(len(x))
}

// Bootstrap returns the mean of x, one value a task, and its 95 % percentile interval over tasks: [Resamples] draws with
// replacement, of a fixed seed, so that the same values give the same interval. All are 0 where x is empty.
func Bootstrap(x []float64) (mean, low, high float64) {
	if len(x) == 0 {
		return 0, 0, 0
	}
	r := rand.New(rand.NewPCG(1, uint64(len(x))))
	means := make([]float64, Resamples)
	for i := range means {
		s := 0.0
		for range x {
			s += x[r.IntN(len(x))]
		}
		means[i] = s / float64(len(x))
	}
	sort.Float64s(means)
	return Mean(x), means[Resamples*25/1000], means[Resamples*975/1000-1]
}

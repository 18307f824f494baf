package evaluate

import (
	"math"
	"testing"

	milepost "github.com/milepost-rl/milepost"

	"pgregory.net/rapid"
)

// subsets is the mean, over all subsets of k of the scores, of the greatest: what the estimators must equal.
func subsets(scores []float64, k int) float64 {
	sum, count := 0.0, 0
	for mask := range 1 << len(scores) {
		best, n := math.Inf(-1), 0
		for i, s := range scores {
			if mask>>i&1 == 1 {
				best, n = max(best, s), n+1
			}
		}
		if n == k {
			sum, count = sum+best, count+1
		}
	}
	return sum / float64(count)
}

// TestAtKAreMeansOverSubsets: pass@k and score@k are what enumeration of all subsets of k attempts gives.
func TestAtKAreMeansOverSubsets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		k := rapid.IntRange(1, n).Draw(t, "k")
		scores := rapid.SliceOfN(rapid.Float64Range(0, 1), n, n).Draw(t, "scores")
		c := rapid.IntRange(0, n).Draw(t, "c")
		binary := make([]float64, n)
		for i := range c {
			binary[i] = 1
		}
		if got, err := ScoreAtK(scores, k); err != nil || math.Abs(got-subsets(scores, k)) > 1e-12 {
			t.Fatalf("score@%d of %v is %v, %v; want %v", k, scores, got, err, subsets(scores, k))
		}
		got, err := PassAtK(n, c, k)
		if err != nil || math.Abs(got-subsets(binary, k)) > 1e-12 {
			t.Fatalf("pass@%d of %d in %d is %v, %v; want %v", k, c, n, got, err, subsets(binary, k))
		}
	})
}

// TestPassAtKLarge: the values of the paper's own numerically stable program, and no overflow.
func TestPassAtKLarge(t *testing.T) {
	for _, c := range []struct {
		n, c, k int
		want    float64
	}{{200, 1, 100, .5}, {200, 100, 1, .5}, {10000, 1, 1, .0001}, {10000, 0, 5000, 0}, {4, 1, 4, 1}} {
		if got, err := PassAtK(c.n, c.c, c.k); err != nil || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("pass@%d of %d in %d: %v, %v; want %v", c.k, c.c, c.n, got, err, c.want)
		}
	}
}

func TestAtKBounds(t *testing.T) {
	for _, f := range []func() (float64, error){
		func() (float64, error) { return PassAtK(4, 1, 5) },
		func() (float64, error) { return PassAtK(4, 1, 0) },
		func() (float64, error) { return PassAtK(4, 5, 1) },
		func() (float64, error) { return ScoreAtK([]float64{1}, 2) },
		func() (float64, error) { return ScoreAtK(nil, 1) },
	} {
		if v, err := f(); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("%v, %v; want an error of kind invalid", v, err)
		}
	}
}

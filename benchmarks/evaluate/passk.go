package evaluate

import (
	"slices"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/stats"
)

// PassAtK is the unbiased estimate, from n attempts of which c succeeded, of the chance that at least one of k succeeds:
// 1 - C(n-c, k) / C(n, k), as a product. Source: Chen et al. 2021, arXiv 2107.03374, section 2.1. KindInvalid where k is
// not from 1 to n, or c not from 0 to n.
func PassAtK(n, c, k int) (float64, error) {
	if err := checkK(n, k); err != nil {
		return 0, err
	}
	if c < 0 || c > n {
		return 0, milepost.E("evaluate: pass@k", milepost.KindInvalid, "%d of %d attempts succeeded; allowed are 0 to %d", c, n, n)
	}
	if n-c < k {
		return 1, nil
	}
	miss := 1.0
	for i := n - c + 1; i <= n; i++ {
		miss *= 1 - float64(k)/float64(i)
	}
	return 1 - miss, nil
}

// ScoreAtK is the unbiased estimate, from the scores of n attempts, of the best score among k: the mean of the greatest
// over all subsets of k. Where scores are 0 and 1 it is PassAtK. KindInvalid where k is not from 1 to n.
func ScoreAtK(scores []float64, k int) (float64, error) {
	n := len(scores)
	if err := checkK(n, k); err != nil {
		return 0, err
	}
	sorted := slices.Sorted(slices.Values(scores))
	// The i-th smallest (from 1) is the greatest of C(i-1, k-1) subsets of C(n, k); p is that share, from i = n down.
	sum, p := 0.0, float64(k)/float64(n)
	for i := n; i >= k; i-- {
		sum += sorted[i-1] * p
		if i > 1 {
			p *= float64(i-k) / float64(i-1)
		}
	}
	return sum, nil
}

func checkK(n, k int) error {
	if k < 1 || k > n {
		return milepost.E("evaluate: pass@k", milepost.KindInvalid, "k is %d and there are %d attempts; allowed are 1 to %d", k, n, n)
	}
	return nil
}

// Interval is a mean over tasks with its 95 % interval; see Method.
type Interval struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Tasks int     `json:"tasks"` // that it is over
}

// Method says in words how intervals come about.
const Method = "mean over tasks; 95 % percentile bootstrap over tasks, 10000 resamples, fixed seed"

// over is the interval of values, one a task.
func over(values []float64) Interval {
	m, low, high := stats.Bootstrap(values)
	return Interval{m, low, high, len(values)}
}

// AtK is a figure at one k, over the tasks with at least k graded attempts.
type AtK struct {
	K int `json:"k"`
	Interval
}

// atEach computes a figure for each k up to the most attempts that any task has.
func atEach(tasks []TaskRow, figure func(TaskRow, int) (float64, error)) ([]AtK, error) {
	most := 0
	for _, t := range tasks {
		most = max(most, t.Graded)
	}
	out := make([]AtK, 0, most)
	for k := 1; k <= most; k++ {
		var values []float64
		for _, t := range tasks {
			if t.Graded < k {
				continue
			}
			v, err := figure(t, k)
			if err != nil {
				return nil, err
			}
			values = append(values, v)
		}
		out = append(out, AtK{k, over(values)})
	}
	return out, nil
}

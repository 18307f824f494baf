package ablation

import "sort"

// correct returns the p values of a family of comparisons, corrected: in the order of p, never below it, at most 1.
func correct(p []float64, rule Correction) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return p[order[a]] < p[order[b]] })
	out := make([]float64, len(p))
	switch rule {
	case CorrectHolm: // step down: the smallest times m, the next times m−1, …, never smaller than the one before
		at := 0.0
		for rank, i := range order {
			at = max(at, min(1, p[i]*float64(len(p)-rank)))
			out[i] = at
		}
	case CorrectBH: // step up: the largest times m/m, the next times m/(m−1), …, never larger than the one before
		at := 1.0
		for rank := len(order) - 1; rank >= 0; rank-- {
			i := order[rank]
			at = min(at, max(p[i], p[i]*float64(len(p))/float64(rank+1))) // p·m/m may round below p
			out[i] = at
		}
	default:
		copy(out, p)
	}
	return out
}

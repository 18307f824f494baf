package ablation

import (
	"maps"
	"slices"
	"sort"

	"gonum.org/v1/gonum/integrate"
	"gonum.org/v1/gonum/stat"

	"github.com/milepost-rl/milepost/orchestrator"
)

// taskRates is the resolved share of each task.
func taskRates(e orchestrator.Evaluation) map[string]float64 {
	out := make(map[string]float64, len(e.Tasks))
	for id, rewards := range e.Tasks {
		out[id] = stat.Mean(rewards, nil)
	}
	return out
}

// meanOf is the mean over tasks, summed in the order of their ids so that it is the same every time.
func meanOf(tasks map[string]float64) float64 {
	sum := 0.0
	for _, id := range slices.Sorted(maps.Keys(tasks)) {
		sum += tasks[id]
	}
	return sum / float64(len(tasks))
}

// knot is one measurement of a run's held-out curve.
type knot struct {
	x     float64 // episodes or tokens
	tasks map[string]float64
}

// series is a run's held-out curve over episodes (AtEpisodes) or tokens (AtTokens): x strictly ascending. The cold
// start is its first knot where the run did not measure that itself. Of two measurements at one count the later holds.
func (r Run) series(b Basis, start *orchestrator.Evaluation) []knot {
	var out []knot
	if start != nil && (len(r.Points) == 0 || r.Points[0].Update > 0 || r.Points[0].Tasks == nil) {
		out = append(out, knot{0, taskRates(*start)})
	}
	for _, p := range r.Points {
		if p.Tasks == nil {
			continue
		}
		x := float64(p.Episodes)
		if b == AtTokens {
			x = float64(p.Tokens)
		}
		if n := len(out); n > 0 && out[n-1].x >= x {
			out[n-1].tasks = p.Tasks
			continue
		}
		out = append(out, knot{x, p.Tasks})
	}
	return out
}

// at interpolates each task linearly; nil where x is not on the curve. Tasks that one neighbour lacks are left out.
func at(s []knot, x float64) map[string]float64 {
	i := sort.Search(len(s), func(i int) bool { return s[i].x >= x })
	switch {
	case i == len(s):
		return nil
	case s[i].x == x:
		return s[i].tasks
	case i == 0:
		return nil
	}
	lo, hi := s[i-1], s[i]
	w := (x - lo.x) / (hi.x - lo.x)
	out := map[string]float64{}
	for id, a := range lo.tasks {
		if b, ok := hi.tasks[id]; ok {
			out[id] = (1-w)*a + w*b
		}
	}
	return out
}

// area is each task's mean over the curve from its beginning at 0 to x (trapezoids, divided by x); nil where the curve
// does not span that. Tasks that some knot lacks are left out.
func area(s []knot, x float64) map[string]float64 {
	end := at(s, x)
	if end == nil || len(s) == 0 || s[0].x != 0 || x == 0 {
		return nil
	}
	var xs []float64
	var knots []map[string]float64
	for _, k := range s {
		if k.x < x {
			xs, knots = append(xs, k.x), append(knots, k.tasks)
		}
	}
	xs, knots = append(xs, x), append(knots, end)
	out := map[string]float64{}
	ys := make([]float64, len(xs))
	for id := range end {
		whole := true
		for i, k := range knots {
			v, ok := k[id]
			ys[i], whole = v, whole && ok
		}
		if whole {
			out[id] = integrate.Trapezoidal(xs, ys) / x
		}
	}
	return out
}

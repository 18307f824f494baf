package ablation

import (
	"maps"
	"slices"

	"github.com/milepost-rl/milepost/orchestrator"
)

// sample is one run's value at an update.
type sample struct{ episodes, tokens, value float64 }

// trainBand is the resolved share of the training batches, editedBand the share of their episodes that changed anything.
func trainBand(runs []Run, smooth int) []BandPoint {
	return batchBand(runs, smooth, func(p Point) *float64 { return &p.Train })
}

func editedBand(runs []Run, smooth int) []BandPoint {
	return batchBand(runs, smooth, func(p Point) *float64 { return p.EditedRate })
}

// batchBand is a value of the training batches, each run smoothed for itself; updates without it are left out.
func batchBand(runs []Run, smooth int, of func(Point) *float64) []BandPoint {
	var curves []map[int]sample
	for _, r := range runs {
		points := slices.DeleteFunc(slices.Clone(r.Points), func(p Point) bool { return p.Update == 0 || of(p) == nil })
		values := make([]float64, len(points))
		for i, p := range points {
			values[i] = *of(p)
		}
		c := map[int]sample{}
		for i, v := range movingMean(values, smooth) {
			c[points[i].Update] = sample{float64(points[i].Episodes), float64(points[i].Tokens), v}
		}
		curves = append(curves, c)
	}
	return band(curves)
}

// heldoutBand is the held-out rate at the updates at which every run measured it, cold start included.
func heldoutBand(runs []Run, start *orchestrator.Evaluation) []BandPoint {
	var curves []map[int]sample
	for _, r := range runs {
		c := map[int]sample{}
		if start != nil {
			c[0] = sample{value: meanOf(taskRates(*start))}
		}
		for _, p := range r.Points {
			if p.Heldout != nil {
				c[p.Update] = sample{float64(p.Episodes), float64(p.Tokens), *p.Heldout}
			}
		}
		curves = append(curves, c)
	}
	return band(curves)
}

// band takes mean and range over the curves at each update that all of them have.
func band(curves []map[int]sample) []BandPoint {
	if len(curves) == 0 {
		return nil
	}
	var out []BandPoint
	n := float64(len(curves))
	for _, u := range slices.Sorted(maps.Keys(curves[0])) {
		p := BandPoint{Update: u, Low: curves[0][u].value, High: curves[0][u].value, Runs: len(curves)}
		whole := true
		for _, c := range curves {
			s, ok := c[u]
			whole = whole && ok
			p.Episodes, p.Tokens, p.Mean = p.Episodes+s.episodes/n, p.Tokens+s.tokens/n, p.Mean+s.value/n
			p.Low, p.High = min(p.Low, s.value), max(p.High, s.value)
		}
		if whole {
			p.Mean = min(max(p.Mean, p.Low), p.High) // rounding must not push it out of the band
			out = append(out, p)
		}
	}
	return out
}

// movingMean is the mean over a centred window of the given odd width; at the ends the window is cut.
func movingMean(x []float64, width int) []float64 {
	out := make([]float64, len(x))
	for i := range x {
		lo, hi := max(0, i-width/2), min(len(x), i+width/2+1)
		for _, v := range x[lo:hi] {
			out[i] += v / float64(hi-lo)
		}
	}
	return out
}

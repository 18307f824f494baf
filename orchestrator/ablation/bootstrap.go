package ablation

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// table holds one value for each seed (rows) and task (columns), all there. The values are rates of one arm, or
// differences of two arms already taken seed by seed and task by task, which is what pairs them.
type table struct {
	seeds  []int64
	tasks  []string
	values [][]float64
}

// same is how near a replicate must be to 0 to count as 0: sums of equal shares in another order differ by less.
const same = 1e-12

// estimate is the mean over seeds and tasks with both intervals, and the two-sided p value of the bootstrap.
//
// A replicate draws seeds and, independently, tasks, both with replacement and as many as there are; the tasks drawn
// serve every seed (crossed levels: the pigeonhole bootstrap, Owen 2007). The draws depend on Options.Seed and on the number of seeds and tasks
// only, so that every arm of a complete study is resampled alike. p counts the replicates on the far side of 0, one
// added to counts and replicates (Davison and Hinkley 1997, eq. 4.11): it is never 0.
//
// Resampling both levels counts what is neither of the seed nor of the task, the luck of single attempts, more than
// once, so intervals are wide where that rules (Owen 2007); where the seeds rule and are few, they are narrow.
// TestCoverage has figures.
func (t table) estimate(o Options) (Estimate, float64) {
	e := Estimate{Seeds: t.seeds, Tasks: len(t.tasks), PerSeed: make([]float64, len(t.seeds))}
	for i, row := range t.values {
		e.PerSeed[i] = stat.Mean(row, nil)
	}
	e.Value = stat.Mean(e.PerSeed, nil)
	means := t.replicates(o)
	below, above := 0, 0
	for _, m := range means {
		if m <= same {
			below++
		}
		if m >= -same {
			above++
		}
	}
	slices.Sort(means)
	cut := int(float64(len(means)) * (1 - o.Confidence) / 2)
	e.Bootstrap = Interval{means[cut], means[len(means)-1-cut]} // alike from both ends: the interval of −x is the mirror image
	e.T, _ = student(e.PerSeed, o.Confidence)
	return e, min(1, 2*float64(min(below, above)+1)/float64(len(means)+1))
}

func (t table) replicates(o Options) []float64 {
	r := rand.New(rand.NewPCG(o.Seed, uint64(len(t.seeds))<<32|uint64(len(t.tasks))))
	out := make([]float64, o.Resamples)
	bySeed, times := make([]float64, len(t.seeds)), make([]int, len(t.tasks))
	for i := range out {
		clear(times)
		for range t.tasks {
			times[r.IntN(len(t.tasks))]++
		}
		for s, row := range t.values {
			sum := 0.0
			for k, n := range times {
				sum += float64(n) * row[k]
			}
			bySeed[s] = sum / float64(len(t.tasks))
		}
		sum := 0.0
		for range t.seeds {
			sum += bySeed[r.IntN(len(t.seeds))]
		}
		out[i] = sum / float64(len(t.seeds))
	}
	return out
}

// student is mean ± t·s/√n and the two-sided p value of the mean being 0. Both are nil where t has nothing to go on:
// fewer than two values, or values without any spread.
func student(x []float64, confidence float64) (*Interval, *float64) {
	if len(x) < 2 {
		return nil, nil
	}
	mean, sd := stat.MeanStdDev(x, nil)
	if sd <= same {
		return nil, nil
	}
	dist, scale := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(len(x) - 1)}, sd/math.Sqrt(float64(len(x)))
	half, p := dist.Quantile((1+confidence)/2)*scale, 2*dist.Survival(math.Abs(mean)/scale)
	return &Interval{mean - half, mean + half}, &p
}

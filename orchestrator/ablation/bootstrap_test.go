package ablation

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat"
)

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func makeTable(values [][]float64) table {
	t := table{values: values}
	for s := range values {
		t.seeds = append(t.seeds, int64(s))
	}
	for k := range values[0] {
		t.tasks = append(t.tasks, fmt.Sprint(k))
	}
	return t
}

// enumerate is the whole bootstrap distribution: every draw of seeds with every draw of tasks.
func enumerate(values [][]float64) []float64 {
	var out []float64
	for _, seeds := range draws(len(values)) {
		for _, tasks := range draws(len(values[0])) {
			sum := 0.0
			for _, s := range seeds {
				for _, k := range tasks {
					sum += values[s][k]
				}
			}
			out = append(out, sum/float64(len(seeds)*len(tasks)))
		}
	}
	return out
}

func draws(n int) [][]int {
	out := [][]int{{}}
	for range n {
		var next [][]int
		for _, d := range out {
			for i := range n {
				next = append(next, append(slices.Clone(d), i))
			}
		}
		out = next
	}
	return out
}

// TestReplicatesFollowTheWholeDistribution: 2 seeds and 3 tasks have 4 × 27 draws, which can be listed.
func TestReplicatesFollowTheWholeDistribution(t *testing.T) {
	values := [][]float64{{.75, -.25, 0}, {.25, .25, -.5}}
	all := enumerate(values)
	if len(all) != 108 {
		t.Fatalf("%d draws", len(all))
	}
	o := DefaultOptions()
	o.Resamples = 200000
	got := makeTable(values).replicates(o)
	near(t, "mean", stat.Mean(got, nil), stat.Mean(all, nil), .002)
	near(t, "standard deviation", stat.StdDev(got, nil), stat.PopStdDev(all, nil), .002)
	share := func(x []float64) float64 {
		n := 0
		for _, v := range x {
			if v <= same {
				n++
			}
		}
		return float64(n) / float64(len(x))
	}
	near(t, "share at or below 0", share(got), share(all), .004)
	_, p := makeTable(values).estimate(o)
	above := 0
	for _, v := range all {
		if v >= -same {
			above++
		}
	}
	near(t, "p", p, 2*min(share(all), float64(above)/108), .01)
}

func TestEstimateByHand(t *testing.T) {
	o := DefaultOptions()
	e, p := makeTable([][]float64{{1, 1}, {2, 2}, {3, 3}}).estimate(o)
	near(t, "value", e.Value, 2, 1e-15)
	near(t, "lower end of t", e.T.Low, 2-4.302652729911275/math.Sqrt(3), 1e-9) // t(.975, 2 degrees of freedom)
	near(t, "upper end of t", e.T.High, 2+4.302652729911275/math.Sqrt(3), 1e-9)
	_, pt := student(e.PerSeed, .95)
	near(t, "p of t", *pt, 1-math.Sqrt(6./7), 1e-9) // 2 degrees of freedom: 1 − t/√(t²+2), t² = 12
	// The tasks do not vary, so a mean of three seeds is left: 1 and 3 have 1/27 each, which is more than 2.5 %.
	if e.Bootstrap != (Interval{1, 3}) {
		t.Errorf("bootstrap %v, want 1 to 3", e.Bootstrap)
	}
	near(t, "p without a replicate at or below 0", p, 2./10001, 1e-15)

	one, p := makeTable([][]float64{{.5}}).estimate(o)
	if one.T != nil || one.Bootstrap != (Interval{.5, .5}) || p != 2./10001 {
		t.Errorf("one seed, one task: %+v, p %v", one, p)
	}
	nothing, p := makeTable([][]float64{{0, 0}, {0, 0}}).estimate(o)
	if p != 1 || nothing.Bootstrap != (Interval{}) || nothing.T != nil {
		t.Errorf("no difference anywhere: %+v, p %v", nothing, p)
	}
	if i, q := student([]float64{.1, .1}, .95); i != nil || q != nil {
		t.Errorf("t of a difference that does not vary: %v, p %v", i, q)
	}
}

// coverage is how often the intervals hold the truth and the tests reject it: differences of tasks, seeds and noise
// around delta, as held-out tasks and training seeds make them.
func coverage(seeds, tasks, trials int, delta, luck float64, r *rand.Rand) (boot, t, rejected float64) {
	o := DefaultOptions()
	o.Resamples = 400
	for range trials {
		values := make([][]float64, seeds)
		byTask := make([]float64, tasks)
		for k := range byTask {
			byTask[k] = .2 * r.NormFloat64()
		}
		for s := range values {
			own := luck * r.NormFloat64()
			for k := range byTask {
				values[s] = append(values[s], delta+own+byTask[k]+.25*r.NormFloat64())
			}
		}
		o.Seed = r.Uint64()
		e, p := makeTable(values).estimate(o)
		n := 1 / float64(trials)
		if e.Bootstrap.Contains(delta) {
			boot += n
		}
		if e.T.Contains(delta + stat.Mean(byTask, nil)) { // the tasks as given
			t += n
		}
		if p <= .05 {
			rejected += n
		}
	}
	return boot, t, rejected
}

func TestCoverage(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	boot, student, _ := coverage(8, 60, 600, .1, .03, r)
	t.Logf("8 seeds, 60 tasks: bootstrap %.3f, t over seeds %.3f", boot, student)
	if boot < .92 || boot > .985 {
		t.Errorf("the 95 %% bootstrap interval of 8 seeds holds the truth in %.1f %%", 100*boot)
	}
	if student < .92 || student > .98 {
		t.Errorf("the 95 %% t interval of 8 seeds holds the mean over these tasks in %.1f %%", 100*student)
	}
	boot, student, _ = coverage(3, 60, 600, .1, .03, r)
	t.Logf("3 seeds, 60 tasks: bootstrap %.3f, t over seeds %.3f", boot, student)
	if boot < .82 || student < .92 || student > .98 {
		t.Errorf("3 seeds: bootstrap %.1f %%, t %.1f %%", 100*boot, 100*student)
	}
	boot, student, _ = coverage(3, 60, 600, .1, .2, r)
	t.Logf("3 seeds far apart: bootstrap %.3f, t over seeds %.3f", boot, student)
	if boot > .85 || student < .92 || student > .98 { // this is what the note on few seeds warns of
		t.Errorf("3 seeds far apart: bootstrap %.1f %%, t %.1f %%", 100*boot, 100*student)
	}
	_, _, rejected := coverage(8, 60, 600, 0, .03, r)
	t.Logf("8 seeds without a difference: p ≤ .05 in %.3f", rejected)
	if rejected > .085 {
		t.Errorf("without a difference p is at most .05 in %.1f %%", 100*rejected)
	}
	_, _, power := coverage(8, 60, 200, .15, .03, r)
	if power < .9 {
		t.Errorf("a difference of 15 points is found in %.1f %% only", 100*power)
	}
}

// TestEqualArms: of families of arms that do not differ, no more than the level have one that is called better or worse,
// seeds far apart and few or not. With t uncorrected it would be 18 in 100.
func TestEqualArms(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const families, tasks = 300, 30
	for _, luck := range []float64{.03, .15} {
		wrong := 0
		for range families {
			if different(equalArms(6, 3, tasks, luck, r)) {
				wrong++
			}
		}
		t.Logf("seeds apart by %g: %d of %d families", luck, wrong, families)
		if wrong > families*8/100 { // 5 % and 2.4 of its standard errors
			t.Errorf("seeds apart by %g: an equal arm is called better or worse in %d of %d families", luck, wrong, families)
		}
	}
}

// equalArms is an analysis of arms whose runs differ by their seeds' luck and by that of single attempts alone.
func equalArms(arms, seeds, tasks int, luck float64, r *rand.Rand) *analysis {
	a := &analysis{study: Study{Reference: "0", Options: DefaultOptions()}, rows: map[Basis]map[string]rows{AtEpisodes: {}}}
	a.study.Options.Resamples = 300
	a.result.Tasks = tasks
	for i := range arms {
		name, own := fmt.Sprint(i), rows{}
		for s := range int64(seeds) {
			shift, row := luck*r.NormFloat64(), map[string]float64{}
			for k := range tasks {
				row[fmt.Sprint(k)] = shift + .2*r.NormFloat64()
			}
			own[s] = row
		}
		a.study.Arms = append(a.study.Arms, Arm{Name: name})
		a.rows[AtEpisodes][name] = own
	}
	return a
}

func different(a *analysis) bool {
	a.compare(AtEpisodes)
	return slices.ContainsFunc(a.result.Comparisons, func(c Comparison) bool { return c.Verdict == Better || c.Verdict == Worse })
}

package ablation

import (
	"slices"

	"github.com/milepost-rl/milepost/orchestrator"
)

// analysis is a study on its way to a result.
type analysis struct {
	study  Study
	result Result
	final  map[string]rows           // by arm: the finished runs' shares of each task, after training
	rows   map[Basis]map[string]rows // by basis and arm: the same at the count of the basis
}

// Analyse derives everything that a study shows. It is pure: equal studies give equal results. Only finished runs enter
// the statistics; what is missing is told in Result.Warnings. A study that contradicts itself is an error of kind
// invalid that names the place.
func Analyse(s Study) (Result, error) {
	if err := s.Validate(); err != nil {
		return Result{}, err
	}
	a := &analysis{study: s, final: map[string]rows{}, rows: map[Basis]map[string]rows{}}
	a.result.Reference = s.Reference
	a.progress()
	a.budgets()
	a.collect()
	if s.Start != nil {
		e, _ := a.estimate(rows{0: taskRates(*s.Start)})
		e.Seeds, e.PerSeed = nil, nil // measured once, before any seed
		a.result.Start = e
	}
	for _, arm := range s.Arms {
		a.result.Arms = append(a.result.Arms, a.arm(arm))
	}
	for _, b := range Bases {
		a.compare(b)
	}
	return a.result, nil
}

// progress counts the runs and warns of those that have not ended or end in other weights than the last.
func (a *analysis) progress() {
	for _, arm := range a.study.Arms {
		finished := len(arm.finished())
		a.result.Runs, a.result.Finished = a.result.Runs+len(arm.Runs), a.result.Finished+finished
		if finished < len(arm.Runs) {
			a.warn("%s is unfinished: %d of %d runs have ended; the others enter no statistic", arm.Name, finished, len(arm.Runs))
		}
		if len(arm.Runs) == 0 {
			a.warn("%s has no runs", arm.Name)
		}
		for _, r := range arm.finished() {
			if n := len(r.Points); n > 0 && r.FinalUpdate < r.Points[n-1].Update {
				a.warn("%s, seed %d: the final evaluation is of the weights of update %d, not of the last, %d", arm.Name, r.Seed, r.FinalUpdate, r.Points[n-1].Update)
			}
		}
	}
}

// finished are the runs that ended.
func (a Arm) finished() []Run {
	return slices.DeleteFunc(slices.Clone(a.Runs), func(r Run) bool { return !r.Finished })
}

// budgets finds what every finished run reached.
func (a *analysis) budgets() {
	tasks, first := map[string]bool{}, true
	for _, arm := range a.study.Arms {
		for _, r := range arm.finished() {
			for id := range r.Final.Tasks {
				tasks[id] = true
			}
			var end Point
			if n := len(r.Points); n > 0 {
				end = r.Points[n-1]
			}
			if first {
				a.result.Episodes, a.result.Tokens, first = end.Episodes, end.Tokens, false
			}
			a.result.Episodes, a.result.Tokens = min(a.result.Episodes, end.Episodes), min(a.result.Tokens, end.Tokens)
		}
	}
	a.result.Tasks = len(tasks)
}

// collect takes the shares of each task from the finished runs, after training and on every basis.
func (a *analysis) collect() {
	for _, arm := range a.study.Arms {
		a.final[arm.Name] = a.shares(arm, func(r Run) map[string]float64 { return taskRates(*r.Final) }, "no final rate")
	}
	for _, b := range Bases {
		a.rows[b] = map[string]rows{}
		for _, arm := range a.study.Arms {
			a.rows[b][arm.Name] = a.shares(arm, func(r Run) map[string]float64 {
				return at(r.series(b, a.study.Start), a.count(b))
			}, "its held-out curve does not span the point of "+b.words())
		}
	}
}

// count is where a basis lies, in episodes or tokens.
func (a *analysis) count(b Basis) float64 {
	if b == AtTokens {
		return float64(a.result.Tokens)
	}
	return float64(a.result.Episodes)
}

// shares takes one map of tasks from each finished run and warns of runs that have none.
func (a *analysis) shares(arm Arm, of func(Run) map[string]float64, without string) rows {
	out := rows{}
	for _, r := range arm.finished() {
		if m := of(r); len(m) > 0 {
			out[r.Seed] = m
		} else {
			a.warn("%s, seed %d: %s", arm.Name, r.Seed, without)
		}
	}
	return out
}

// estimate is nil where there is nothing to estimate from.
func (a *analysis) estimate(r rows) (*Estimate, int) {
	t, ok := r.table(r.seeds())
	if !ok {
		return nil, 0
	}
	e, _ := t.estimate(a.study.Options)
	return &e, e.Tasks
}

func (a *analysis) arm(arm Arm) ArmResult {
	out := ArmResult{Name: arm.Name, Runs: len(arm.Runs), Finished: len(arm.finished()), Cost: arm.cost()}
	var tasks int
	if out.Final, tasks = a.estimate(a.final[arm.Name]); out.Final != nil && tasks < a.result.Tasks {
		a.warn("%s: final rate over the %d held-out tasks that all its runs have, of %d", arm.Name, tasks, a.result.Tasks)
	}
	out.AtEpisodes, _ = a.estimate(a.rows[AtEpisodes][arm.Name])
	out.AtTokens, _ = a.estimate(a.rows[AtTokens][arm.Name])
	if a.study.Start != nil {
		start := rows{}
		for s := range a.final[arm.Name] {
			start[s] = taskRates(*a.study.Start)
		}
		out.Gain, _ = a.estimate(a.final[arm.Name].minus(start))
	}
	area := func(b Basis) *Estimate {
		e, _ := a.estimate(a.shares(arm, func(r Run) map[string]float64 {
			return area(r.series(b, a.study.Start), a.count(b))
		}, "no area under the curve over "+string(b)+": it does not begin at 0"))
		return e
	}
	out.AreaEpisodes, out.AreaTokens = area(AtEpisodes), area(AtTokens)
	out.Train, out.Edited, out.Heldout = arm.bands(a.study.Start, a.study.Options.Smooth)
	return out
}

// cost is the mean over the finished runs and the sum over the search.
func (a Arm) cost() MeanCost {
	var c MeanCost
	runs := a.finished()
	for _, r := range runs {
		c.Episodes += float64(r.Cost.Episodes) / float64(len(runs))
		c.Tokens += float64(r.Cost.Tokens) / float64(len(runs))
		c.Probes += float64(r.Cost.Probes) / float64(len(runs))
		c.Active += r.Cost.Active / float64(len(runs))
	}
	for _, t := range a.Search {
		c.Trials, c.TrialUpdates = c.Trials+1, c.TrialUpdates+t.Updates
	}
	return c
}

// bands are the training curve, that of episodes which changed anything, and the held-out curve, over the arm's finished runs; over all of its runs where none has
// finished. They end where the first of the runs ends.
func (a Arm) bands(start *orchestrator.Evaluation, smooth int) (train, edited, heldout []BandPoint) {
	runs := a.finished()
	if len(runs) == 0 {
		runs = a.Runs
	}
	return trainBand(runs, smooth), editedBand(runs, smooth), heldoutBand(runs, start)
}

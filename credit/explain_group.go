package credit

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"

	"github.com/milepost-rl/milepost"
)

// GroupNote are the statistics of a group that A_out comes from.
type GroupNote struct {
	ID         string      `json:"id"`
	Episodes   []string    `json:"episodes"`             // in the statistics, in order
	Rewards    []float64   `json:"rewards"`              // of Episodes
	Excluded   int         `json:"excluded"`             // episodes of the group in no statistic
	Mean       float64     `json:"mean"`                 // of Rewards; 0 without episodes
	Std        float64     `json:"std"`                  // sample standard deviation (n-1); 0 below two episodes
	Objectives []TermNote  `json:"objectives,omitempty"` // where the estimator reads them
	Kept       [2]KeptNote `json:"kept"`                 // by each criterion of dynamic sampling: outcome, advantage
}

// TermNote are the statistics of one objective.
type TermNote struct {
	Name   string    `json:"name"`
	Values []float64 `json:"values"`
	Mean   float64   `json:"mean"`
	Std    float64   `json:"std"`
}

// KeptNote says whether a criterion of dynamic sampling keeps the group, and why.
type KeptNote struct {
	Criterion string `json:"criterion"`
	Kept      bool   `json:"kept"`
	Why       string `json:"why"`
}

// ExplainGroup says what A_out of a group comes from and whether dynamic sampling keeps it. inputs are the episodes of
// one group, credits their credit in the same order.
func (e *Engine) ExplainGroup(inputs []Input, credits []milepost.EpisodeCredit) GroupNote {
	var g group
	n := GroupNote{Rewards: []float64{}, Episodes: []string{}}
	for _, in := range inputs {
		n.ID = in.Episode.Group
		if excluded(in.Episode) {
			n.Excluded++
			continue
		}
		g.episodes, n.Episodes = append(g.episodes, in.Episode), append(n.Episodes, in.Episode.ID)
	}
	n.Rewards = g.rewards()
	n.Mean, n.Std = spreadOf(n.Rewards)
	if NeedsObjectives(e.cfg.Estimator) && len(g.episodes) > 0 {
		n.Objectives = g.terms()
	}
	n.Kept = [2]KeptNote{
		{Criterion: CriterionOutcome, Kept: OutcomesDiffer(inputs), Why: whyOutcome(n.Rewards)},
		{Criterion: CriterionAdvantage, Kept: HasAdvantage(credits), Why: whyAdvantage(credits)},
	}
	return n
}

// terms are the statistics of each objective, by name.
func (g *group) terms() []TermNote {
	var out []TermNote
	for _, name := range slices.Sorted(maps.Keys(g.episodes[0].Outcome.Objectives)) {
		n := TermNote{Name: name, Values: make([]float64, len(g.episodes))}
		for i, e := range g.episodes {
			n.Values[i] = e.Outcome.Objectives[name]
		}
		n.Mean, n.Std = spreadOf(n.Values)
		out = append(out, n)
	}
	return out
}

// spreadOf is mean and sample standard deviation as [normalise] uses them.
func spreadOf(x []float64) (mean, std float64) {
	switch {
	case len(x) == 0:
		return 0, 0
	case allEqual(x):
		return x[0], 0
	}
	unit := unitOf(x)
	scaled := floats.ScaleTo(make([]float64, len(x)), 1/unit, x)
	mean, std = stat.MeanStdDev(scaled, nil)
	return mean * unit, min(std*unit, math.MaxFloat64)
}

func whyOutcome(rewards []float64) string {
	switch {
	case len(rewards) == 0:
		return "no episode is in the statistics"
	case allEqual(rewards):
		return fmt.Sprintf("every outcome reward is %g", rewards[0])
	}
	return "outcome rewards differ"
}

func whyAdvantage(credits []milepost.EpisodeCredit) string {
	largest := 0.0
	for i := range credits {
		for t := range credits[i].Steps {
			largest = max(largest, math.Abs(credits[i].Steps[t].Advantage))
		}
	}
	return fmt.Sprintf("the largest |A| of the group is %.4g; it takes more than %g", largest, signal)
}

package credit

import (
	"maps"
	"slices"

	"github.com/milepost-rl/milepost"
)

// group is what an estimator sees: the episodes sampled for one task from one dispatch, without those that are in no
// statistic (infra_error, cancelled).
type group struct {
	id       string
	episodes []*milepost.Episode
}

// estimator writes A_out of every step into out, which has one slice an episode and one number a step, all 0. It
// reads nothing but its arguments. An error names the episode.
type estimator func(c *Config, g *group, out [][]float64) error

// registry is the one list of outcome estimators, by the name that a configuration uses.
var registry = map[string]estimator{
	"grpo":                  grpo,
	"dr_grpo":               drGRPO,
	"rloo":                  rloo,
	"reinforce_pp_baseline": reinforcePPBaseline,
	"dapo":                  dapo,
	"mo_grpo":               moGRPO,
	"gigpo":                 gigpo,
	"hgpo":                  hgpo,
	"graph_gpo":             graphGPO,
	"ppo_gae":               ppoGAE,
}

// whitened are the estimators whose A_out is whitened over the update's trained tokens afterwards ([Engine.Whiten]).
var whitened = map[string]bool{"reinforce_pp_baseline": true}

// Estimators returns the names of the outcome estimators in alphabetical order.
func Estimators() []string { return slices.Sorted(maps.Keys(registry)) }

// rewards returns the outcome reward R of each episode.
func (g *group) rewards() []float64 {
	r := make([]float64, len(g.episodes))
	for i, e := range g.episodes {
		r[i] = e.Outcome.Reward
	}
	return r
}

// spread adds each episode's value to all of its steps.
func spread(out [][]float64, values []float64) {
	for i, steps := range out {
		for t := range steps {
			steps[t] += values[i]
		}
	}
}

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
	values   [][]float64   // Input.Values of each episode
	tokens   []TokenCredit // one an episode, written by an estimator with values; nil for the others
}

// estimator writes A_out of every step into out, which has one slice an episode and one number a step, all 0. It
// reads nothing but its arguments. An estimator with values writes g.tokens as well. An error names the episode.
type estimator func(c *Config, g *group, out [][]float64) error

// entry is one line of the registry: an estimator, its rule in one line, and what it asks of its caller beside rewards
// and states.
type entry struct {
	assign     estimator
	rule       string // for people; the file of the estimator has the whole of it
	objectives bool   // reads Outcome.Objectives, one number an objective (objectives.go)
	values     bool   // needs a value of every trained token; Assign refuses it without
	whitened   bool   // A_out is always whitened over the update's trained tokens afterwards ([Engine.Whiten])
}

// registry is the one list of outcome estimators, by the name that a configuration uses.
var registry = map[string]entry{
	"grpo":                  {assign: grpo, rule: "(R - mean) / (std + eps)"},
	"dr_grpo":               {assign: drGRPO, rule: "R - mean"},
	"rloo":                  {assign: rloo, rule: "R - mean of the others"},
	"reinforce_pp_baseline": {assign: reinforcePPBaseline, rule: "R - mean, whitened over the update's tokens", whitened: true},
	"dapo":                  {assign: dapo, rule: "(R - mean) / (std + eps)"},
	"mo_grpo":               {assign: moGRPO, rule: "sum over objectives of (value - mean) / (std + eps)", objectives: true},
	"gigpo":                 {assign: gigpo, rule: "(R - mean) / (std + eps) + omega * (the same of discounted returns at the same state)"},
	"hgpo":                  {assign: hgpo, rule: "weighted mean over contexts of (discounted return - mean) / (std + eps)"},
	"graph_gpo":             {assign: graphGPO, rule: "(R - mean) / (std + eps) + (the same of distance to success at the same state)"},
	"ppo_gae":               {assign: ppoGAE, rule: "generalised advantage estimate from the value head", values: true},
}

// Rule is an estimator's A_out in one line, for people; "" for a name that is none.
func Rule(estimator string) string { return registry[estimator].rule }

// Estimators returns the names of the outcome estimators in alphabetical order.
func Estimators() []string { return slices.Sorted(maps.Keys(registry)) }

// NeedsObjectives reports whether an estimator reads Outcome.Objectives; false for a name that is none.
func NeedsObjectives(estimator string) bool { return registry[estimator].objectives }

// NeedsValues reports whether an estimator needs per-token values from a value head; false for a name that is none.
func NeedsValues(estimator string) bool { return registry[estimator].values }

// Whitened reports whether an estimator's A_out is whitened over the update afterwards; false for a name that is none.
func Whitened(estimator string) bool { return registry[estimator].whitened }

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

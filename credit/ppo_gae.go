package credit

import "github.com/milepost-rl/milepost"

// ppoGAE is refused by Assign: it needs a value per token, which an episode does not carry. Source: PPO, arXiv
// 1707.06347. The trainer's value head gives the values and [GAE] turns them into advantages.
func ppoGAE(_ *Config, g *group, _ [][]float64) error {
	for _, e := range g.episodes {
		return milepost.E(opAssign, milepost.KindInvalid,
			"episode %s: estimator ppo_gae needs per-token values from a value head, and there are none", e.ID)
	}
	return nil
}

// GAE returns the advantage of each token of one sequence: delta = r + gamma*V' - V, A = delta + gamma*lambda*A', where
// V' and A' are those of the next trained token (0 after the last). All slices have one element a token; at an
// untrained token the values pass unchanged through and the advantage is 0. Source: arXiv 1707.06347, in the masked form
// of verl's core_algos. Slices of different length and values that are not finite are errors of kind invalid.
func GAE(rewards, values []float64, trained []bool, gamma, lambda float64) ([]float64, error) {
	const op = "credit: gae"
	if len(values) != len(rewards) || len(trained) != len(rewards) {
		return nil, milepost.E(op, milepost.KindInvalid,
			"%d rewards, %d values and %d marks; allowed: one of each a token", len(rewards), len(values), len(trained))
	}
	out := make([]float64, len(rewards))
	nextValue, nextAdvantage := 0.0, 0.0
	for t := len(rewards) - 1; t >= 0; t-- {
		if !trained[t] {
			continue
		}
		delta := rewards[t] + gamma*nextValue - values[t]
		out[t] = delta + gamma*lambda*nextAdvantage
		if !isFinite(out[t]) {
			return nil, milepost.E(op, milepost.KindInvalid,
				"token %d: reward %v and value %v give no finite advantage", t, rewards[t], values[t])
		}
		nextValue, nextAdvantage = values[t], out[t]
	}
	return out, nil
}

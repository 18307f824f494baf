package credit

import "github.com/milepost-rl/milepost"

// ppoGAE: generalised advantage estimation over the values of a value head in the trainer. The outcome reward R is earned
// at the episode's last trained token and no other token earns anything; the recursion runs over all trained tokens of
// the episode in order, across its samples, so that a broken prefix does not end it. A_out of a token is its advantage,
// A_out of a step the mean over its tokens. Nothing is compared within the group. Source: PPO, arXiv 1707.06347.
func ppoGAE(c *Config, g *group, out [][]float64) error {
	g.tokens = make([]TokenCredit, len(g.episodes))
	for i, e := range g.episodes {
		t, err := newTokenCredit(e, g.values[i])
		if err != nil {
			return err
		}
		if n := len(t.Values); n > 0 {
			rewards, trained := make([]float64, n), make([]bool, n)
			rewards[n-1] = e.Outcome.Reward
			for k := range trained {
				trained[k] = true
			}
			if t.AOut, err = GAE(rewards, t.Values, trained, c.GAEGamma, c.GAELambda); err != nil {
				return milepost.E(opAssign, milepost.KindInvalid, "episode %s: %w", e.ID, err)
			}
		}
		for k, a := range t.AOut {
			t.Returns[k] = a + t.Values[k]
		}
		t.stepMeans(out[i])
		g.tokens[i] = t
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

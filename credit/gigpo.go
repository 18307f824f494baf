package credit

// gigpo: A = episode part + omega * state part. Source: GiGPO, arXiv 2505.10978. The episode part is grpo, or mean-only
// under group_norm mean; the state part compares the steps of the group that start from the same state by their return
// gamma^(T-t)*R, normalised the same way. A state seen once gives 0.
//
// Departures from the authors' verl-agent (core_gigpo): mean and deviation of the episode part count each episode once,
// there by default once a step, so that long episodes weigh more; a group of one gives 0, there it keeps its reward; the
// return has the outcome alone, there the rewards of every step less a penalty for invalid actions; states are equal or
// not, without its similarity of texts; the default is mean_std, there mean.
func gigpo(c *Config, g *group, out [][]float64) error {
	d := c.deviation(sampleStd)
	r := g.rewards()
	normalise(r, d, c.Eps)
	spread(out, r)
	normaliseWithin(g.stateIDs(), g.returns(c.StepGamma), d, c.Eps, func(s at, a float64) {
		out[s.i][s.t] += c.Omega * a
	})
	return nil
}

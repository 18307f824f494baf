package credit

// gigpo: A = episode part + omega * state part. Source: GiGPO, arXiv 2505.10978. The episode part is grpo, or mean-only
// under group_norm mean; the state part compares the steps of the group that start from the same state by their return
// gamma^(T-t)*R, normalised the same way. A state seen once gives 0.
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

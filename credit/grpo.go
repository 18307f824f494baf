package credit

// grpo: A = (R-mean)/(std+eps), std with n-1. Source: DeepSeekMath, arXiv 2402.03300, in the form of verl
// (compute_grpo_outcome_advantage of core_algos: torch.std, eps 1e-6). Departures from verl: a group of one gives 0, there
// it keeps its reward; equal rewards give exactly 0, there what rounding leaves of their difference from the mean.
func grpo(c *Config, g *group, out [][]float64) error {
	r := g.rewards()
	normalise(r, sampleStd, c.Eps)
	spread(out, r)
	return nil
}

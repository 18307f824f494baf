package credit

// grpo: A = (R-mean)/(std+eps), std with n-1. Source: DeepSeekMath, arXiv 2402.03300, in the form of verl's
// core_algos. A group of one and equal rewards give 0 (verl lets a group of one keep its reward).
func grpo(c *Config, g *group, out [][]float64) error {
	r := g.rewards()
	normalise(r, sampleStd, c.Eps)
	spread(out, r)
	return nil
}

package credit

// drGRPO: A = R-mean. Source: "Understanding R1-Zero-like training", arXiv 2503.20783. The other half of the method,
// the constant length normaliser of the loss, is the trainer's (aggregation mode of loss.md). In verl it is grpo with
// norm_adv_by_std_in_grpo off. Departure from verl: a group of one gives 0, there it keeps its reward.
func drGRPO(_ *Config, g *group, out [][]float64) error {
	r := g.rewards()
	normalise(r, meanOnly, 0)
	spread(out, r)
	return nil
}

package credit

// drGRPO: A = R-mean. Source: "Understanding R1-Zero-like training", arXiv 2503.20783. The other half of the method,
// the constant length normaliser of the loss, is the trainer's (aggregation mode of loss.md).
func drGRPO(_ *Config, g *group, out [][]float64) error {
	r := g.rewards()
	normalise(r, meanOnly, 0)
	spread(out, r)
	return nil
}

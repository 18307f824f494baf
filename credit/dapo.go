package credit

// dapo: A_out is that of grpo. Source: DAPO, arXiv 2503.14476. What else makes the method lives elsewhere: clip
// .2/.28 and the token-mean loss in the trainer, dynamic sampling in sampling.go, the overlong term in overlong.go. Departures: those of grpo.go and overlong.go.
func dapo(c *Config, g *group, out [][]float64) error { return grpo(c, g, out) }

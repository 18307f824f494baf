package credit

import "gonum.org/v1/gonum/floats"

// rloo: A = R - mean of the others. Source: REINFORCE leave-one-out as in the SWE-MILE release: A = (n*R - sum)/(n-1).
// verl writes the same as n/(n-1)*(R-mean). Departure from verl: a group of one has no others and gives 0, there it keeps
// its reward.
func rloo(_ *Config, g *group, out [][]float64) error {
	r := g.rewards()
	if allEqual(r) {
		return nil
	}
	sum, others := floats.Sum(r), float64(len(r)-1)
	for i := range r {
		r[i] -= (sum - r[i]) / others
	}
	spread(out, r)
	return nil
}

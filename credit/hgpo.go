package credit

import "math"

// minLevel is the least |a_k| with which a level of hgpo takes part.
const minLevel = 1e-9

// hgpo: A = sum w_k a_k / sum w_k over the levels k = 1..K+1 with |a_k| > 1e-9. Source: HGPO, arXiv 2602.22817. Level k
// groups the steps by their last k states, the current one included; a_k = (return-mean)/(population std + eps), the
// return that of gigpo; w_k = (k+1)^alpha. Steps with fewer than k states join no group of level k, groups of one drop
// out, 0 where no level qualifies. There is no episode part.
//
// Departures from the authors' recipe (core_hgpo of verl-agent): the sum of weights is divided by as it is, there plus eps;
// |a_k| <= 1e-9 counts as 0, there exactly 0 does, which rounding decides; its option of the episode's advantage as level
// 0 is not built.
func hgpo(c *Config, g *group, out [][]float64) error {
	current, returns := g.stateIDs(), g.returns(c.StepGamma)
	weight := make([][]float64, len(out))
	for i := range out {
		weight[i] = make([]float64, len(out[i]))
	}
	context := current
	for k := 1; k <= c.HGPOK+1; k++ {
		if k > 1 {
			context = extend(context, current)
		}
		w := math.Pow(float64(k+1), c.HGPOAlpha)
		normaliseWithin(context, returns, c.deviation(populationStd), c.Eps, func(s at, a float64) {
			if math.Abs(a) > minLevel {
				out[s.i][s.t] += w * a
				weight[s.i][s.t] += w
			}
		})
	}
	for i := range out {
		for t := range out[i] {
			if weight[i][t] > 0 {
				out[i][t] /= weight[i][t]
			}
		}
	}
	return nil
}

// extend makes ids of the last k+1 states from ids of the last k: those at the step before, then the current state.
// -1 where the episode has no such history.
func extend(context, current [][]int) [][]int {
	ids := make(map[[2]int]int)
	out := make([][]int, len(context))
	for i := range context {
		out[i] = make([]int, len(context[i]))
		for t := range out[i] {
			out[i][t] = -1
			if t > 0 && context[i][t-1] >= 0 {
				out[i][t] = intern(ids, [2]int{context[i][t-1], current[i][t]})
			}
		}
	}
	return out
}

package credit

import (
	"math"

	"github.com/milepost-rl/milepost"
	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"
)

// reinforcePPBaseline: A = R-mean, then whitened over the update's trained tokens. Source: REINFORCE++-baseline in
// verl (arXiv 2501.03262). [Engine.Assign] gives A before whitening, as `credit recompute` prints it; [Engine.Whiten] does
// the rest. Departures from verl: a group of one gives 0 before whitening, there it keeps its reward; equal values over
// the whole update give 0.
func reinforcePPBaseline(c *Config, g *group, out [][]float64) error { return drGRPO(c, g, out) }

// whitenEps is verl's constant in masked_whiten.
const whitenEps = 1e-8

// Whiten finishes A_out over a whole update where the estimator asks for it (reinforce_pp_baseline, and ppo_gae with
// gae_whiten) and does nothing for the others: A_out becomes (A_out-mean)/sqrt(var+1e-8) with mean and variance (n-1)
// over all trained tokens, and the advantage is recomputed. inputs and r are those of one [Engine.Assign]; a step
// weighs as many tokens as it sampled (TokenEnd-TokenStart), and with token credit each token has its own A_out. Fewer
// than two trained tokens give 0.
func (e *Engine) Whiten(inputs []Input, r *Result) error {
	if NeedsValues(e.cfg.Estimator) && e.cfg.GAEWhiten {
		return e.whitenTokens(r)
	}
	if !registry[e.cfg.Estimator].whitened {
		return nil
	}
	if len(inputs) != len(r.Episodes) {
		return milepost.E("credit: whiten", milepost.KindInvalid, "%d inputs but %d episodes of credit", len(inputs), len(r.Episodes))
	}
	var values, tokens []float64
	for i, c := range r.Episodes {
		for t := range c.Steps {
			s := &inputs[i].Episode.Steps[t]
			n := float64(max(0, s.Sampled()))
			values, tokens = append(values, c.Steps[t].AOut), append(tokens, n)
		}
	}
	mean, scale := whitening(values, tokens)
	for _, c := range r.Episodes {
		for t := range c.Steps {
			s := &c.Steps[t]
			s.AOut = (s.AOut - mean) * scale
			s.Advantage = e.cfg.OutcomeWeight*s.AOut + s.P
		}
	}
	return checkFinite(r.Episodes)
}

// whitening returns what is subtracted from and then multiplied with each value, which weighs as many tokens as given
// (nil: one each). The scale is 0 for fewer than two tokens or equal values.
func whitening(values, tokens []float64) (mean, scale float64) {
	total := float64(len(values))
	if tokens != nil {
		total = floats.Sum(tokens)
	}
	if total < 2 || allEqual(values) {
		return 0, 0
	}
	unit := unitOf(values)
	scaled := floats.ScaleTo(make([]float64, len(values)), 1/unit, values)
	mean, variance := stat.MeanVariance(scaled, tokens)
	return mean * unit, 1 / math.Sqrt(variance+whitenEps/unit/unit) / unit
}

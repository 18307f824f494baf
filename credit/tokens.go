package credit

import (
	"slices"

	"github.com/milepost-rl/milepost"
)

// Credit by token, of estimators that need values (ppo_gae): each trained token has an advantage of its own and a return
// that the value head learns. Milestone credit stays by step and is added to each of the step's tokens.

// TokenCredit is the credit of an episode's trained tokens, in order across its samples. All slices have one element a
// token; all are empty where the episode is excluded or sampled nothing.
type TokenCredit struct {
	Steps      []int32   // index of the step that sampled the token
	Values     []float64 // the value head's, as given
	AOut       []float64 // outcome advantage; its mean over the tokens of a step is StepCredit.AOut (0 without tokens)
	Returns    []float64 // A_out before any whitening + value: what the value head learns. Outcome only, no milestone credit
	Advantages []float64 // w_out*A_out + p of the step
}

// TrainedSteps returns, for each trained token of an episode in order across its samples, the step that sampled it. A
// token is trained where its sample names a step of the episode.
func TrainedSteps(e *milepost.Episode) []int32 {
	var out []int32
	for _, s := range e.Samples {
		for _, step := range s.Steps {
			if Trained(e, step) {
				out = append(out, step)
			}
		}
	}
	return out
}

// Trained says whether a token that its sample gives to this step is trained.
func Trained(e *milepost.Episode, step int32) bool { return step >= 0 && int(step) < len(e.Steps) }

// newTokenCredit pairs values with the trained tokens of an episode.
func newTokenCredit(e *milepost.Episode, values []float64) (TokenCredit, error) {
	if values == nil && len(e.Steps) > 0 {
		return TokenCredit{}, milepost.E(opAssign, milepost.KindInvalid,
			"episode %s: estimator ppo_gae needs per-token values from a value head, and there are none", e.ID)
	}
	steps := TrainedSteps(e)
	if len(steps) != len(values) {
		return TokenCredit{}, milepost.E(opAssign, milepost.KindInvalid,
			"episode %s: %d values for %d trained tokens; allowed: one a token", e.ID, len(values), len(steps))
	}
	if !slices.IsSorted(steps) {
		return TokenCredit{}, milepost.E(opAssign, milepost.KindInvalid,
			"episode %s: its samples are not in the order of its steps; allowed: trained tokens in the order in which they were sampled", e.ID)
	}
	n := len(steps)
	return TokenCredit{Steps: steps, Values: values, Returns: make([]float64, n), Advantages: make([]float64, n)}, nil
}

// stepMeans writes the mean of A_out over the tokens of each step into out; 0 for a step without tokens.
func (t *TokenCredit) stepMeans(out []float64) {
	counts := make([]float64, len(out))
	clear(out)
	for k, step := range t.Steps {
		out[step] += t.AOut[k]
		counts[step]++
	}
	for s, n := range counts {
		if n > 0 {
			out[s] /= n
		}
	}
}

// tokens collects the token credit of all groups in the order of the inputs, with the advantages. credits are finished.
func (e *Engine) tokens(groups []*arranged, credits []milepost.EpisodeCredit) ([]TokenCredit, error) {
	if !NeedsValues(e.cfg.Estimator) {
		return nil, nil
	}
	out := make([]TokenCredit, len(credits))
	for _, g := range groups {
		for k, i := range g.inputs {
			out[i] = g.tokens[k]
			if err := e.addProcess(&out[i], &credits[i]); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// addProcess sets the advantages of the tokens: w_out*A_out + p of the step.
func (e *Engine) addProcess(t *TokenCredit, c *milepost.EpisodeCredit) error {
	for k, step := range t.Steps {
		t.Advantages[k] = e.cfg.OutcomeWeight*t.AOut[k] + c.Steps[step].P
		if !isFinite(t.Advantages[k]) || !isFinite(t.Returns[k]) {
			return milepost.E(opAssign, milepost.KindInvalid,
				"episode %s step %d: the credit of a token is not finite: rewards, values or weights are too large", c.ID, step)
		}
	}
	return nil
}

// whitenTokens is Whiten for token credit: every trained token of the update weighs the same, and A_out of a step is
// again the mean over its tokens. Source: masked_whiten in verl's compute_gae_advantage_return.
func (e *Engine) whitenTokens(r *Result) error {
	if len(r.Tokens) != len(r.Episodes) {
		return milepost.E("credit: whiten", milepost.KindInvalid, "%d episodes with token credit but %d of credit", len(r.Tokens), len(r.Episodes))
	}
	var values []float64
	for i := range r.Tokens {
		values = append(values, r.Tokens[i].AOut...)
	}
	mean, scale := whitening(values, nil)
	for i := range r.Tokens {
		t, c := &r.Tokens[i], &r.Episodes[i]
		for k, a := range t.AOut {
			t.AOut[k] = (a - mean) * scale
		}
		means := make([]float64, len(c.Steps))
		t.stepMeans(means)
		for s := range c.Steps {
			c.Steps[s].AOut = means[s]
			c.Steps[s].Advantage = e.cfg.OutcomeWeight*means[s] + c.Steps[s].P
		}
		if err := e.addProcess(t, c); err != nil {
			return err
		}
	}
	return checkFinite(r.Episodes)
}

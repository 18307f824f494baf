package credit

import "github.com/milepost-rl/milepost"

// OutcomeReward is the reward that a graded episode brings to the estimator: its outcome by Config.Outcome, with
// LimitReward in place of 1 where a limit stopped a resolved episode, plus the length terms of Config.Overlong. The caller
// sets Episode.Outcome.Reward to it. An untrusted verdict has no potential: the reward is then 0.
//
// OutcomePotential is the obvious cheap rival of milestone credit: the same potential, seen once, at the end.
func (e *Engine) OutcomeReward(in Input) float64 {
	ep := in.Episode
	reward := 0.0
	switch {
	case e.cfg.Outcome == OutcomePotential:
		reward = e.finalPotential(in)
	case ep.Outcome.Resolved:
		reward = 1
		if r, ok := LimitReward(in); ok {
			reward = r
		}
	}
	return reward + e.cfg.Overlong.Term(sampledTokens(ep), len(ep.Steps))
}

// finalPotential is phi_ver of the tree that the verdict tested, as if it were the only probe of the episode.
func (e *Engine) finalPotential(in Input) float64 {
	p, _ := newPlan(e.cfg.Milestone, in.Task, in.Baseline)
	var v verifier
	v.reset(p, &e.cfg.Milestone)
	phi, _, _ := v.step(in.Episode.Outcome.Verdict)
	return phi
}

// sampledTokens is the length of an episode as the length terms count it: tokens that the policy sampled.
func sampledTokens(ep *milepost.Episode) int {
	n := 0
	for _, s := range ep.Steps {
		n += s.TokenEnd - s.TokenStart
	}
	return n
}

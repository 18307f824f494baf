package credit

// OutcomeReward is the reward that a graded episode brings to the estimator: its outcome by Config.Outcome, with
// LimitReward in place of 1 where a limit stopped a resolved episode (OutcomeResolved), plus the length terms of Config.Overlong. The caller
// sets Episode.Outcome.Reward to it. An untrusted verdict has no potential: the reward is then 0.
//
// OutcomePotential is the obvious cheap rival of milestone credit: the same potential, seen once, at the end.
func (e *Engine) OutcomeReward(in Input) float64 { return e.ExplainReward(in).Total }

// RewardNote says what the outcome reward of a graded episode is made of.
type RewardNote struct {
	Source    string     `json:"source"`          // resolved, passed or potential
	Outcome   float64    `json:"outcome"`         // before the length terms
	Limit     *LimitNote `json:"limit,omitempty"` // where a limit stopped a resolved episode
	Tokens    int        `json:"tokens"`          // sampled
	Turns     int        `json:"turns"`
	TokenTerm float64    `json:"token_term"` // length terms, 0 or below; 0 where off
	TurnTerm  float64    `json:"turn_term"`
	Total     float64    `json:"total"` // the reward that the estimator gets
}

// LimitNote says why a resolved episode at a limit earns a fraction.
type LimitNote struct {
	Step  int `json:"step"`  // first step known to have passed everything; -1 where none is
	Steps int `json:"steps"` // steps taken
}

// ExplainReward computes [Engine.OutcomeReward] and says how.
func (e *Engine) ExplainReward(in Input) RewardNote {
	ep := in.Episode
	n := RewardNote{Source: e.cfg.Outcome, Tokens: ep.Sampled(), Turns: len(ep.Steps)}
	switch {
	case e.cfg.Outcome == OutcomePotential:
		n.Outcome = e.finalPotential(in)
	case ep.Outcome.Resolved:
		n.Outcome = 1
		if r, ok := LimitReward(in); ok && e.cfg.Outcome == OutcomeResolved {
			step, _ := limitStep(in)
			n.Outcome, n.Limit = r, &LimitNote{Step: step, Steps: len(ep.Steps)}
		}
	}
	n.TokenTerm, n.TurnTerm = e.cfg.Overlong.Terms(n.Tokens, n.Turns)
	n.Total = n.Outcome + (n.TokenTerm + n.TurnTerm)
	return n
}

// finalPotential is phi_ver of the tree that the verdict tested, as if it were the only probe of the episode.
func (e *Engine) finalPotential(in Input) float64 {
	p, _ := newPlan(e.cfg.Milestone, in.Task, in.Baseline)
	var v verifier
	v.reset(p, &e.cfg.Milestone)
	phi, _, _ := v.step(in.Episode.Outcome.Verdict)
	return phi
}

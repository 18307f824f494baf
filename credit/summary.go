package credit

import (
	"math"

	"github.com/milepost-rl/milepost"
)

// signal is the least absolute value that counts as credit.
const signal = 1e-9

// Summary counts what a batch of credit is made of, for metrics and report.
type Summary struct {
	Groups          int     `json:"groups"`
	Episodes        int     `json:"episodes"` // excluded ones not counted
	Excluded        int     `json:"excluded"`
	Steps           int     `json:"steps"`
	InvalidSteps    int     `json:"invalid_steps"`    // f = -1 or would be
	GroupsSignal    int     `json:"groups_signal"`    // some |A| > 1e-9
	GroupsOutcome   int     `json:"groups_outcome"`   // some |A_out| > 1e-9
	GroupsMilestone int     `json:"groups_milestone"` // some |r| > 1e-9: advantage beyond outcome and format
	MeanAbsOutcome  float64 `json:"mean_abs_a_out"`   // mean of |A_out| over steps; 0 without steps
	MeanAbsProcess  float64 `json:"mean_abs_p"`
	MeanReward      float64 `json:"mean_reward"` // mean outcome reward over episodes
	Probes          int     `json:"probes"`      // step probes that verification read; a merged one counts once
	ProbesTrusted   int     `json:"probes_trusted"`
}

func summarise(groups []*arranged, credits []milepost.EpisodeCredit) Summary {
	s := Summary{Groups: len(groups)}
	for i := range credits {
		s.Episodes += count(!credits[i].Excluded)
		s.Steps += len(credits[i].Steps)
	}
	s.Excluded = len(credits) - s.Episodes
	episodes, steps := float64(s.Episodes), float64(s.Steps)
	for _, g := range groups {
		var any, outcome, milestone bool
		for k, i := range g.inputs {
			s.MeanReward += g.episodes[k].Outcome.Reward / episodes // divided first: a sum could overflow
			for t := range credits[i].Steps {
				c := &credits[i].Steps[t]
				s.InvalidSteps += count(!g.episodes[k].Steps[t].Valid)
				s.MeanAbsOutcome += math.Abs(c.AOut) / steps
				s.MeanAbsProcess += math.Abs(c.P) / steps
				any = any || math.Abs(c.Advantage) > signal
				outcome = outcome || math.Abs(c.AOut) > signal
				milestone = milestone || math.Abs(c.R) > signal
			}
		}
		s.GroupsSignal += count(any)
		s.GroupsOutcome += count(outcome)
		s.GroupsMilestone += count(milestone)
	}
	return s
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

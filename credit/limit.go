package credit

import "github.com/milepost-rl/milepost"

// limitUnknown is what a resolved episode at a limit earns where no step is known to have got there.
const limitUnknown = .6

// LimitReward is the outcome reward of an episode that a limit stopped. Source: SWE-MILE, arXiv 2609.32631: if its
// final state passes everything it earns (index+1)/T of the first step whose trusted probe passed everything (index
// from 0, T steps taken), or .6 where no step is known. applies is false, and the reward to be kept, where the episode
// did not end at a limit or its final state does not pass (Outcome.Resolved). The caller sets Outcome.Reward; the
// probes are checked as Assign checks them.
func LimitReward(in Input) (reward float64, applies bool) {
	t, applies := limitStep(in)
	switch {
	case !applies:
		return 0, false
	case t < 0:
		return limitUnknown, true
	}
	return float64(t+1) / float64(len(in.Episode.Steps)), true
}

// limitStep returns the first step that is known to have passed everything, -1 where none is.
func limitStep(in Input) (step int, applies bool) {
	e := in.Episode
	if e.Status != milepost.EpisodeLimit || !e.Outcome.Resolved {
		return -1, false
	}
	p, _ := newPlan(Default().Milestone, in.Task, in.Baseline)
	for t := range e.Steps {
		probe := e.Steps[t].Probe
		if probe == nil {
			continue
		}
		if ok, _ := p.trusted(probe); ok && p.allPassed(probe) {
			return t, true
		}
	}
	return -1, true
}

// allPassed reads a trusted probe. Counts say it only against a trusted baseline, which fixes how many are expected.
func (p *plan) allPassed(probe *milepost.Probe) bool {
	if probe.Report != nil {
		return p.task.Passes(probe.Report)
	}
	c := probe.Partition
	return p.baseline && len(p.task.Tests) > 0 && c.F2P.Passed == c.F2P.Expected && c.P2P.Passed == c.P2P.Expected
}

package credit

import (
	"slices"

	"github.com/milepost-rl/milepost"
)

// Explanations: what the rules saw and did, for a person. They walk the same code as [Engine.Assign], so they cannot
// say something else; the numbers themselves are Assign's.

// Explanation says how the credit of one episode came about.
type Explanation struct {
	Mode     string       `json:"mode"`  // verification mode in force: normalized or pass_count
	WVer     float64      `json:"w_ver"` // weights in force
	WNav     float64      `json:"w_nav"`
	Baseline BaselineNote `json:"baseline"`
	Reward   RewardNote   `json:"reward"` // as the outcome rules give it now
	Steps    []StepNote   `json:"steps"`  // one a step; nil where the episode is excluded
}

// BaselineNote says what the untouched tree showed.
type BaselineNote struct {
	Trusted bool   `json:"trusted"`
	Reason  string `json:"reason,omitempty"` // why it is not trusted
	F2P     int    `json:"f2p"`              // tests that do not pass; 0 where not trusted
	P2P     int    `json:"p2p"`              // tests that pass
}

// StepNote says what came of one step's exposures and of its probe.
type StepNote struct {
	Probed   bool   `json:"probed"`                     // the step has a probe
	Trusted  bool   `json:"trusted"`                    // it may move the potential
	Reason   string `json:"untrusted_reason,omitempty"` // why it may not
	Carried  bool   `json:"carried,omitempty"`          // not trusted: the potential is carried forward
	Freezes  bool   `json:"freezes,omitempty"`          // not trusted, continuity lost: frozen from here on
	Frozen   bool   `json:"frozen,omitempty"`           // trusted, but the potential was frozen before
	Anchored bool   `json:"reanchored,omitempty"`       // pass_count: the potential is set anew and earns nothing
	Since    int    `json:"since,omitempty"`            // trusted: untrusted probes right before it, whose change it earns too
	Part     int    `json:"part,omitempty"`             // part of a merged probe, from 1; 0 = not merged
	Parts    int    `json:"parts,omitempty"`            // steps that share the probe

	Change  float64 `json:"change"`            // change of phi_ver that is rewarded, before weighting
	Clipped float64 `json:"clipped,omitempty"` // pass_count: what clipping took off the change, in tests

	// Fixed and Broken are indices into Task.Tests: tests that count as passing now and did not at the last trusted
	// report, and the other way round. A test that passed at the baseline counts as passing until there is evidence of
	// failure (normalized). A merged probe names them at its last part. Empty where only counts are known.
	Fixed  []int `json:"fixed,omitempty"`
	Broken []int `json:"broken,omitempty"`

	Counted []int `json:"counted,omitempty"` // indices into Step.Exposures: relevant, of high confidence, of an action that ran
}

// Explain says how the process credit of one episode came about. Errors are those of Assign for this episode.
func (e *Engine) Explain(in Input) (Explanation, error) {
	if in.Episode == nil || in.Task == nil {
		return Explanation{}, milepost.E("credit: explain", milepost.KindInvalid, "the input has no episode or no task")
	}
	p, _ := newPlan(e.cfg.Milestone, in.Task, in.Baseline)
	out := Explanation{Mode: p.mode, WVer: p.weights.ver, WNav: p.weights.nav, Reward: e.ExplainReward(in),
		Baseline: BaselineNote{Trusted: p.baseline, F2P: len(p.f2p), P2P: len(p.p2p)}}
	if !p.baseline {
		out.Baseline.Reason = baselineFault(in.Task, in.Baseline)
	}
	if excluded(in.Episode) {
		return out, nil
	}
	if err := checkEpisode(in.Episode); err != nil {
		return Explanation{}, err
	}
	var v verifier
	v.reset(p, &e.cfg.Milestone)
	names := newNamer(p)
	out.Steps = make([]StepNote, len(in.Episode.Steps))
	since := 0
	for t := range out.Steps {
		probe := in.Episode.Steps[t].Probe
		_, change, warning := v.step(probe)
		out.Steps[t] = v.note(probe, change, warning)
		n := &out.Steps[t]
		if n.Trusted && n.Part <= 1 {
			n.Since, since = since, 0
		} else if n.Probed && !n.Trusted && n.Part <= 1 {
			since++
		}
		if n.Trusted && n.Part == n.Parts {
			n.Fixed, n.Broken = names.compare(probe)
		}
		n.Counted = p.counted(&in.Episode.Steps[t])
	}
	return out, nil
}

// counted lists the exposures of a step that count for navigation.
func (p *plan) counted(s *milepost.Step) (out []int) {
	for i := range s.Exposures {
		if _, ok := p.counts(s, &s.Exposures[i]); ok {
			out = append(out, i)
		}
	}
	return out
}

// note reads the verifier after a step.
func (v *verifier) note(probe *milepost.Probe, change float64, warning string) StepNote {
	if probe == nil {
		return StepNote{}
	}
	trusted, again := v.plan.trusted(probe)
	if warning == "" {
		warning = again // parts of a merged probe warn once
	}
	n := StepNote{Probed: true, Trusted: trusted, Change: change, Clipped: v.off, Carried: v.did == effectCarried,
		Freezes: v.did == effectFreezes, Frozen: v.did == effectFrozen, Anchored: v.did == effectAnchored}
	if !trusted {
		n.Reason = untrustedReason(probe, warning)
	}
	if probe.Merge != nil {
		n.Part, n.Parts = probe.Merge.Index+1, probe.Merge.Size
	}
	return n
}

// untrustedReason says why a probe is not trusted: by the engine's own check, or as whoever made it says.
func untrustedReason(probe *milepost.Probe, warning string) string {
	switch {
	case warning != "":
		return warning
	case probe.Status == "":
		return "no result" + because(probe.Reason)
	}
	return string(probe.Status) + because(probe.Reason)
}

// namer tells which tests changed from one trusted report to the next, by the rules of the mode.
type namer struct {
	plan    *plan
	passing []bool // by test; nil while not known
	p2p     []bool // by test: judged by evidence
}

func newNamer(p *plan) *namer {
	n := &namer{plan: p, p2p: make([]bool, len(p.task.Tests))}
	if !p.baseline {
		return n
	}
	n.passing = make([]bool, len(p.task.Tests))
	for _, i := range p.p2p {
		n.passing[i], n.p2p[i] = true, p.mode == ModeNormalized
	}
	return n
}

// compare takes in a trusted probe. Counts name no tests, and what they changed is not known after them.
func (n *namer) compare(probe *milepost.Probe) (fixed, broken []int) {
	if probe.Report == nil {
		n.passing = nil
		return nil, nil
	}
	known := n.passing != nil
	if !known {
		n.passing = make([]bool, len(probe.Report))
	}
	for i, s := range probe.Report {
		if slices.Contains(n.plan.task.Flaky, n.plan.task.Tests[i]) {
			continue
		}
		was := n.passing[i]
		is := s == milepost.Passed
		if n.p2p[i] {
			is = evidenceAfter[count(!was)][s&7] == 0
		}
		n.passing[i] = is
		if known && is && !was {
			fixed = append(fixed, i)
		}
		if known && was && !is {
			broken = append(broken, i)
		}
	}
	return fixed, broken
}

package credit

import (
	"fmt"
	"slices"

	"github.com/milepost-rl/milepost"
)

// Rules that both verification modes share (credit.md; SWE-MILE, arXiv 2609.32631):
//   - an untrusted probe carries the potential forward, and the next trusted probe's step earns the whole change since;
//   - an untrusted probe with lost continuity freezes the potential for the rest of the episode (pass_count: until a
//     trusted re-anchored probe);
//   - the k steps of a merged probe split its change evenly, the potential rising linearly, each part clipped by itself.

// effect is what came of a step's probe.
type effect uint8

const (
	effectNone     effect = iota // there was no probe, or no baseline to hold it against
	effectMoved                  // trusted: the potential is what the probe shows
	effectCarried                // not trusted: the potential is carried forward
	effectFreezes                // not trusted and continuity lost: the potential is frozen from here on
	effectFrozen                 // trusted, but the potential was frozen before
	effectAnchored               // pass_count: the potential is set anew and earns nothing
)

// verifier walks one episode. It is reused from episode to episode; reset starts a new one.
type verifier struct {
	plan      *plan
	m         *Milestone
	norm      normalized
	phi       float64
	frozen    bool
	mergeStep float64 // change of each remaining part of a merge group
	mergeLeft int     // parts of the merge group that are still to come
	did       effect  // what came of the last step's probe; parts of a merge group share it
	off       float64 // what clipping took off the last step's change, in tests

	probes, trusted int // seen since the verifier was made; a merged probe counts once
}

func (v *verifier) reset(p *plan, m *Milestone) {
	v.plan, v.m = p, m
	v.phi, v.frozen, v.mergeStep, v.mergeLeft = 0, false, 0, 0
	v.did, v.off = effectNone, 0
	v.norm.reset(p, m)
}

// step takes the probe of one step (nil where none was made) and returns the potential after the step, the change of
// it that is rewarded, and a warning or "".
func (v *verifier) step(probe *milepost.Probe) (phi, change float64, warning string) {
	v.off = 0
	if !v.plan.baseline || probe == nil {
		v.did = effectNone
		return v.phi, 0, ""
	}
	if probe.Merge != nil && probe.Merge.Index > 0 { // its probe was taken in at part 0
		return v.part()
	}
	v.mergeLeft = 0
	trusted, warning := v.plan.trusted(probe)
	v.probes++
	v.trusted += count(trusted)
	passCounts := v.plan.mode == ModePassCount
	switch {
	case !trusted:
		v.did = effectCarried
		if v.frozen || probe.Continuity == milepost.ContinuityLost {
			v.frozen, v.did = true, effectFreezes
		}
		return v.phi, 0, warning
	case passCounts && probe.Reanchored:
		v.phi, v.frozen, v.did = passCount(v.plan, probe), false, effectAnchored
		return v.phi, 0, ""
	case v.frozen:
		v.did = effectFrozen
		return v.phi, 0, ""
	}
	v.did = effectMoved
	var target float64
	if passCounts {
		target = passCount(v.plan, probe)
	} else {
		target = v.norm.absolute(probe)
	}
	if probe.Merge == nil {
		change = target - v.phi
		v.phi = target
		return v.phi, v.clip(change), ""
	}
	v.mergeLeft = probe.Merge.Size
	v.mergeStep = (target - v.phi) / float64(probe.Merge.Size)
	return v.part()
}

// part moves the potential by one part of a merge group; nothing where the group moved nothing.
func (v *verifier) part() (phi, change float64, warning string) {
	if v.mergeLeft == 0 {
		return v.phi, 0, ""
	}
	v.mergeLeft--
	v.phi += v.mergeStep
	return v.phi, v.clip(v.mergeStep), ""
}

// clip bounds a step's change; the bounds act in pass_count only.
func (v *verifier) clip(change float64) float64 {
	if v.plan.mode != ModePassCount {
		return change
	}
	clipped := max(v.m.ClipLow, min(v.m.ClipHigh, change))
	v.off = change - clipped
	return clipped
}

// checkMerges refuses an episode whose merge groups are not what "k consecutive steps carry the same probe" says:
// parts 0..k-1 on consecutive steps, complete, and alike in all that moves a potential.
func checkMerges(e *milepost.Episode) error {
	for t := 0; t < len(e.Steps); {
		p := e.Steps[t].Probe
		if p == nil || p.Merge == nil {
			t++
			continue
		}
		if p.Merge.Size < 1 {
			return stepError(e, t, "merge group %q has size %d; allowed: 1 or more", p.Merge.ID, p.Merge.Size)
		}
		for k := range p.Merge.Size {
			if err := checkPart(e, t+k, p, k); err != nil {
				return err
			}
		}
		t += p.Merge.Size
	}
	return nil
}

func checkPart(e *milepost.Episode, t int, first *milepost.Probe, k int) error {
	g := first.Merge
	want := fmt.Sprintf("merge group %q is not contiguous: part %d of %d is expected here", g.ID, k, g.Size)
	if t >= len(e.Steps) {
		return stepError(e, t-1, "merge group %q is not contiguous: the episode ends before part %d of %d", g.ID, k, g.Size)
	}
	p := e.Steps[t].Probe
	if p == nil || p.Merge == nil {
		return stepError(e, t, "%s, not a step without one", want)
	}
	if p.Merge.ID != g.ID || p.Merge.Size != g.Size || p.Merge.Index != k {
		return stepError(e, t, "%s, not part %d of %d of %q", want, p.Merge.Index, p.Merge.Size, p.Merge.ID)
	}
	if !sameProbe(first, p) {
		return stepError(e, t, "merge group %q: part %d carries another probe than part 0", g.ID, k)
	}
	return nil
}

func sameProbe(a, b *milepost.Probe) bool {
	if a == b {
		return true
	}
	if a.Trusted != b.Trusted || a.Status != b.Status || a.Continuity != b.Continuity || a.Reanchored != b.Reanchored ||
		(a.Report == nil) != (b.Report == nil) || (a.Partition == nil) != (b.Partition == nil) {
		return false
	}
	if a.Partition != nil && *a.Partition != *b.Partition {
		return false
	}
	return slices.Equal(a.Report, b.Report)
}

package credit

import "github.com/milepost-rl/milepost"

// Normalised verification potential, bug repair. Source: SWE-MILE, arXiv 2609.32631, as fixed by credit.md:
//
//	phi_ver = fixed/|F2P| - beta_any*[regressed > 0] - beta_frac*regressed/|P2P|
//
// Departures: NOT_RUN and SKIPPED are neutral (they keep the evidence a P2P test had), and a runner that reports only
// counts per partition is understood. The re-anchoring flag is ignored in this mode.

// evidenceAfter is indexed by old evidence (0 or 1) and test state: what the evidence of failure is afterwards.
// Unknown states (5 to 7) are neutral.
var evidenceAfter = [2][8]uint8{
	{milepost.Failed: 1, milepost.Errored: 1},
	{milepost.NotRun: 1, milepost.Failed: 1, milepost.Errored: 1, milepost.Skipped: 1, 5: 1, 6: 1, 7: 1},
}

// normalized is the state of one episode.
type normalized struct {
	plan              *plan
	betaAny, betaFrac float64
	evidence          []uint8 // per P2P test: 1 where it is known to fail
	regressed         int
}

// reset makes n ready for another episode, keeping its memory.
func (n *normalized) reset(p *plan, m *Milestone) {
	n.plan, n.betaAny, n.betaFrac, n.regressed = p, m.BetaAny, m.BetaFrac, 0
	if cap(n.evidence) < len(p.p2p) {
		n.evidence = make([]uint8, len(p.p2p))
	}
	n.evidence = n.evidence[:len(p.p2p)]
	clear(n.evidence)
}

// absolute takes a trusted probe into the evidence and returns the potential.
func (n *normalized) absolute(probe *milepost.Probe) float64 {
	fixed := 0
	if probe.Report != nil {
		fixed = n.report(probe.Report)
	} else {
		fixed = probe.Partition.F2P.Passed
		n.counts(probe.Partition.P2P)
	}
	phi := 0.0
	if len(n.plan.f2p) > 0 {
		phi = float64(fixed) / float64(len(n.plan.f2p))
	}
	if n.regressed > 0 {
		phi -= n.betaAny
	}
	if len(n.plan.p2p) > 0 {
		phi -= n.betaFrac * float64(n.regressed) / float64(len(n.plan.p2p))
	}
	return phi
}

func (n *normalized) report(r milepost.TestReport) (fixed int) {
	for _, i := range n.plan.f2p {
		if r[i] == milepost.Passed {
			fixed++
		}
	}
	n.regressed = 0
	for j, i := range n.plan.p2p {
		e := evidenceAfter[n.evidence[j]&1][r[i]&7]
		n.evidence[j] = e
		n.regressed += int(e)
	}
	return fixed
}

// counts takes the counts of the P2P side: they replace the old value when every test was seen, else the larger of old
// and new stands. Counts name no tests, so the evidence per test (used again if a later probe of the episode has a
// report) is only cleared when they prove that nothing fails.
func (n *normalized) counts(c milepost.PartitionCounts) {
	now := c.Failed + c.Errors
	if c.NotRun > 0 || c.Skipped > 0 {
		n.regressed = max(n.regressed, now)
		return
	}
	n.regressed = now
	if now == 0 {
		clear(n.evidence)
	}
}

package credit

import "github.com/milepost-rl/milepost"

// Pass-count verification potential, repository generation. Source: SWE-MILE, arXiv 2609.32631, as fixed by credit.md:
//
//	phi_ver = passed now - passed at baseline
//
// not normalised; a step's change is clipped to [clip_low, clip_high] before weighting (verification.go), while the
// reported potential is not clipped. A trusted probe flagged reanchored sets the potential and earns nothing.

// passCount returns the potential that a trusted probe shows.
func passCount(p *plan, probe *milepost.Probe) float64 {
	if probe.Report != nil {
		now := 0
		for _, side := range [][]int32{p.f2p, p.p2p} { // without flaky tests
			for _, i := range side {
				if probe.Report[i] == milepost.Passed {
					now++
				}
			}
		}
		return float64(now - p.passed)
	}
	return float64(probe.Partition.F2P.Passed + probe.Partition.P2P.Passed - p.passed)
}

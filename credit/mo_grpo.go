package credit

import (
	"maps"
	"slices"

	"github.com/milepost-rl/milepost"
	"gonum.org/v1/gonum/floats"
)

// moGRPO: A = sum over objectives k of (R_k-mean_k)/(std_k+eps). Source: MO-GRPO, arXiv 2509.22047. Every episode of
// the group must have the same objectives, at least one, all finite; Outcome.Reward is not read. What a run takes as
// objectives stands in objectives.go. Departures: std with n-1, as grpo and as TRL's normalize_then_sum; an objective on
// which the group agrees contributes exactly 0; objectives are not weighted, and the sum is not scaled again (TRL divides
// it once more by its deviation over the batch, which the paper does not).
func moGRPO(c *Config, g *group, out [][]float64) error {
	if len(g.episodes) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(g.episodes[0].Outcome.Objectives))
	for _, e := range g.episodes {
		if got := slices.Sorted(maps.Keys(e.Outcome.Objectives)); len(got) == 0 || !slices.Equal(names, got) {
			return milepost.E(opAssign, milepost.KindInvalid,
				"episode %s: mo_grpo needs the same objectives in every episode of group %s (%v), this one has %v", e.ID, g.id, names, got)
		}
	}
	total := make([]float64, len(g.episodes))
	for _, k := range names {
		r := make([]float64, len(g.episodes))
		for i, e := range g.episodes {
			r[i] = e.Outcome.Objectives[k]
			if !isFinite(r[i]) {
				return milepost.E(opAssign, milepost.KindInvalid, "episode %s: objective %q is %v; allowed: a finite number", e.ID, k, r[i])
			}
		}
		normalise(r, sampleStd, c.Eps)
		floats.Add(total, r)
	}
	spread(out, total)
	return nil
}

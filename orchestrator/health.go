package orchestrator

import (
	"fmt"
	"maps"
	"slices"
	"sort"
)

// healthRange is where a metric of a healthy run lies, and what leaving it usually means.
type healthRange struct {
	low, high float64
	below     string
	above     string
}

// healthRanges are the ranges in which a run learns; a metric outside is told in words, it stops nothing. The logprob
// gap and the pushes have hard bounds of their own in trainer_bridge/weights.
var healthRanges = map[string]healthRange{
	"logprob_gap_mean":      {0, 1e-2, "", "sampler and trainer disagree: are the servers' weights the trainer's?"},
	"entropy":               {.01, 5, "the policy hardly explores any more (entropy collapse)", "the policy is close to random"},
	"kl_sampler":            {-.05, .1, "KL estimate to the sampler is negative: too few tokens or stale logprobs", "the policy moves far from the sampler within an update; lower update.lr"},
	"clip_fraction":         {0, .3, "", "most ratios are clipped; lower update.lr or use fewer minibatches"},
	"grad_norm":             {0, 100, "", "the gradient explodes"},
	"groups_without_signal": {0, .8, "", "most groups have no advantage: tasks are too easy or too hard for this policy"},
	"invalid_calls":         {0, .2, "", "many calls do not parse or break policy; the cold start may be too short"},
	"edited_rate":           {.5, 1, "few episodes change anything: credit may be teaching inaction; train the cold start longer, or try credit.process_baseline: group_mean", ""},
	"probes_trusted":        {.9, 1, "many probes are not trusted; see the reasons in the episodes", ""},
	"probes_late":           {0, .05, "", "probes come late; add workers or raise schedule.barrier"},
	"episodes_infra":        {0, 0, "", "episodes were lost to infrastructure and left out"},
}

// HealthNames lists the metrics that have a healthy range, sorted.
func HealthNames() []string { return slices.Sorted(maps.Keys(healthRanges)) }

// HealthyRange returns the range of a metric of a healthy run; ok is false where it has none.
func HealthyRange(name string) (low, high float64, ok bool) {
	h, ok := healthRanges[name]
	return h.low, h.high, ok
}

// Health returns a warning in words for each metric outside its range, sorted by name.
func Health(metrics map[string]float64) []string {
	var out []string
	for name, v := range metrics {
		h, ok := healthRanges[name]
		if !ok || name == "logprob_gap_mean" && metrics["staleness_mean"] > 0 {
			continue // older weights sampled some of it: the gap is then what the policy has moved, too
		}
		if v < h.low && h.below != "" && !(name == "probes_trusted" && metrics["probes"] == 0) {
			out = append(out, fmt.Sprintf("%s is %.3g: %s", name, v, h.below))
		}
		if v > h.high && h.above != "" {
			out = append(out, fmt.Sprintf("%s is %.3g: %s", name, v, h.above))
		}
	}
	sort.Strings(out)
	return out
}

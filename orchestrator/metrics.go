package orchestrator

import (
	"math"
	"slices"

	milepost "github.com/milepost-rl/milepost"
)

// batchMetrics derives the health of a finalised training batch from its records. Every value is documented in
// docs/metrics.md under the same name.
func batchMetrics(records []EpisodeRecord) map[string]float64 {
	var n, infra, cancelled, reward, resolved, steps, invalid, sampled, tokens, submitted, edited, probes, trusted, late, cached float64
	groups, signal, fromR := map[string]bool{}, map[string]bool{}, map[string]bool{}
	var absR, p, passed float64
	for _, rec := range records {
		ep := rec.Episode
		if lost(ep.Status) {
			infra += indicator(ep.Status == milepost.EpisodeInfra)
			cancelled += indicator(ep.Status == milepost.EpisodeCancelled)
			continue
		}
		n++
		groups[ep.Group] = true
		if rec.Dropped == "" {
			signal[ep.Group] = true
		}
		reward += ep.Outcome.Reward
		resolved += indicator(ep.Outcome.Resolved)
		passed += passedShare(ep)
		submitted += indicator(ep.Stop == milepost.StopSubmit)
		steps += float64(len(ep.Steps))
		sampled += float64(ep.Sampled())
		edited += indicator(slices.ContainsFunc(ep.Steps, func(s milepost.Step) bool { return len(s.Changed) > 0 }))
		for i, s := range ep.Steps {
			invalid += indicator(!s.Valid)
			if s.Probe != nil {
				probes++
				trusted += indicator(s.Probe.Trusted)
				late += indicator(s.Probe.Status == milepost.ProbeLate)
				cached += indicator(s.Probe.Cached)
			}
			if rec.Credit != nil && i < len(rec.Credit.Steps) {
				c := rec.Credit.Steps[i]
				absR += math.Abs(c.R)
				p += c.P
				if math.Abs(c.R) > 1e-9 {
					fromR[ep.Group] = true
				}
			}
		}
		for _, s := range ep.Samples {
			tokens += float64(len(s.Tokens))
		}
	}
	return map[string]float64{
		"episodes": n, "episodes_infra": infra, "episodes_cancelled": cancelled,
		"reward_mean": ratio(reward, n), "resolved_rate": ratio(resolved, n), "pass_rate": ratio(passed, n), "submitted_rate": ratio(submitted, n), "edited_rate": ratio(edited, n),
		"groups": float64(len(groups)), "groups_without_signal": 1 - ratio(float64(len(signal)), float64(len(groups))),
		"groups_with_r": ratio(float64(len(fromR)), float64(len(groups))),
		"invalid_calls": ratio(invalid, steps), "turns_mean": ratio(steps, n),
		"tokens_sampled_mean": ratio(sampled, n), "tokens_mean": ratio(tokens, n),
		"probes": probes, "probes_trusted": ratio(trusted, probes), "probes_late": ratio(late, probes), "probes_cached": ratio(cached, probes),
		"credit_abs_r_mean": ratio(absR, steps), "credit_p_mean": ratio(p, steps),
	}
}

// passedShare is the share of the task's tests that pass in the verdict of an episode; 0 without a trusted one.
func passedShare(ep *milepost.Episode) float64 {
	v := ep.Outcome.Verdict
	if v == nil || !v.Trusted {
		return 0
	}
	return ratio(float64(v.Report.Count(milepost.Passed)), float64(len(v.Report)))
}

func indicator(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ratio is a/b, 0 where b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// states are the names among the totals that say how things stand; the others are counts and sums.
var states = map[string]bool{"probe_backlog": true, "probe_in_flight": true, "probe_workers": true,
	"worker_workers": true, "worker_slots": true, "worker_busy": true, "worker_waiting": true, "worker_held": true}

// IsProbeState reports whether a name among the probe totals says how things stand now.
func IsProbeState(name string) bool { return states["probe_"+name] }

// totals are the running totals of probes ("probe_" names) and of rollout workers ("worker_" names).
func (r *Runner) totals() map[string]float64 {
	out := map[string]float64{}
	for k, v := range r.deps.Probes.Stats() {
		out["probe_"+k] = v
	}
	if r.deps.Workers != nil {
		for k, v := range r.deps.Workers() {
			out["worker_"+k] = v
		}
	}
	return out
}

// probeMetrics adds the change of the totals over a batch, states as they are, and the shares derived from them (shadow.Stats says what they mean and what they flatter).
func probeMetrics(into, before, after map[string]float64) {
	for k, v := range after {
		if !states[k] {
			v -= before[k]
		}
		into[k] = v
	}
	if all := into["probe_step_time_s"] + into["probe_verdict_time_s"]; all > 0 {
		into["probe_hidden_share"] = max(0, 1-into["probe_barrier_wait_s"]/all)
	}
	if steps := into["probe_step_time_s"]; steps > 0 {
		into["probe_overlap_share"] = into["probe_overlap_time_s"] / steps
	}
	if twice := into["probe_rechecked"]; twice > 0 {
		into["probe_flaky_share"] = into["probe_disagreed"] / twice
	}
}

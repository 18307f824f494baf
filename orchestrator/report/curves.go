package report

import (
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/chart"
)

// curve is one chart over the updates: the metrics it draws and how.
type curve struct {
	title   string
	note    string // what the reader should know, in a few words
	metrics []string
	labels  []string // of the metrics; empty for a single one
	log     bool     // logarithmic axis: the values span orders of magnitude
	share   bool     // axis 0..1
}

// panel is a section of curves.
type panel struct {
	title  string
	curves []curve
	only   string // metric that a run must have for the panel to be shown; "" = always
}

// panels lists every learning curve. A value that an update does not have leaves a gap.
var panels = []panel{
	{title: "Learning", curves: []curve{
		{title: "Reward", note: "mean outcome reward of the sampled episodes", metrics: []string{"reward_mean"}},
		{title: "Resolved rate", note: "share of sampled training episodes", metrics: []string{"resolved_rate"}, share: true},
		{title: validationTitle, note: "held apart from training, 95 % intervals", share: true},
		{title: "Groups", note: "share of groups", metrics: []string{"groups_without_signal", "groups_with_r"}, labels: []string{"without signal", "with credit from r"}, share: true},
		{title: "Credit", note: "mean |r| a step", metrics: []string{"credit_abs_r_mean"}},
	}},
	{title: "Policy and sampler", curves: []curve{
		{title: "Entropy", note: "nats a sampled token", metrics: []string{"entropy"}},
		{title: "Logprob gap to the sampler", note: "|trainer − sampler|, logarithmic", metrics: []string{"logprob_gap_mean", "logprob_gap_max"}, labels: []string{"mean", "max"}, log: true},
		{title: "KL to the sampler", note: "k3 estimate, nats a token", metrics: []string{"kl_sampler"}},
		{title: "Clip fraction", note: "share of trained tokens", metrics: []string{"clip_fraction"}},
		{title: "Gradient norm", note: "before clipping", metrics: []string{"grad_norm"}},
		{title: "Canary gap of the push", note: "mean |vLLM − trainer|, logarithmic", metrics: []string{"canary_gap_mean"}, log: true},
	}},
	{title: "Value head", only: "value_loss", curves: []curve{
		{title: "Value loss", note: "half the squared error, clipped", metrics: []string{"value_loss"}},
		{title: "Explained variance", note: "of the returns, by the values before the update; 1 is perfect", metrics: []string{"explained_variance"}},
		{title: "Value clip fraction", note: "share of trained tokens", metrics: []string{"value_clipfrac"}},
	}},
	{title: "Dynamic sampling", only: "groups_sampled", curves: []curve{
		{title: "Groups", note: "dispatched for the update; the others were kept", metrics: []string{"groups_sampled", "groups_rejected", "groups_cancelled"}, labels: []string{"dispatched", "without signal", "cancelled"}},
		{title: "Rounds", note: "times that groups were dispatched for the update", metrics: []string{"sampling_rounds"}},
		{title: "Retired tasks", note: "so far in the run", metrics: []string{"tasks_retired"}},
	}},
	{title: "Agent", curves: []curve{
		{title: "Invalid calls", note: "share of steps", metrics: []string{"invalid_calls"}},
		{title: "Turns", note: "mean an episode", metrics: []string{"turns_mean"}},
		{title: "Tokens", note: "mean an episode", metrics: []string{"tokens_sampled_mean", "tokens_mean"}, labels: []string{"sampled", "all"}},
		{title: "Submitted", note: "share of episodes that the agent ended", metrics: []string{"submitted_rate"}, share: true},
		{title: "Changed the repository", note: "share of episodes; near 0 the policy does nothing", metrics: []string{"edited_rate"}, share: true},
		{title: "Lost to infrastructure", note: "episodes, in no statistic", metrics: []string{"episodes_infra"}},
	}},
	{title: "Verification", curves: []curve{
		{title: "Probes trusted", note: "share of step probes", metrics: []string{"probes_trusted"}, share: true},
		{title: "Probes late and cached", note: "share of step probes", metrics: []string{"probes_late", "probes_cached"}, labels: []string{"late", "cached"}, share: true},
		{title: "Verification time hidden", note: "share that the run did not wait for", metrics: []string{"probe_hidden_share", "probe_overlap_share"}, labels: []string{"by any cause", "by the episode's own work"}, share: true},
	}},
}

const validationTitle = "Validation rate"

// timings are the parts of an update's wall-clock time, in their order.
var timings = []struct{ metric, label string }{
	{"time_rollout_s", "rollout"}, {"time_barrier_s", "barrier"}, {"time_update_s", "update"}, {"time_push_s", "push"},
}

// series takes one metric from the updates that have it.
func series(metrics []UpdateMetrics, name, label string) chart.Line {
	l := chart.Line{Label: label}
	for _, m := range metrics {
		if v, ok := m.Values[name]; ok {
			l.Points = append(l.Points, chart.Point{X: float64(m.Update), Y: v})
		}
	}
	return l
}

func (d *Data) chart(c curve) chart.Chart {
	out := chart.Chart{Title: c.title, Note: c.note, Log: c.log, Share: c.share}
	if c.title == validationTitle {
		l := chart.Line{}
		for _, e := range d.Evals {
			l.Points = append(l.Points, chart.Point{X: float64(e.Update), Y: e.Rate, Low: e.Low, High: e.High, Whisker: true})
		}
		out.Lines = []chart.Line{l}
		return out
	}
	for i, m := range c.metrics {
		label := ""
		if i < len(c.labels) {
			label = c.labels[i]
		}
		out.Lines = append(out.Lines, series(d.Metrics, m, label))
	}
	if _, high, ok := orchestrator.HealthyRange(c.metrics[0]); ok && !(c.share && high == 1) {
		out.Limit = &high
	}
	if low, high, ok := orchestrator.HealthyRange(c.metrics[0]); ok && c.share && high == 1 {
		out.Limit = &low
	}
	return out
}

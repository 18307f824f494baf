package orchestrator

import (
	"context"
	"fmt"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// grade turns the verdict probe into the outcome. A verdict that infrastructure kept from us makes the episode an
// infrastructure failure, never a wrong answer; tests that hang or run out of memory are the agent's own.
func grade(ep *milepost.Episode) {
	if ep.Status != milepost.EpisodeCompleted && ep.Status != milepost.EpisodeLimit {
		return
	}
	v := ep.Outcome.Verdict
	agents := v != nil && (v.Status == milepost.ProbeTimeout || v.Status == milepost.ProbeMemory || v.Status == milepost.ProbeUnparsed)
	if v == nil || !v.Trusted && !agents {
		ep.Status, ep.Stop = milepost.EpisodeInfra, milepost.StopError
		ep.Error = "no verdict"
		if v != nil {
			ep.Error = fmt.Sprintf("no verdict: %s %s", v.Status, v.Reason)
		}
		return
	}
	ep.Outcome.Graded = true
	ep.Outcome.Resolved = v.Trusted && v.Report.AllPassed()
	ep.Outcome.Reward = 0
	if ep.Outcome.Resolved {
		ep.Outcome.Reward = 1
	}
}

// runEvaluate waits for the verdicts of an evaluation and stores it.
func (r *Runner) runEvaluate(ctx context.Context, c Command) completion {
	eps, err := r.collect(c.Episodes)
	if err != nil {
		return completion{err: err}
	}
	if err := r.deps.Probes.Fill(ctx, eps, r.cfg.Barrier); err != nil {
		return completion{err: err}
	}
	records := make([]EpisodeRecord, len(eps))
	for i, ep := range eps {
		grade(ep)
		records[i] = EpisodeRecord{Episode: ep, Purpose: Purpose(c.Eval)}
	}
	if err := r.folder.WriteEpisodes(c.Eval, records); err != nil {
		return completion{err: err}
	}
	result := summarise(c.Eval, eps)
	result.Active = r.deps.Now().Sub(r.started).Seconds() + r.active0
	if err := r.folder.writeJSON(filepath.Join("evals", c.Eval+".json"), result); err != nil {
		return completion{err: err}
	}
	return completion{
		event: Event{Type: EventEvaluated, Eval: c.Eval, Rate: result.Rate, Graded: result.Graded},
		status: Status{Line: fmt.Sprintf("%s: %.3f resolved (95 %% interval %.3f to %.3f; %d tasks, %d attempts)",
			c.Eval, result.Rate, result.Low, result.High, len(result.Tasks), result.Graded)},
	}
}

// runFinalise is the barrier of an update: probes, verdicts, credit, batch.
func (r *Runner) runFinalise(ctx context.Context, c Command) completion {
	rolled := r.deps.Now()
	eps, err := r.collect(c.Episodes)
	if err != nil {
		return completion{err: err}
	}
	if err := r.deps.Probes.Fill(ctx, eps, r.cfg.Barrier); err != nil {
		return completion{err: err}
	}
	barrier := r.deps.Now().Sub(rolled)
	inputs, err := r.inputs(ctx, eps)
	if err != nil {
		return completion{err: err}
	}
	assigned, err := r.engine.Assign(inputs)
	if err != nil {
		return completion{err: err}
	}
	if err := r.engine.Whiten(inputs, &assigned); err != nil {
		return completion{err: err}
	}
	records, rows := r.batchRows(eps, assigned.Episodes)
	for i := range records {
		records[i].Baseline = inputs[i].Baseline
	}
	e := Event{Type: EventFinalised, Update: c.Update, Rows: len(rows)}
	if len(rows) > 0 {
		e.Batch = filepath.Join("batches", updateBatch(c.Update)+".arrow")
		if e.SHA256, err = r.deps.Learner.WriteBatch(r.folder.Path(e.Batch), rows); err != nil {
			return completion{err: err}
		}
	}
	if err := r.folder.WriteEpisodes(updateBatch(c.Update), records); err != nil {
		return completion{err: err}
	}
	metrics := batchMetrics(records)
	metrics["time_rollout_s"] = rolled.Sub(r.rollStart).Seconds()
	metrics["time_barrier_s"] = barrier.Seconds()
	probeMetrics(metrics, r.before, r.deps.Probes.Stats())
	if err := r.recordMetrics(c.Update, metrics); err != nil {
		return completion{err: err}
	}
	s := Status{Line: "batch", Metrics: metrics}
	if len(rows) == 0 {
		s.Line = "batch without any signal: no update"
	}
	for _, w := range assigned.Warnings {
		s.Line += "\n  " + w
	}
	return completion{event: e, status: s}
}

// inputs pairs each episode with its task and baseline, and sets outcomes.
func (r *Runner) inputs(ctx context.Context, eps []*milepost.Episode) ([]credit.Input, error) {
	baselines := map[string]*milepost.Probe{}
	inputs := make([]credit.Input, len(eps))
	for i, ep := range eps {
		grade(ep)
		task := r.tasks[ep.Task]
		b, ok := baselines[ep.Task]
		if !ok {
			var err error
			if b, err = r.deps.Probes.Baseline(ctx, task); err != nil {
				if !milepost.KindOf(err).Infra() {
					return nil, err
				}
				b = &milepost.Probe{Status: milepost.ProbeInfra, Reason: err.Error()} // untrusted: no verification credit
			}
			baselines[ep.Task] = b
		}
		inputs[i] = credit.Input{Episode: ep, Task: task, Baseline: b}
	}
	return inputs, nil
}

// batchRows pairs episodes with their credit, drops groups by the configured criterion and lays the rest out as rows.
func (r *Runner) batchRows(eps []*milepost.Episode, credits []milepost.EpisodeCredit) ([]EpisodeRecord, []Row) {
	keep := keptGroups(r.cfg.KeepGroup, eps, credits)
	records := make([]EpisodeRecord, len(eps))
	var rows []Row
	for i, ep := range eps {
		rec := EpisodeRecord{Episode: ep, Purpose: PurposeTrain, Credit: &credits[i]}
		switch {
		case credits[i].Excluded:
			rec.Dropped = string(ep.Status)
		case !keep[ep.Group]:
			rec.Dropped = "group without signal by " + r.cfg.KeepGroup
		default:
			rows = append(rows, episodeRows(ep, credits[i])...)
		}
		records[i] = rec
	}
	return records, rows
}

// keptGroups applies the criterion of dynamic sampling (credit: "Around the estimator").
func keptGroups(criterion string, eps []*milepost.Episode, credits []milepost.EpisodeCredit) map[string]bool {
	keep := map[string]bool{}
	first := map[string]float64{}
	for i, ep := range eps {
		if credits[i].Excluded {
			continue
		}
		if criterion == "outcome" {
			if f, ok := first[ep.Group]; !ok {
				first[ep.Group] = ep.Outcome.Reward
			} else if ep.Outcome.Reward != f {
				keep[ep.Group] = true
			}
			continue
		}
		for _, s := range credits[i].Steps {
			if s.Advantage > 1e-9 || s.Advantage < -1e-9 {
				keep[ep.Group] = true
			}
		}
	}
	return keep
}

// episodeRows gives each sampled token the advantage of its step.
func episodeRows(ep *milepost.Episode, c milepost.EpisodeCredit) []Row {
	rows := make([]Row, 0, len(ep.Samples))
	for _, s := range ep.Samples {
		row := Row{
			Episode: ep.ID, Tokens: s.Tokens, Logprobs: s.Logprobs, Versions: s.Versions,
			Mask: make([]bool, len(s.Tokens)), Advantages: make([]float32, len(s.Tokens)),
		}
		trained := false
		for t, step := range s.Steps {
			if step < 0 || int(step) >= len(c.Steps) {
				continue
			}
			row.Mask[t], trained = true, true
			row.Advantages[t] = float32(c.Steps[step].Advantage)
		}
		if trained {
			rows = append(rows, row)
		}
	}
	return rows
}

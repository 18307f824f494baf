package orchestrator

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// grade turns the verdict probe into the outcome; flaky tests do not count. A verdict that infrastructure kept from us makes the episode an
// infrastructure failure, never a wrong answer; what the agent's own tree did to the tests is a wrong answer.
func grade(ep *milepost.Episode, task *milepost.Task) {
	if ep.Status != milepost.EpisodeCompleted && ep.Status != milepost.EpisodeLimit {
		return
	}
	v := ep.Outcome.Verdict
	if v == nil || !v.Trusted && !agentsDoing(v) {
		ep.Status, ep.Stop = milepost.EpisodeInfra, milepost.StopError
		ep.Error = "no verdict"
		if v != nil {
			ep.Error = fmt.Sprintf("no verdict: %s %s", v.Status, v.Reason)
		}
		return
	}
	ep.Outcome.Graded = true
	ep.Outcome.Resolved = v.Trusted && task.Passes(v.Report)
	ep.Outcome.Reward = indicator(ep.Outcome.Resolved)
}

// agentsDoing reports whether an untrusted verdict is the agent's own fault: the tests of its tree hang, run out of
// memory, yield nothing that can be read, or are not exactly the task's because the tree brings tests along. Of the
// last only a run that completed with a state for each of the task's tests is left untrusted (shadow: judge).
func agentsDoing(v *milepost.Probe) bool {
	switch v.Status {
	case milepost.ProbeTimeout, milepost.ProbeMemory, milepost.ProbeUnparsed:
		return true
	case milepost.ProbeCompleted:
		return v.Report != nil
	}
	return false
}

// verdictChances is how many barriers a verdict has: a late step costs some credit, a late verdict a whole episode.
const verdictChances = 3

// fillProbes is the barrier: what is late is untrusted, but verdicts that are late are waited for again, alone.
func fillProbes(ctx context.Context, probes Probes, eps []*milepost.Episode, bound time.Duration) error {
	if err := probes.Fill(ctx, eps, bound); err != nil {
		return err
	}
	for range verdictChances - 1 {
		var late []*milepost.Episode
		for _, ep := range eps {
			if v := ep.Outcome.Verdict; v != nil && v.Status == milepost.ProbeLate {
				ep.Outcome.Verdict = &milepost.Probe{ID: v.ID}
				late = append(late, ep)
			}
		}
		if len(late) == 0 {
			return nil
		}
		if err := probes.Fill(ctx, late, bound); err != nil {
			return err
		}
	}
	return nil
}

// runEvaluate waits for the verdicts of an evaluation and stores it.
func (r *Runner) runEvaluate(ctx context.Context, c Command, eps []*milepost.Episode) completion {
	if err := fillProbes(ctx, r.deps.Probes, eps, r.cfg.Barrier); err != nil {
		return completion{err: err}
	}
	records := make([]EpisodeRecord, len(eps))
	for i, ep := range eps {
		grade(ep, r.tasks[ep.Task])
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
	if err := r.recordMetrics(evaluatedUpdate(c.Eval, c.Update), result.part(), result.metrics()); err != nil {
		return completion{err: err}
	}
	return completion{
		event: Event{Type: EventEvaluated, Eval: c.Eval, Rate: result.Rate, Graded: result.Graded},
		status: Status{Line: fmt.Sprintf("%s: %.3f resolved (95 %% interval %.3f to %.3f; %d tasks, %d attempts)",
			c.Eval, result.Rate, result.Low, result.High, len(result.Tasks), result.Graded)},
	}
}

// runFinalise is the barrier of an update: probes, verdicts, credit, batch.
func (r *Runner) runFinalise(ctx context.Context, c Command, g given) completion {
	rolled, eps := r.deps.Now(), g.episodes()
	cancelGivenUp(eps, c.Sampling)
	if err := fillProbes(ctx, r.deps.Probes, eps, r.cfg.Barrier); err != nil {
		return completion{err: err}
	}
	barrier := r.deps.Now().Sub(rolled)
	inputs, err := r.inputsOf(ctx, c, g)
	if err != nil {
		return completion{err: err}
	}
	assigned, keep, asking, err := r.creditOf(ctx, c, inputs)
	if err != nil {
		return completion{err: err}
	}
	records, rows := r.batchRows(inputs, assigned, keep, c.Sampling)
	var old aged
	if r.cfg.Mode == ModeAsync {
		if old, err = r.cfg.Async.age(rows, c.Base); err != nil {
			return completion{err: err}
		}
		rows = old.rows
	}
	e := Event{Type: EventFinalised, Update: c.Update, Rows: len(rows), Tokens: sampledTokens(eps)}
	if c.Sampling == nil {
		e.Rates = taskRates(eps)
	}
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
	samplingMetrics(metrics, c.Sampling)
	if r.cfg.Mode == ModeAsync {
		old.metrics(metrics, c.Sampling)
	}
	metrics["time_rollout_s"] = rolled.Sub(g.since).Seconds()
	metrics["time_barrier_s"] = barrier.Seconds()
	if asking > 0 {
		metrics["time_values_s"] = asking.Seconds()
	}
	probeMetrics(metrics, g.before, r.totals())
	if err := r.recordMetrics(c.Update, PartBatch, metrics); err != nil {
		return completion{err: err}
	}
	s := Status{Line: "batch", Metrics: metrics}
	if len(rows) == 0 {
		s.Line = "batch without any signal: no update"
	}
	s.Line += short(c.Sampling, r.cfg.GroupsPerUpdate)
	for _, w := range assigned.Warnings {
		s.Line += "\n  " + w
	}
	return completion{event: e, status: s}
}

// inputs pairs each episode with its task and baseline, and sets outcomes. What an episode earns is the engine's to say
// (credit.OutcomeReward); whether it resolved its task is not touched by that. Baselines are waited for as long as probes
// were, since with no worker alive they never come.
func (r *Runner) inputs(ctx context.Context, eps []*milepost.Episode) ([]credit.Input, error) {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Barrier)
	defer cancel()
	baselines := map[string]*milepost.Probe{}
	inputs := make([]credit.Input, len(eps))
	for i, ep := range eps {
		task := r.tasks[ep.Task]
		grade(ep, task)
		b, ok := baselines[ep.Task]
		if !ok {
			var err error
			if b, err = r.deps.Probes.Baseline(bounded, task); err != nil {
				status := milepost.ProbeInfra
				switch late := bounded.Err() != nil && ctx.Err() == nil; {
				case late:
					status = milepost.ProbeLate
				case !milepost.KindOf(err).Infra():
					return nil, err
				}
				b = &milepost.Probe{Status: status, Reason: err.Error()} // untrusted: no verification credit
			}
			baselines[ep.Task] = b
		}
		inputs[i] = credit.Input{Episode: ep, Task: task, Baseline: b}
		if ep.Outcome.Graded {
			ep.Outcome.Reward, ep.Outcome.Objectives = r.engine.OutcomeReward(inputs[i]), r.engine.Objectives(inputs[i])
		}
	}
	return inputs, nil
}

// sampledTokens counts what a batch cost, whatever became of its episodes.
func sampledTokens(eps []*milepost.Episode) int64 {
	n := int64(0)
	for _, ep := range eps {
		n += int64(ep.Sampled())
	}
	return n
}

// batchRows pairs episodes with their credit, drops the groups that are not kept and lays the rest out as rows.
func (r *Runner) batchRows(inputs []credit.Input, assigned credit.Result, keep map[string]bool, sampled *Sampled) ([]EpisodeRecord, []Row) {
	credits := assigned.Episodes
	records := make([]EpisodeRecord, len(inputs))
	var rows []Row
	for i, in := range inputs {
		ep := in.Episode
		rec := EpisodeRecord{Episode: ep, Purpose: PurposeTrain, Credit: &credits[i], Baseline: in.Baseline, Values: narrow(in.Values)}
		switch {
		case sampled.givenUp(ep.Group) != "":
			rec.Dropped = sampled.givenUp(ep.Group)
		case credits[i].Excluded:
			rec.Dropped = string(ep.Status)
		case !keep[ep.Group]:
			rec.Dropped = "group without signal by " + r.cfg.Sampling.Criterion
		default:
			rows = append(rows, episodeRows(ep, credits[i], tokenCredit(assigned, i))...)
		}
		records[i] = rec
	}
	return records, rows
}

// keptGroups applies the criterion of dynamic sampling to each group.
func keptGroups(criterion string, inputs []credit.Input, credits []milepost.EpisodeCredit) map[string]bool {
	episodes, earned := map[string][]credit.Input{}, map[string][]milepost.EpisodeCredit{}
	for i, in := range inputs {
		g := in.Episode.Group
		episodes[g], earned[g] = append(episodes[g], in), append(earned[g], credits[i])
	}
	keep := make(map[string]bool, len(episodes))
	for g := range episodes {
		keep[g] = credit.Sampling{Criterion: criterion}.Keep(episodes[g], earned[g])
	}
	return keep
}

// episodeRows gives each sampled token the advantage of its step, or its own where there is credit by token, which also
// gives it value and return.
func episodeRows(ep *milepost.Episode, c milepost.EpisodeCredit, tokens *credit.TokenCredit) []Row {
	rows := make([]Row, 0, len(ep.Samples))
	k := 0 // trained tokens so far
	for _, s := range ep.Samples {
		row := Row{
			Episode: ep.ID, Tokens: s.Tokens, Logprobs: s.Logprobs, Versions: s.Versions, Routes: s.Routes,
			Mask: make([]bool, len(s.Tokens)), Advantages: make([]float32, len(s.Tokens)),
		}
		if tokens != nil {
			row.Values, row.Returns = make([]float32, len(s.Tokens)), make([]float32, len(s.Tokens))
		}
		trained := false
		for t, step := range s.Steps {
			if !credit.Trained(ep, step) {
				continue
			}
			row.Mask[t], trained = true, true
			row.Advantages[t] = float32(c.Steps[step].Advantage)
			if tokens != nil {
				row.Advantages[t], row.Values[t], row.Returns[t] = float32(tokens.Advantages[k]), float32(tokens.Values[k]), float32(tokens.Returns[k])
			}
			k++
		}
		if trained {
			rows = append(rows, row)
		}
	}
	return rows
}

// taskRates counts, group by group in their order, the graded episodes and those that resolved their task.
func taskRates(eps []*milepost.Episode) []TaskRate {
	var out []TaskRate
	at := map[string]int{}
	for _, ep := range eps {
		i, ok := at[ep.Group]
		if !ok {
			i = len(out)
			at[ep.Group], out = i, append(out, TaskRate{Task: ep.Task})
		}
		if ep.Outcome.Graded {
			out[i].Graded++
			out[i].Passed += int(indicator(ep.Outcome.Resolved))
		}
	}
	return out
}

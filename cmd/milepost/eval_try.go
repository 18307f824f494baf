package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
)

// evalPurpose marks the episodes of an evaluation.
const evalPurpose orchestrator.Purpose = "eval"

// try makes one attempt to its grade; see evaluate.Runner.
func (e *evaluation) try(ctx context.Context, a evaluate.Attempt, retry int) (*evaluate.Record, *evaluate.Loss, error) {
	id := fmt.Sprintf("%s/%s", evalPurpose, a.ID)
	if retry > 0 {
		id = fmt.Sprintf("%s+r%d", id, retry)
	}
	ep, loss, err := e.episode(ctx, a, id, retry)
	if e.probes != nil {
		defer e.probes.Cancel(id) // it would remember the verdict of every attempt
	}
	tally := e.meter.Take(id)
	switch {
	case tally.Fatal:
		return nil, nil, milepost.E("eval", milepost.KindOf(tally.Err), "attempt %s: the model cannot be used: %w", a.ID, tally.Err)
	case err != nil || loss != nil && tally.Err == nil:
		return nil, loss, err
	case loss != nil:
		return nil, evaluate.NewLoss("endpoint", string(milepost.KindOf(tally.Err)), tally.Err.Error()), nil
	}
	dir := filepath.Dir(evaluate.PatchFile(e.dir, a.Task.ID, a.Index))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, milepost.Wrap("eval: store attempt", milepost.KindUnavailable, err)
	}
	rec := &evaluate.Record{Stop: ep.Stop, Turns: len(ep.Steps), Usage: tally.Usage, Wall: ep.Duration, PatchBytes: len(ep.Patch)}
	if rec.Usage == nil {
		rec.Usage = evaluate.UsageOf(ep)
	}
	began := time.Now()
	if loss, err := e.grade(ctx, a.Task, ep, rec, dir); loss != nil || err != nil {
		return nil, loss, err
	}
	rec.Grading = time.Since(began)
	if loss, err := e.runVisible(ctx, a.Task, ep, rec, dir); loss != nil || err != nil {
		return nil, loss, err
	}
	return rec, nil, e.store(a, ep)
}

// episode runs the agent loop.
func (e *evaluation) episode(ctx context.Context, a evaluate.Attempt, id string, retry int) (*milepost.Episode, *evaluate.Loss, error) {
	runner := e.foreign
	if a.Task.Grading == nil {
		runner = e.own
	}
	ep, err := runner.Run(ctx, rollout.Request{Episode: id, Group: fmt.Sprintf("%s/%s", evalPurpose, a.Task.ID), Task: a.Task, Attempt: a.Index, Retry: retry, Seed: a.Seed})
	switch {
	case err != nil:
		return nil, nil, err
	case ep.Status == milepost.EpisodeInfra:
		return nil, evaluate.NewLoss("sandbox", string(milepost.KindUnavailable), ep.Error), nil
	case ep.Status == milepost.EpisodeCancelled || ctx.Err() != nil:
		return nil, nil, milepost.Wrap("eval", milepost.KindCanceled, errors.Join(context.Canceled, context.Cause(ctx)))
	}
	return ep, nil, nil
}

// grade gives the verdict: as the task's data set does, or by the tests of a task of Milepost's own.
func (e *evaluation) grade(ctx context.Context, t *milepost.Task, ep *milepost.Episode, rec *evaluate.Record, dir string) (*evaluate.Loss, error) {
	if t.Grading == nil {
		return e.gradeOwn(ctx, t, ep, rec)
	}
	ev, err := e.executor.Run(ctx, t, &ep.Patch, filepath.Join(dir, "test_output.txt"))
	if err != nil {
		return e.failed(ctx, "grading", err)
	}
	v, err := grade.Judge(t, ev)
	if err != nil {
		return nil, err
	}
	rec.Outcome, rec.Resolved, rec.Score = string(v.Outcome), v.Outcome == grade.Resolved, v.Reward
	rec.PassRate, rec.Hint, rec.HintTier = passRate(t, v), v.Hint, v.HintTier
	ep.Outcome = milepost.Outcome{Graded: true, Reward: v.Reward, Resolved: rec.Resolved}
	if v.Outcome.Judged() {
		report := v.Report()
		if err := e.write(filepath.Join("attempts", t.ID, filepath.Base(dir), "report.json"), map[string]predictions.Instance{v.InstanceID: report}); err != nil {
			return nil, err
		}
		report.TestsStatus = nil // thousands of names; they are in the file
		rec.Report = &report
	}
	return nil, nil
}

// failed tells a failure of infrastructure, which loses the attempt, from one that ends everything.
func (e *evaluation) failed(ctx context.Context, place string, err error) (*evaluate.Loss, error) {
	if kind := milepost.KindOf(err); kind.Infra() && ctx.Err() == nil {
		return evaluate.NewLoss(place, string(kind), err.Error()), nil
	}
	return nil, err
}

// passRate is the share of a task's tests that passed, nil where none could be read.
func passRate(t *milepost.Task, v *grade.Verdict) *float64 {
	if t.Grading.Rule == milepost.GradeRate {
		return &v.Reward
	}
	if v.Tests == nil {
		return nil
	}
	good := len(v.Tests.FailToPass.Success) + len(v.Tests.PassToPass.Success)
	all := good + len(v.Tests.FailToPass.Failure) + len(v.Tests.PassToPass.Failure)
	if all == 0 {
		return nil
	}
	rate := float64(good) / float64(all)
	return &rate
}

// gradeOwn takes the verdict from the workers of the messenger.
func (e *evaluation) gradeOwn(ctx context.Context, t *milepost.Task, ep *milepost.Episode, rec *evaluate.Record) (*evaluate.Loss, error) {
	if err := orchestrator.Grade(ctx, e.probes, ep, t, e.cfg.Schedule.Barrier); err != nil {
		return nil, err
	}
	v := ep.Outcome.Verdict
	if ctx.Err() != nil {
		return nil, milepost.Wrap("eval", milepost.KindCanceled, ctx.Err())
	}
	if ep.Status == milepost.EpisodeInfra {
		how := "missing"
		if v != nil {
			how = string(v.Status)
		}
		return evaluate.NewLoss("verdict", how, ep.Error), nil
	}
	rec.Outcome, rec.Resolved, rec.Score = string(ownOutcome(ep)), ep.Outcome.Resolved, ep.Outcome.Reward
	if v.Trusted && len(v.Report) > 0 {
		rate := float64(v.Report.Count(milepost.Passed)) / float64(len(v.Report))
		rec.PassRate = &rate
	}
	if t.Kind == milepost.RepoGeneration && rec.PassRate != nil {
		rec.Score = *rec.PassRate
	}
	rec.Report = &predictions.Instance{PatchExists: ep.Patch != "", PatchSuccessfullyApplied: ep.Patch != "", Resolved: rec.Resolved}
	return nil, nil
}

// ownOutcome says how a verdict ended in the words of package grade.
func ownOutcome(ep *milepost.Episode) grade.Outcome {
	switch v := ep.Outcome.Verdict; {
	case ep.Outcome.Resolved:
		return grade.Resolved
	case v.Status == milepost.ProbeTimeout:
		return grade.TimedOut
	case v.Status == milepost.ProbeMemory:
		return grade.OutOfMemory
	case v.Status == milepost.ProbeUnparsed:
		return grade.Unreadable
	}
	return grade.Unresolved
}

// runVisible runs the tests that the agent could see, where attempts are chosen by them. An attempt that changed nothing
// is chosen last anyway.
func (e *evaluation) runVisible(ctx context.Context, t *milepost.Task, ep *milepost.Episode, rec *evaluate.Record, dir string) (*evaluate.Loss, error) {
	if e.visible == nil {
		return nil, nil
	}
	rec.Visible = &evaluate.Visible{}
	seen := e.visible[t.ID]
	if seen == nil {
		rec.Visible.Reason = "the task has no visible tests"
		return nil, nil
	}
	rec.Visible.Total = len(seen.PassToPass)
	if ep.Patch == "" {
		rec.Visible.Reason = "nothing was changed"
		return nil, nil
	}
	ev, err := e.executor.Run(ctx, seen, &ep.Patch, filepath.Join(dir, "visible_output.txt"))
	if err != nil {
		return e.failed(ctx, "visible tests", err)
	}
	hold, reason, err := grade.Holding(seen, ev)
	rec.Visible.Failing, rec.Visible.Reason = rec.Visible.Total-hold, reason
	return nil, err
}

// store writes patch and episode; the journal's record follows them.
func (e *evaluation) store(a evaluate.Attempt, ep *milepost.Episode) error {
	if err := orchestrator.WriteWhole(evaluate.PatchFile(e.dir, a.Task.ID, a.Index), []byte(ep.Patch)); err != nil {
		return milepost.Wrap("eval: store patch", milepost.KindUnavailable, err)
	}
	return e.folder.WriteEpisodes(a.ID, []orchestrator.EpisodeRecord{{Episode: ep, Purpose: evalPurpose}})
}

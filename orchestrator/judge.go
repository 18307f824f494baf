package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// What dynamic sampling asks of the runner: judging a group, cancelling commands, and the batch of what was kept. The
// decisions are the machine's (sampling.go).

// errUnwanted is why the context of a cancelled command ended, in contrast to a run that stops.
var errUnwanted = errors.New("the run does not need it any more")

// unwanted reports whether a command's context ended because the machine cancelled it.
func unwanted(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errUnwanted) }

// hold gives a command a context of its own, which the machine can have ended. One that was cancelled before the run was
// resumed begins with its context at an end.
func (r *Runner) hold(ctx context.Context, c Command) context.Context {
	own, stop := context.WithCancelCause(ctx)
	r.cancels[c.Key()] = stop
	if c.Cancelled {
		stop(errUnwanted)
	}
	return own
}

// release ends the context of a completed command.
func (r *Runner) release(key string) {
	if stop := r.cancels[key]; stop != nil {
		stop(nil)
		delete(r.cancels, key)
	}
}

// cancel ends commands under way; each still sends its completion.
func (r *Runner) cancel(keys []string) {
	for _, key := range keys {
		if stop := r.cancels[key]; stop != nil {
			stop(errUnwanted)
		}
	}
}

// cancelled is the completion of an episode that nobody needs any more; ep is as much of it as there is, or nil.
func cancelled(spec EpisodeSpec, ep *milepost.Episode) completion {
	if ep == nil {
		ep = &milepost.Episode{ID: spec.ID, Group: spec.Group, Task: spec.Task, Attempt: spec.Attempt, Retry: spec.Retry, Stop: milepost.StopCanceled}
	}
	ep.Status = milepost.EpisodeCancelled
	return completion{episode: ep, event: Event{Type: EventEpisodeEnded, Episode: ep.ID, Status: ep.Status}}
}

// keep stores what a command came to before its event is journaled: an ended episode, or a judged group.
func (r *Runner) keep(c completion) error {
	records, b := c.judged, r.batches[r.batchOf(c.command)]
	if c.episode != nil {
		if c.episode.Status == milepost.EpisodeCancelled && b.ended[c.episode.ID] != nil {
			return nil // a crash came between storing and journaling it; what is there has its tokens
		}
		if c.command.Episode.Purpose != PurposeTrain {
			for i := range c.episode.Samples {
				c.episode.Samples[i].Routes = nil // they are large, and nothing trains on an evaluation
			}
		}
		records = []EpisodeRecord{{Episode: c.episode, Purpose: c.command.Episode.Purpose}}
	}
	if len(records) == 0 {
		return nil
	}
	if err := b.part.add(records...); err != nil {
		return err
	}
	for _, rec := range records {
		b.ended[rec.Episode.ID] = doneOf(rec)
	}
	return nil
}

// runJudge waits for the probes of one ended group, computes its credit and says whether it is worth an update. Group
// credit is what the whole batch would give, since no estimator looks beyond a group before [credit.Engine.Whiten].
func (r *Runner) runJudge(ctx context.Context, c Command, eps []*milepost.Episode) completion {
	e := Event{Type: EventGroupJudged, Update: c.Update, Group: c.Group}
	records, kept, err := r.judge(ctx, c.Group, eps)
	if unwanted(ctx) {
		e.Cancelled = true
		return completion{event: e}
	}
	if err != nil {
		return completion{err: err}
	}
	e.Kept = kept
	resolved := 0.0
	for _, ep := range eps {
		if ep.Outcome.Graded {
			e.Graded++
			resolved += indicator(ep.Outcome.Resolved)
		}
	}
	e.Rate = ratio(resolved, float64(e.Graded))
	return completion{event: e, judged: records}
}

func (r *Runner) judge(ctx context.Context, group string, eps []*milepost.Episode) (records []EpisodeRecord, kept bool, err error) {
	if err := fillProbes(ctx, r.deps.Probes, eps, r.cfg.Barrier); err != nil {
		return nil, false, err
	}
	inputs, err := r.groupInputs(ctx, eps)
	if err != nil {
		return nil, false, err
	}
	if err := r.fillValues(ctx, strings.ReplaceAll(group, "/", "-"), inputs); err != nil {
		return nil, false, err
	}
	assigned, err := r.engine.Assign(inputs)
	if err != nil {
		return nil, false, err
	}
	for i, in := range inputs {
		records = append(records, EpisodeRecord{Episode: in.Episode, Purpose: PurposeTrain, Credit: &assigned.Episodes[i], Baseline: in.Baseline, Values: narrow(in.Values)})
	}
	return records, r.cfg.Sampling.Keep(inputs, assigned.Episodes), nil // warnings come again, with the batch
}

// groupInputs are the inputs of one group. One that infrastructure lost as a whole waits for no baseline: in an outage
// that would not come either.
func (r *Runner) groupInputs(ctx context.Context, eps []*milepost.Episode) ([]credit.Input, error) {
	if slices.ContainsFunc(eps, func(ep *milepost.Episode) bool { return !lost(ep.Status) }) {
		return r.inputs(ctx, eps)
	}
	inputs := make([]credit.Input, len(eps))
	for i, ep := range eps {
		inputs[i] = credit.Input{Episode: ep, Task: r.tasks[ep.Task]}
	}
	return inputs, nil
}

// cancelGivenUp gives every episode of a cancelled group that status, whatever it had come to: it is in no statistic.
func cancelGivenUp(eps []*milepost.Episode, sampled *Sampled) {
	for _, ep := range eps {
		if sampled.givenUp(ep.Group) != "" && ep.Status != milepost.EpisodeInfra {
			ep.Status = milepost.EpisodeCancelled
		}
	}
}

// inputsOf returns the inputs of a batch: under dynamic sampling as its groups were judged, so that a group that was
// kept stays so.
func (r *Runner) inputsOf(ctx context.Context, c Command, g given) ([]credit.Input, error) {
	if c.Sampling == nil {
		return r.inputs(ctx, g.episodes())
	}
	inputs := make([]credit.Input, len(g.records))
	for i, rec := range g.records {
		inputs[i] = rec.Input(r.tasks[rec.Episode.Task])
	}
	return inputs, nil
}

// creditOf computes the credit of a batch and which of its groups train: those that the criterion keeps, or, under
// dynamic sampling, those that were judged so. Credit is finished over what trains alone, as verl filters before it
// normalises, so a group without signal neither moves a mean nor gets an advantage from one. asking is the time that the
// trainer took for values.
func (r *Runner) creditOf(ctx context.Context, c Command, inputs []credit.Input) (assigned credit.Result, keep map[string]bool, asking time.Duration, err error) {
	if c.Sampling == nil {
		assigned, asking, err = r.assign(ctx, c.Update, inputs)
	} else {
		assigned, err = r.engine.Assign(inputs)
	}
	if err != nil {
		return credit.Result{}, nil, 0, err
	}
	if keep = c.Sampling.kept(); c.Sampling == nil {
		keep = keptGroups(r.cfg.Sampling.Criterion, inputs, assigned.Episodes)
	}
	return assigned, keep, asking, r.whiten(inputs, &assigned, keep)
}

// whiten finishes the credit of the groups that train.
func (r *Runner) whiten(inputs []credit.Input, assigned *credit.Result, keep map[string]bool) error {
	var train []credit.Input
	var part credit.Result // its steps are those of assigned
	var of []int           // index of each in assigned
	for i, in := range inputs {
		if !keep[in.Episode.Group] {
			continue
		}
		train, part.Episodes, of = append(train, in), append(part.Episodes, assigned.Episodes[i]), append(of, i)
		if assigned.Tokens != nil {
			part.Tokens = append(part.Tokens, assigned.Tokens[i])
		}
	}
	err := r.engine.Whiten(train, &part)
	for k := range part.Tokens {
		assigned.Tokens[of[k]] = part.Tokens[k]
	}
	return err
}

// kept returns the groups that train; nil without dynamic sampling.
func (s *Sampled) kept() map[string]bool {
	if s == nil {
		return nil
	}
	out := map[string]bool{}
	for id, f := range s.Fates {
		out[id] = f == FateKept
	}
	return out
}

// givenUp says why a group was cancelled, "" where it was not; it never was without dynamic sampling.
func (s *Sampled) givenUp(group string) string {
	switch {
	case s == nil:
		return ""
	case s.Fates[group] == FateSurplus:
		return "group cancelled: enough were kept"
	case s.Fates[group] == FateStale:
		return "group cancelled: older than schedule.async.max_staleness"
	}
	return ""
}

// samplingMetrics adds what dynamic sampling came to; nothing without it.
func samplingMetrics(into map[string]float64, s *Sampled) {
	if s == nil {
		return
	}
	into["groups_sampled"] = float64(len(s.Fates))
	into["groups_rejected"] = float64(s.count(FateRejected))
	into["groups_cancelled"] = float64(s.count(FateSurplus))
	if s.Rounds > 0 { // in mode async there are none
		into["sampling_rounds"] = float64(s.Rounds)
	}
	into["tasks_retired"] = float64(s.Retired)
}

// short says why an update has fewer groups than it should, "" where it has them.
func short(s *Sampled, want int) string {
	if s == nil || s.Short == "" {
		return ""
	}
	return fmt.Sprintf("\n%d of %d groups were kept (%s)", s.count(FateKept), want, s.Short)
}

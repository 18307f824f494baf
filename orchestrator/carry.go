package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"os"

	milepost "github.com/milepost-rl/milepost"
)

// runEpisode waits for a slot and runs one episode. The baseline of a training task is asked for at once, so that it
// is served before the probes of its steps.
func (r *Runner) runEpisode(ctx context.Context, spec EpisodeSpec) completion {
	task := r.tasks[spec.Task]
	if task == nil {
		return completion{err: milepost.E("orchestrator: episode", milepost.KindNotFound, "episode %s wants task %s, which was not loaded", spec.ID, spec.Task)}
	}
	if !r.deps.Unbounded {
		select {
		case r.slots <- struct{}{}:
			defer func() { <-r.slots }()
		case <-ctx.Done():
		}
	}
	if unwanted(ctx) {
		return cancelled(spec, nil)
	}
	if ctx.Err() != nil {
		return completion{err: milepost.Wrap("orchestrator: episode", milepost.KindCanceled, ctx.Err())}
	}
	if spec.Purpose == PurposeTrain && spec.Attempt == 0 {
		r.wg.Add(1)
		go func() {
			defer r.wg.Done()
			_, _ = r.deps.Probes.Baseline(ctx, task) // asked for again, with its error, when the batch is finalised
		}()
	}
	ep, err := r.deps.Rollouts.Run(ctx, task, spec)
	if unwanted(ctx) {
		return cancelled(spec, ep)
	}
	if err == nil && ctx.Err() != nil {
		err = ctx.Err() // the run is stopping: the episode is not journaled and will be run again
	}
	if err != nil {
		return completion{err: milepost.Wrap("orchestrator: episode", milepost.KindInternal, err)}
	}
	e := Event{Type: EventEpisodeEnded, Episode: ep.ID, Status: ep.Status}
	if spec.Purpose == PurposeTrain && r.cfg.Mode == ModeAsync {
		e.Oldest, e.Newest = versionsOf(ep)
	}
	return completion{episode: ep, event: e}
}

// outage is an error where c is the last episode of a batch of which infrastructure left nothing, or, under dynamic
// sampling and in mode async, the last of an update's worth of episodes in a row that it lost: replacing these would go on
// until max_groups.
// It is not journaled: the run stops instead of passing over update after update, and when resumed tries this episode
// again.
func (r *Runner) outage(c completion) error {
	b := r.batches[r.batchOf(c.command)]
	switch {
	case c.episode.Status == milepost.EpisodeCancelled && c.command.Episode.Purpose == PurposeTrain:
		return nil // nobody needs it
	case !lost(c.episode.Status):
		b.lostInARow = 0
		return nil
	case c.command.Episode.Retry < r.cfg.MaxRetries:
		return nil
	}
	b.lostInARow++
	done, total := r.machine.Progress()
	update := r.cfg.GroupsPerUpdate * r.cfg.GroupSize
	if r.machine.Phase() == PhaseRolling {
		total = min(total, update) // not those that were begun in their place
	}
	left := b.name == untakenBatch // goes on from update to update
	for _, d := range b.ended {
		left = left || !d.lost
	}
	what := "every episode of " + b.name + " was"
	switch {
	case !left && done+1 >= total:
	case r.machine.Phase() == PhaseRolling && b.lostInARow >= total, b.name == untakenBatch && b.lostInARow >= update:
		what = fmt.Sprintf("%d episodes of %s in a row were", b.lostInARow, b.name)
	default:
		return nil
	}
	return milepost.E("orchestrator: episode", milepost.KindUnavailable, "%s lost to infrastructure, at last %s: %s", what, c.episode.ID, c.episode.Error)
}

// runTrain does the update step, and the checkpoint and the export of the new weights.
func (r *Runner) runTrain(ctx context.Context, c Command) completion {
	r.learner.Lock()
	defer r.learner.Unlock()
	u, start := c.Update, r.deps.Now()
	metrics, err := r.deps.Learner.Update(ctx, u, r.folder.Path(c.Batch), c.SHA256)
	if milepost.KindOf(err) == milepost.KindInternal { // a guard, or numbers that are not finite
		err = fmt.Errorf("%w; `milepost trainer replay %s` makes the update again", err, r.folder.Path(c.Batch))
	}
	if err != nil {
		return completion{err: err}
	}
	e := Event{Type: EventTrained, Update: u}
	if u%r.cfg.CheckpointEvery == 0 {
		dir := r.folder.Checkpoint(u)
		if err := replaceDir(dir, func(d string) error { return r.deps.Learner.Save(ctx, d) }); err != nil {
			return completion{err: err}
		}
		e.Checkpoint, _ = relative(r.folder.Dir, dir)
	}
	if err := r.export(ctx, int32(u)); err != nil {
		return completion{err: err}
	}
	metrics["time_update_s"] = r.deps.Now().Sub(start).Seconds()
	if err := r.recordMetrics(u, PartUpdate, metrics); err != nil {
		return completion{err: err}
	}
	return completion{event: e, status: Status{Line: "update", Metrics: metrics}}
}

// export writes the learner's weights as the given version.
func (r *Runner) export(ctx context.Context, version int32) error {
	return replaceDir(r.folder.WeightsDir(version), func(d string) error { return r.deps.Learner.Export(ctx, d) })
}

// replaceDir lets write make a directory beside dir and then puts it in dir's place.
func replaceDir(dir string, write func(string) error) error {
	const op = "orchestrator: write directory"
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := write(tmp); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	err := errors.Join(os.RemoveAll(dir), os.Rename(tmp, dir))
	return milepost.Wrap(op, milepost.KindUnavailable, err)
}

// runPush serves the weights of a version.
func (r *Runner) runPush(ctx context.Context, version int32, load bool) completion {
	r.learner.Lock() // for the canary
	defer r.learner.Unlock()
	metrics, err := r.push(ctx, version, load)
	if err == nil && !load { // the best weights, pushed again at the end, leave the figures of their first push
		err = r.recordMetrics(int(version), PartPush, metrics)
	}
	if err != nil {
		return completion{err: err}
	}
	line := fmt.Sprintf("weights v%d are served; canary agrees", version)
	return completion{event: Event{Type: EventPushed, Version: version}, status: Status{Line: line, Metrics: metrics}}
}

// push serves a version. The canary compares the servers with the trainer, so load brings the trainer to the same
// weights where it has others.
func (r *Runner) push(ctx context.Context, version int32, load bool) (map[string]float64, error) {
	dir, err := r.weights(version)
	if err != nil {
		return nil, err
	}
	start := r.deps.Now()
	if load {
		if err := r.deps.Learner.Load(ctx, dir); err != nil {
			return nil, err
		}
	}
	metrics, err := r.deps.Weights.Push(ctx, version, dir)
	if err != nil {
		return nil, err
	}
	metrics["time_push_s"] = r.deps.Now().Sub(start).Seconds()
	return metrics, nil
}

// weights returns the directory of a version's weights; version 0 is the model that the run began with.
func (r *Runner) weights(version int32) (string, error) {
	if version > 0 {
		return r.folder.WeightsDir(version), nil
	}
	h, err := r.folder.Header()
	return h.Model, err
}

// restore brings trainer and servers to where the journal ends: last checkpoint, the batches after it in order, then
// the weights.
func (r *Runner) restore(ctx context.Context) error {
	lineage, err := r.lineage()
	if err != nil {
		return err
	}
	if err := r.deps.Learner.Load(ctx, lineage.load); err != nil {
		return err
	}
	for _, b := range lineage.replay {
		r.say(Status{Line: fmt.Sprintf("replaying update %d", b.Update)})
		if _, err := r.deps.Learner.Update(ctx, b.Update, r.folder.Path(b.Batch), b.SHA256); err != nil {
			return err
		}
	}
	if r.machine.Phase() == PhaseAfter {
		_, err = r.push(ctx, r.machine.Version(), true)
		return err
	}
	if lineage.update > 0 && len(lineage.replay) > 0 {
		if err := r.export(ctx, int32(lineage.update)); err != nil {
			return err
		}
	}
	if r.outstandingPush() && r.machine.Phase() != PhaseAsync { // there episodes are under way beside it
		return nil
	}
	_, err = r.push(ctx, int32(lineage.update), false)
	return err
}

func (r *Runner) outstandingPush() bool {
	for _, c := range r.machine.Outstanding() {
		if c.Type == CommandPush {
			return true
		}
	}
	return false
}

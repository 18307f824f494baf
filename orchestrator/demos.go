package orchestrator

import (
	"context"
	"fmt"
	"sync"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// Acceptance says which demonstrations rejection fine-tuning keeps.
type Acceptance string

// The rules of acceptance. Both judge by execution alone.
const (
	AcceptResolved Acceptance = "resolved" // every test passes at the end (Nebius, arXiv 2508.03501)
	AcceptImproved Acceptance = "improved" // phi_ver of the final tree is above 0: more is fixed than was broken
)

// Mask says which turns of an accepted demonstration stay as context and are not trained.
type Mask string

// The masks.
const (
	MaskNone    Mask = "none"    // every turn is trained
	MaskInvalid Mask = "invalid" // turns whose call was not valid are not (arXiv 2508.03501 masks those with format errors)
)

// Trains reports whether a turn is trained.
func (m Mask) Trains(s *milepost.Step) bool { return m != MaskInvalid || s.Valid }

// Attempts are n attempts at each task for one purpose, and the tasks by id; every attempt has a seed of its own.
func Attempts(purpose Purpose, tasks []*milepost.Task, n int, seed int64) (map[string]*milepost.Task, []EpisodeSpec) {
	byID := make(map[string]*milepost.Task, len(tasks))
	specs := make([]EpisodeSpec, 0, len(tasks)*n)
	for _, t := range tasks {
		byID[t.ID] = t
		group := string(purpose) + "/" + t.ID
		for a := range n {
			specs = append(specs, EpisodeSpec{ID: fmt.Sprintf("%s/%d", group, a), Group: group, Task: t.ID, Attempt: a,
				Seed: seed<<20 + int64(len(specs)), Purpose: purpose})
		}
	}
	return byID, specs
}

// Bounds are the limits of a collection outside a run.
type Bounds struct {
	Concurrency int           // episodes under way at once, 1 or more
	MaxRetries  int           // times an episode lost to infrastructure is run again, as schedule.max_retries does in a run
	Barrier     time.Duration // longest wait for probes at the end
}

// Collect runs episodes, waits for their verdicts and returns them in the order of the specs. Each is told to done as it
// ends for good.
func Collect(ctx context.Context, rollouts Rollouts, probes Probes, tasks map[string]*milepost.Task, specs []EpisodeSpec, bounds Bounds, done func(*milepost.Episode)) ([]*milepost.Episode, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := make([]*milepost.Episode, len(specs))
	slots := make(chan struct{}, bounds.Concurrency)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, s := range specs {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			ep, err := runWithRetries(ctx, rollouts, tasks[s.Task], s, bounds.MaxRetries)
			if err != nil {
				cancel(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[i] = ep
			if done != nil {
				done(ep)
			}
		}()
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, milepost.Wrap("orchestrator: collect", milepost.KindCanceled, context.Cause(ctx))
	}
	if err := fillProbes(ctx, probes, out, bounds.Barrier); err != nil {
		return nil, err
	}
	for _, ep := range out {
		grade(ep, tasks[ep.Task])
	}
	return out, nil
}

// Grade waits for the verdict of one episode that has ended, at most three times the bound, and sets its outcome. An
// episode whose verdict infrastructure lost has status infra_error afterwards.
func Grade(ctx context.Context, probes Probes, ep *milepost.Episode, task *milepost.Task, bound time.Duration) error {
	if err := fillProbes(ctx, probes, []*milepost.Episode{ep}, bound); err != nil {
		return err
	}
	grade(ep, task)
	return nil
}

// runWithRetries runs an episode, and again under a new id while infrastructure loses it.
func runWithRetries(ctx context.Context, rollouts Rollouts, task *milepost.Task, s EpisodeSpec, retries int) (*milepost.Episode, error) {
	for {
		ep, err := rollouts.Run(ctx, task, s)
		if err != nil || !lost(ep.Status) || s.Retry >= retries || ctx.Err() != nil {
			return ep, err
		}
		s = retried(s)
	}
}

// finalOnly is the episode as one step that leads to the final tree, probed by the verdict: its potential is the final
// one, whether or not the steps were probed.
func finalOnly(ep *milepost.Episode) *milepost.Episode {
	out := *ep
	out.Steps = []milepost.Step{{Valid: true, Executed: true, State: "start", Tree: ep.FinalTree, Probe: ep.Outcome.Verdict}}
	return &out
}

// Accept returns the episodes that a rule keeps. Improved is judged by the potential of the final tree that the credit
// engine computes from the verdict and the task's baseline. A baseline that does not come within the barrier's bound is
// an error of kind timeout: without it nothing can be said of the episodes of its task.
func Accept(ctx context.Context, rule Acceptance, eps []*milepost.Episode, tasks map[string]*milepost.Task, probes Probes, engine *credit.Engine, barrier time.Duration) ([]*milepost.Episode, error) {
	var inputs []credit.Input
	for _, ep := range eps {
		b, err := boundedBaseline(ctx, probes, tasks[ep.Task], barrier)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, credit.Input{Episode: finalOnly(ep), Task: tasks[ep.Task], Baseline: b})
	}
	assigned, err := engine.Assign(inputs)
	if err != nil {
		return nil, err
	}
	var out []*milepost.Episode
	for i, ep := range eps {
		c := assigned.Episodes[i]
		if c.Excluded || ep.Status != milepost.EpisodeCompleted {
			continue
		}
		switch rule {
		case AcceptResolved:
			if ep.Outcome.Resolved {
				out = append(out, ep)
			}
		case AcceptImproved:
			if c.Steps[0].PhiVer > 0 {
				out = append(out, ep)
			}
		default:
			return nil, milepost.E("orchestrator: accept", milepost.KindInvalid, "acceptance %q is not one of resolved, improved", rule)
		}
	}
	return out, nil
}

// boundedBaseline waits for a baseline at most so long.
func boundedBaseline(ctx context.Context, probes Probes, task *milepost.Task, bound time.Duration) (*milepost.Probe, error) {
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	b, err := probes.Baseline(bounded, task)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return nil, milepost.E("orchestrator: accept", milepost.KindTimeout, "the baseline of task %s did not come within %s (schedule.barrier); is a shadow worker alive?", task.ID, bound)
	}
	return b, err
}

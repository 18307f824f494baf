package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// bringAttempts and bringPause bound how long a replica that came up is brought weights in vain. The run may be in the middle
// of an update: then the canary, which asks the trainer, refuses the old weights, and the push of the new ones is awaited.
const (
	bringAttempts = 10
	bringPause    = 2 * time.Second
)

// usePusher makes pushes possible by the trainer; vocab is the size of the model's vocabulary. What the replicas serve from an
// earlier run says nothing to this one: they join anew.
func (s *serving) usePusher(ctx context.Context, trainer weights.Trainer, vocab int) error {
	cfg := s.cfg.Weights
	cfg.Canary.Vocab = vocab
	method, err := weights.NewMethod(cfg, trainer)
	if err != nil {
		return err
	}
	pusher, err := weights.New(method, cfg, weights.Deps{Scorer: trainer, Gate: s.pool, Model: s.cfg.Policy.Pool.Model})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.supersede(order{})
	for s.pushing() {
		changed := s.changed
		s.mu.Unlock()
		err := s.wait(ctx, changed)
		s.mu.Lock()
		if err != nil {
			return err
		}
	}
	s.pusher = pusher
	for _, r := range s.replicas {
		if r.forget(); r.up {
			s.pool.Remove(r.url)
			if err := s.pool.Add(r.url); err != nil {
				return err
			}
		}
	}
	return nil
}

// pushing reports whether a push is under way; mu is held.
func (s *serving) pushing() bool {
	for _, r := range s.replicas {
		if r.busy {
			return true
		}
	}
	return false
}

// Push implements orchestrator.Weights: the version is what every replica is to serve from here on. It returns once one does
// and each that was up has been tried; only where none takes it, it waits for one that is on its way up. A server that died under
// the push is known for dead a little later, so one that does not answer has reapGrace and a lease to be.
func (s *serving) Push(ctx context.Context, version int32, dir string) (map[string]float64, error) {
	s.mu.Lock()
	if s.pusher == nil {
		s.mu.Unlock()
		return nil, milepost.E("push", milepost.KindInternal, "no pusher")
	}
	s.supersede(order{number: s.want.number + 1, version: version, dir: dir})
	s.mu.Unlock()
	tried := map[*replica]int{}
	var failure error
	var failed time.Time
	for {
		s.mu.Lock()
		targets, done, coming := s.targets(tried)
		changed := s.changed
		s.mu.Unlock()
		switch {
		case len(targets) > 0:
			report, err := s.push(ctx, targets)
			if err == nil {
				err = s.settle(ctx)
			}
			if err == nil || ctx.Err() != nil {
				return s.figures(report), err
			}
			failure, failed = err, time.Now()
		case done:
			return s.figures(weights.Report{Version: version}), s.settle(ctx)
		case failure != nil && !coming:
			if milepost.KindOf(failure) != milepost.KindUnavailable || !s.waitUntil(ctx, changed, failed.Add(reapGrace+s.cfg.Serve.Lease)) {
				return nil, failure
			}
		default:
			if err := s.wait(ctx, changed); err != nil {
				return nil, err
			}
		}
	}
}

// supersede makes an order the current one. What bring is pushing of the one before ends: the canary would refuse it, since the
// trainer has gone on. mu is held.
func (s *serving) supersede(o order) {
	if s.want.end != nil {
		s.want.end()
	}
	o.ctx, o.end = context.WithCancel(s.ctx)
	s.want = o
}

// settle waits until the replicas that are just being brought weights were tried with the current ones, whether they took them or
// not. Only now can they be: the canary asks the trainer, which goes on to other weights when Push returns. Where updates
// follow one another closely, a replica would else be refused each time.
func (s *serving) settle(ctx context.Context) error {
	for {
		s.mu.Lock()
		changed, number := s.changed, s.want.number
		open := slices.ContainsFunc(s.replicas, func(r *replica) bool { return r.brings && r.up && r.tried < number })
		s.mu.Unlock()
		if !open {
			return nil
		}
		if err := s.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// waitUntil waits for a change, and reports whether there was one before end.
func (s *serving) waitUntil(ctx context.Context, changed <-chan struct{}, end time.Time) bool {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	return s.wait(ctx, changed) == nil && ctx.Err() == nil
}

// targets are the replicas to push to now, which become busy: those that are up and were not tried since they are, by the start
// noted in tried. Done says that one has what is current, brought when it came up; coming, that one may yet. mu is held.
func (s *serving) targets(tried map[*replica]int) (out []*replica, done, coming bool) {
	coming = len(s.cfg.Server.URLs) == 0 && s.cfg.Server.Replicas == 0 && !slices.ContainsFunc(s.replicas, func(r *replica) bool { return r.up }) // one may join
	for _, r := range s.replicas {
		switch {
		case r.up && r.has == s.want.number:
			done = true
		case r.up && !r.busy && tried[r] != r.start:
			r.busy, tried[r] = true, r.start
			out = append(out, r)
		case r.busy || r.started && !r.up && r.lost == nil:
			coming = true
		}
	}
	return out, done, coming
}

// push pushes what is current to the targets, which are busy until then.
func (s *serving) push(ctx context.Context, targets []*replica) (weights.Report, error) {
	approved := map[string]int32{}
	for _, e := range s.pool.Snapshot() {
		approved[e.URL] = e.Approved
	}
	s.mu.Lock()
	want, pusher := s.want, s.pusher
	urls, starts := make([]string, len(targets)), make([]int, len(targets))
	for i, r := range targets {
		urls[i], starts[i] = r.url, r.start
		if was, ok := approved[r.url]; ok && was >= want.version { // the gate tells pushes apart by versions that rise
			s.pool.Quarantine(r.url, want.version, fmt.Errorf("it serves version %d, and is to serve version %d", was, want.version))
		}
	}
	s.mu.Unlock()
	report, err := pusher.Push(ctx, want.version, want.dir, urls)
	s.record(report)
	taken := map[string]bool{}
	for _, e := range report.Endpoints {
		taken[e.URL] = e.Approved
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range targets {
		switch r.busy = false; {
		case r.start != starts[i] || !r.up: // what it was, or went down in the middle
		case taken[urls[i]]:
			r.served, r.has, r.tried, r.lost = want.version, want.number, want.number, nil
		default:
			r.served, r.tried = policy.NoVersion, want.number // nobody knows what it serves now
		}
	}
	s.tell()
	return report, err
}

// record appends to pushes.jsonl, beside the logs, what a push was to each replica: pause, load, gaps, attempts, verdict.
// It is for people; nothing reads it.
func (s *serving) record(report weights.Report) {
	line, err := json.Marshal(report)
	if err == nil {
		err = os.MkdirAll(s.dir, 0o755)
	}
	if err == nil {
		err = orchestrator.AppendLine(filepath.Join(s.dir, "pushes.jsonl"), line)
	}
	if err != nil {
		s.say(fmt.Sprintf("the figures of the push of v%d could not be stored: %v", report.Version, err))
	}
}

// bring pushes to a replica that came up until it has what is current, which may change meanwhile.
func (s *serving) bring(r *replica, start int) {
	defer s.brought(r, start)
	for attempt := 0; ; {
		ctx, ok := s.claim(r, start)
		if !ok {
			return
		}
		report, err := s.push(ctx, []*replica{r})
		switch {
		case err == nil:
			attempt = 0
			s.say(fmt.Sprintf("%s: weights v%d are served%s; canary agrees", s.label(r), report.Version, map[bool]string{true: " again"}[start > 1]))
			continue
		case ctx.Err() != nil && s.ctx.Err() == nil: // superseded
			continue
		}
		if attempt++; attempt == bringAttempts {
			s.lose(r, milepost.E("serve", milepost.KindUnavailable, "%s: the weights could not be pushed to it: %w", s.label(r), err))
			return
		}
		select {
		case <-time.After(bringPause):
		case <-s.ctx.Done():
		}
	}
}

// brought ends a bring, unless one of a later start is at it.
func (s *serving) brought(r *replica, start int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.start == start {
		r.brings = false
		s.tell()
	}
}

// claim makes a replica busy for bring once no other push to it is under way, and gives the order's context; false where there is
// nothing to bring any more.
func (s *serving) claim(r *replica, start int) (context.Context, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.ctx.Err() == nil && r.up && r.start == start && r.has != s.want.number {
		if !r.busy {
			r.busy = true
			return s.want.ctx, true
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.ctx.Done():
		}
		s.mu.Lock()
	}
	return nil, false
}

// figures are a push's, with what the replicas and their requests came to since the one before.
func (s *serving) figures(report weights.Report) map[string]float64 {
	out := report.Metrics()
	for _, state := range []policy.State{policy.StateOpen, policy.StateQuarantined} {
		out["replicas_"+string(state)] = 0
	}
	for _, e := range s.pool.Snapshot() {
		if n, ok := out["replicas_"+string(e.State)]; ok {
			out["replicas_"+string(e.State)] = n + 1
		}
	}
	totals := s.pool.Totals()
	s.mu.Lock()
	defer s.mu.Unlock()
	out["turns_rerun"] = float64(totals.Rerun - s.told.Rerun)
	out["answers_held"] = float64(totals.Held - s.told.Held)
	out["answers_dropped"] = float64(totals.Dropped - s.told.Dropped)
	s.told = totals
	return out
}

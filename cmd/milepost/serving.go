package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// serving is the policy's replicas, the pool that samples from them, and the pushes.
//
//   - serving.go: what is common to all replicas, and when a run has none left
//   - serving_replica.go: one replica and how it goes from one state to another; serving_start.go: those that are started here
//     and supervised; serving_watch.go: the user's own; serving_join.go: those on other machines
//   - serving_push.go: weights
//
// Invariants:
//   - What stands below mu is guarded by it, the replicas' fields too. changed is closed and replaced at every change of it.
//   - A replica is in the pool exactly while it is up. It samples there only after the canary agreed to the current weights
//     (the pool's gate), or, where nobody judges, since it is up.
//   - One push to a replica at a time (busy). A push goes to those that are up; one that comes up later is brought what is
//     current then. So a push waits for a replica that is down only where there is no other.
//   - The run fails when every replica is given up; one that has only joiners waits for others.
type serving struct {
	cfg   configs.Run
	dir   string // of logs and of the identities of started processes
	pool  *policy.Pool
	model *policy.TokenModel
	say   func(string)

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	work   sync.WaitGroup // everything that runs for this serving

	mu       sync.Mutex
	replicas []*replica
	pusher   *weights.Pusher
	unjudged bool              // no trainer will judge: replicas sample as they are
	want     order             // what every replica is to serve
	told     policy.PoolTotals // by the metrics of the last push
	changed  chan struct{}
	endErr   error // of services that could not end

	failOnce sync.Once
	failed   chan struct{} // closed when every replica is given up
	failure  error         // why; read only after failed is closed
}

// guard returns a context that ends, with the reason as its cause, when every replica is given up.
func (s *serving) guard(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.failed:
			cancel(s.failure)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// serve is startServing, with the wait for servers of our own announced.
func serve(ctx context.Context, cfg configs.Run, model, dir string, p *progress) (*serving, error) {
	if len(cfg.Server.URLs) == 0 && cfg.Server.Replicas > 0 {
		p.line("starting vLLM (one to two minutes on two cores)")
	}
	return startServing(ctx, cfg, model, dir, func(text string) { p.line("%s", text) })
}

// startServing starts the replicas (or takes the configured URLs) with the given model and returns at once; waitReady
// waits until one serves.
func startServing(ctx context.Context, cfg configs.Run, model, dir string, say func(string)) (*serving, error) {
	s := &serving{cfg: cfg, dir: dir, say: say, changed: make(chan struct{}), failed: make(chan struct{})}
	pool := cfg.Policy.Pool
	if len(cfg.Server.URLs) == 0 {
		pool.Model = cfg.Server.Name
	}
	var err error
	if s.pool, err = policy.NewPool(pool, policy.PoolDeps{}); err != nil {
		return nil, err
	}
	if s.model, err = policy.NewTokenModel(s.pool, cfg.Policy.Token); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	server := cfg.Server
	server.Model = model
	if len(server.URLs) > 0 {
		err = s.takeURLs(server.URLs)
	} else {
		err = s.startReplicas(ctx, server)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// waitReady returns once a replica serves and its chat template was found fit for token-exact rollouts.
func (s *serving) waitReady(ctx context.Context) error {
	for {
		s.mu.Lock()
		up, changed := slices.ContainsFunc(s.replicas, func(r *replica) bool { return r.up }), s.changed
		s.mu.Unlock()
		if up {
			return s.model.Ready(ctx)
		}
		if err := s.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// wait waits for a change; it fails where none can help any more.
func (s *serving) wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-s.failed:
		return s.failure
	case <-ctx.Done():
		return milepost.Wrap("wait for vLLM", milepost.KindCanceled, context.Cause(ctx))
	}
}

// tell wakes those who wait for a change; mu is held.
func (s *serving) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// giveUpIfNone fails the run where every replica is given up; mu is held.
func (s *serving) giveUpIfNone() {
	var why []error
	for _, r := range s.replicas {
		if r.lost == nil {
			return
		}
		why = append(why, r.lost)
	}
	if len(s.cfg.Server.URLs) == 0 && s.cfg.Server.Replicas == 0 {
		return // others may join
	}
	if len(why) > 0 {
		s.failOnce.Do(func() { s.failure = errors.Join(why...); close(s.failed) })
	}
}

// label names a replica in messages.
func (s *serving) label(r *replica) string {
	if len(s.cfg.Server.URLs) == 0 && s.cfg.Server.Replicas == 1 && r.started {
		return "vLLM"
	}
	return fmt.Sprintf("vLLM %s", r.name)
}

// close stops the replicas that this process started or adopted. Why they were given up was told before.
func (s *serving) close() error {
	s.cancel()
	s.work.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.endErr, s.forget())
}

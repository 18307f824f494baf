package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
	"github.com/milepost-rl/milepost/rollout/policy"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// serving is the policy's servers: supervised or the user's own, the pool that samples from them, and the pushes.
//
// Invariants: after a server was started anew it serves no request until the current weights were pushed to it and the
// canary agreed, because the gate is shut when it exits and only a push opens it. current is guarded by mu.
type serving struct {
	cfg   configs.Run
	dir   string // of logs and of the identities of started processes
	pool  *policy.Pool
	model *policy.TokenModel
	say   func(string)

	mu      sync.Mutex
	disk    *weights.Disk
	version int32
	weights string // directory of the weights served; "" = those that the server started with

	cancel    context.CancelFunc
	done      chan error
	readyOnce sync.Once
	ready     chan struct{} // closed once it is known whether the server serves
	readyErr  error
	failed    chan struct{} // closed when the server is given up
	failure   error
}

// guard returns a context that ends, with the reason as its cause, when the server is given up.
func (s *serving) guard(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.failed:
			cancel(milepost.E("serve", milepost.KindUnavailable, "vLLM keeps failing: %w", s.failure))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// settle says, the first time only, that the server serves or why it never will.
func (s *serving) settle(err error) {
	s.readyOnce.Do(func() { s.readyErr = err; close(s.ready) })
}

// startServing starts the server (or takes the configured URLs) with the given model and returns at once; waitReady
// waits until it serves.
func startServing(ctx context.Context, cfg configs.Run, model, dir string, say func(string)) (*serving, error) {
	s := &serving{cfg: cfg, dir: dir, say: say, done: make(chan error, 1), ready: make(chan struct{}), failed: make(chan struct{})}
	server := cfg.Server
	server.Model = model
	service, err := s.service(&server)
	if err != nil {
		return nil, err
	}
	pool := cfg.Policy.Pool
	pool.URLs = server.Addresses()
	if len(server.URLs) == 0 {
		pool.Model = server.Name
	}
	if s.pool, err = policy.NewPool(pool, policy.PoolDeps{}); err != nil {
		return nil, err
	}
	if s.model, err = policy.NewTokenModel(s.pool, cfg.Policy.Token); err != nil {
		return nil, err
	}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if service == nil {
		s.settle(nil)
		s.done <- nil
		return s, nil
	}
	go func() {
		err := service.Run(ctx)
		s.settle(errors.Join(err, ctx.Err())) // matters only where it ended before it was ready
		s.done <- err
	}()
	return s, nil
}

// service prepares the supervised server, nil where the user's own are used. A server of an earlier epoch that still
// runs is adopted at its port.
func (s *serving) service(server *vllm.ServerConfig) (*supervise.Service, error) {
	if len(server.URLs) > 0 {
		return nil, nil
	}
	environment := ""
	if len(server.Command) == 0 {
		var err error
		if environment, err = trainerbridge.Environment(trainerbridge.EnvServer); err != nil {
			return nil, err
		}
	}
	old := s.readIdentity()
	if old != nil && old.Identity.Alive() {
		server.Port = old.Port
	} else {
		with, err := server.WithPort()
		if err != nil {
			return nil, err
		}
		*server = with
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, milepost.Wrap("start server", milepost.KindUnavailable, err)
	}
	spec, err := supervise.VLLM("vllm-0", *server, environment, filepath.Join(s.dir, "vllm-0.log"))
	if err != nil {
		return nil, err
	}
	service := &supervise.Service{Spec: spec, Restart: supervise.DefaultRestart(), Notify: s.notify(server.Port)}
	if old != nil {
		service.Adopt = &old.Identity
	}
	return service, nil
}

// notify keeps the gate and the journal of identities in step with the server.
func (s *serving) notify(port int) func(supervise.Event) {
	starts := 0
	return func(e supervise.Event) {
		switch e.Kind {
		case supervise.EventStarted, supervise.EventAdopted:
			s.writeIdentity(serverIdentity{Identity: e.Identity, Port: port})
		case supervise.EventReady:
			if starts++; starts == 1 {
				s.settle(nil)
				return
			}
			s.say("vLLM is up again; pushing the weights")
			go s.pushAgain()
		case supervise.EventExited:
			if e.Exit.Asked {
				return
			}
			s.pool.Pause()
			s.say(fmt.Sprintf("vLLM ended (%s); starting it again in %v", e.Exit.Reason, e.Wait.Round(time.Millisecond)))
		case supervise.EventGaveUp:
			s.failure = e.Err
			close(s.failed)
		}
	}
}

func (s *serving) pushAgain() {
	s.mu.Lock()
	disk, version, dir := s.disk, s.version, s.weights
	s.mu.Unlock()
	if disk == nil {
		s.pool.Resume() // nothing was ever pushed: it serves the model it was started with
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := disk.Push(ctx, version, dir); err != nil {
		s.say(fmt.Sprintf("push after a restart failed, the gate stays shut: %v", err))
	}
}

// waitReady returns once the server can serve and its chat template was found fit for token-exact rollouts.
func (s *serving) waitReady(ctx context.Context) error {
	select {
	case <-s.ready:
		if s.readyErr != nil {
			return s.readyErr
		}
	case <-ctx.Done():
		return milepost.Wrap("wait for vLLM", milepost.KindCanceled, ctx.Err())
	}
	return s.model.Ready(ctx)
}

// usePusher makes pushes possible: scorer is the trainer, vocab the size of the model's vocabulary.
func (s *serving) usePusher(scorer weights.Scorer, vocab int) error {
	cfg := s.cfg.Weights
	cfg.Canary.Vocab = vocab
	disk, err := weights.NewDisk(s.addresses(), cfg, weights.Deps{Scorer: scorer, Gate: s.pool})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disk = disk
	return nil
}

func (s *serving) addresses() []string {
	var out []string
	for _, e := range s.pool.Stats() {
		out = append(out, e.URL)
	}
	return out
}

// Push implements orchestrator.Weights.
func (s *serving) Push(ctx context.Context, version int32, dir string) (map[string]float64, error) {
	s.mu.Lock()
	disk := s.disk
	s.version, s.weights = version, dir
	s.mu.Unlock()
	if disk == nil {
		return nil, milepost.E("push", milepost.KindInternal, "no pusher")
	}
	report, err := disk.Push(ctx, version, dir)
	return report.Metrics(), err
}

// close stops a server that this process started.
func (s *serving) close() error {
	s.cancel()
	err := <-s.done
	return errors.Join(err, os.RemoveAll(s.identityFile()))
}

// serverIdentity is what a resumed run needs to adopt the server.
type serverIdentity struct {
	Identity supervise.Identity `json:"identity"`
	Port     int                `json:"port"`
}

func (s *serving) identityFile() string { return filepath.Join(s.dir, "vllm-0.json") }

func (s *serving) readIdentity() *serverIdentity {
	var id serverIdentity
	b, err := os.ReadFile(s.identityFile())
	if err != nil || json.Unmarshal(b, &id) != nil {
		return nil
	}
	return &id
}

func (s *serving) writeIdentity(id serverIdentity) {
	b, err := json.Marshal(id)
	if err == nil {
		err = os.WriteFile(s.identityFile(), b, 0o644)
	}
	if err != nil {
		s.say(fmt.Sprintf("the server's identity could not be stored, so a resumed run cannot adopt it: %v", err))
	}
}

package main

import (
	"context"
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
// canary agreed, because the gate is shut when it exits and only a push opens it. A push waits for a server that is on
// its way up. What stands below mu is guarded by it.
type serving struct {
	cfg   configs.Run
	dir   string // of logs and of the identities of started processes
	pool  *policy.Pool
	model *policy.TokenModel
	say   func(string)

	pushing sync.Mutex // held during a push, taken before mu: a push after a restart reads what is current under it
	mu      sync.Mutex
	pusher  *weights.Pusher
	version int32
	weights string        // directory of the weights served; "" = those that the server started with
	up      chan struct{} // closed while the server serves

	cancel    context.CancelFunc
	done      chan error
	readyOnce sync.Once
	ready     chan struct{} // closed once it is known whether the server serves
	readyErr  error
	failOnce  sync.Once
	failed    chan struct{} // closed when the server is given up
	failure   error         // why; read only after failed is closed
}

// guard returns a context that ends, with the reason as its cause, when the server is given up.
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

// fail gives the server up, the first time only.
func (s *serving) fail(err error) {
	s.failOnce.Do(func() { s.failure = err; close(s.failed) })
}

// settle says, the first time only, that the server serves or why it never will.
func (s *serving) settle(err error) {
	s.readyOnce.Do(func() { s.readyErr = err; close(s.ready) })
}

// serve is startServing, with the wait for a server of our own announced.
func serve(ctx context.Context, cfg configs.Run, model, dir string, p *progress) (*serving, error) {
	if len(cfg.Server.URLs) == 0 {
		p.line("starting vLLM (one to two minutes on two cores)")
	}
	return startServing(ctx, cfg, model, dir, func(text string) { p.line("%s", text) })
}

// startServing starts the server (or takes the configured URLs) with the given model and returns at once; waitReady
// waits until it serves.
func startServing(ctx context.Context, cfg configs.Run, model, dir string, say func(string)) (*serving, error) {
	s := &serving{cfg: cfg, dir: dir, say: say, done: make(chan error, 1), ready: make(chan struct{}), failed: make(chan struct{}), up: make(chan struct{})}
	server := cfg.Server
	server.Model = model
	service, err := s.service(ctx, &server)
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
	go func() {
		if service == nil {
			close(s.up)
			s.settle(nil)
			s.pool.Run(ctx) // nobody supervises the user's servers: their health is asked for
			s.done <- nil
			return
		}
		err := service.Run(ctx)
		s.settle(errors.Join(err, ctx.Err())) // matters only where it ended before it was ready
		s.done <- err
	}()
	return s, nil
}

// service prepares the supervised server, nil where the user's own are used. A server of an earlier epoch that still
// runs is adopted at its port if it was started for such a model and with such settings; any other is ended first.
func (s *serving) service(ctx context.Context, server *vllm.ServerConfig) (*supervise.Service, error) {
	if len(server.URLs) > 0 {
		return nil, nil
	}
	environment := ""
	var err error
	if server.Plugins, err = trainerbridge.PythonPath(); err != nil {
		return nil, err
	}
	if len(server.Command) == 0 {
		if environment, err = trainerbridge.Environment(trainerbridge.EnvServer); err != nil {
			return nil, err
		}
	}
	serves, err := servesWhat(*server, environment)
	if err != nil {
		return nil, err
	}
	old := readIdentity(s.identityFile())
	adopt := old != nil && old.Serves == serves && old.Identity.Alive()
	if adopt {
		server.Port = old.Port
	} else if old != nil {
		if _, err := supervise.Reap(ctx, []supervise.Identity{old.Identity}, 15*time.Second); err != nil {
			return nil, err
		}
	}
	if !adopt {
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
	service := &supervise.Service{Spec: spec, Restart: supervise.DefaultRestart(), Notify: s.notify(server.Port, serves)}
	if adopt {
		service.Adopt = &old.Identity
		return service, nil
	}
	return service, spec.Startable()
}

// notify keeps the gate and the stored identity in step with the server.
func (s *serving) notify(port int, serves string) func(supervise.Event) {
	starts := 0
	return func(e supervise.Event) {
		switch e.Kind {
		case supervise.EventStarted, supervise.EventAdopted:
			if e.Kind == supervise.EventAdopted {
				s.say(fmt.Sprintf("vLLM of the run's last start still serves (process %d): adopted", e.Identity.PID))
			}
			if err := writeIdentity(s.identityFile(), serverIdentity{Identity: e.Identity, Port: port, Serves: serves}); err != nil {
				s.say(fmt.Sprintf("the server's identity could not be stored, so a resumed run cannot adopt it: %v", err))
			}
		case supervise.EventReady:
			close(s.upNow())
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
			s.down()
			s.say(fmt.Sprintf("vLLM ended (%s); starting it again in %v", e.Exit.Reason, e.Wait.Round(time.Millisecond)))
		case supervise.EventGaveUp:
			s.fail(milepost.E("serve", milepost.KindUnavailable, "vLLM keeps failing: %w", e.Err))
		}
	}
}

// down makes pushes wait for the next start; those that wait already go on waiting.
func (s *serving) down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.up:
		s.up = make(chan struct{})
	default:
	}
}

// upNow is the channel that is closed while the server serves.
func (s *serving) upNow() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up
}

// pushAgain serves the current weights from a server that was started anew. The run may be in the middle of an update:
// then the canary, which asks the trainer, refuses the old weights, and the push of the new ones is awaited.
func (s *serving) pushAgain() {
	const attempts = 10
	var err error
	for range attempts {
		var version int32
		var up chan struct{}
		var none bool
		if version, up, none, err = s.pushCurrent(); none {
			s.pool.Resume() // nothing was ever pushed: it serves the model it was started with
			return
		}
		if err == nil {
			s.say(fmt.Sprintf("weights v%d are served again; canary agrees", version))
			return
		}
		time.Sleep(2 * time.Second)
		s.mu.Lock()
		over := s.version != version || s.up != up // a newer push or another start has taken over
		s.mu.Unlock()
		if over {
			return
		}
	}
	s.fail(milepost.E("serve", milepost.KindUnavailable, "the weights could not be pushed to the restarted server: %w", err))
}

// pushCurrent pushes what is current once no other push is under way; none where nothing was ever pushed.
func (s *serving) pushCurrent() (version int32, up chan struct{}, none bool, err error) {
	s.pushing.Lock()
	defer s.pushing.Unlock()
	s.mu.Lock()
	pusher, version, dir, up := s.pusher, s.version, s.weights, s.up
	s.mu.Unlock()
	if pusher == nil {
		return 0, up, true, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	_, err = pusher.Push(ctx, version, dir, s.addresses())
	return version, up, false, err
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

// usePusher makes pushes possible by the trainer; vocab is the size of the model's vocabulary.
func (s *serving) usePusher(trainer weights.Trainer, vocab int) error {
	cfg := s.cfg.Weights
	cfg.Canary.Vocab = vocab
	method, err := weights.NewMethod(cfg, trainer)
	if err != nil {
		return err
	}
	pusher, err := weights.New(method, cfg, weights.Deps{Scorer: trainer, Gate: &poolGate{pool: s.pool}})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pusher = pusher
	return nil
}

// poolGate is the gate of a pool whose endpoints are shut and opened together: it is open while no replica is shut.
type poolGate struct {
	pool *policy.Pool
	mu   sync.Mutex
	shut map[string]bool
}

// Shut implements weights.Gate.
func (g *poolGate) Shut(url string) { g.set(url, true) }

// Approve implements weights.Gate.
func (g *poolGate) Approve(url string, _ int32) { g.set(url, false) }

// Quarantine implements weights.Gate: the replica stays shut.
func (g *poolGate) Quarantine(string, int32, error) {}

func (g *poolGate) set(url string, shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = map[string]bool{}
	}
	if g.shut[url] = shut; shut {
		g.pool.Pause()
		return
	}
	if delete(g.shut, url); len(g.shut) == 0 {
		g.pool.Resume()
	}
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
	pusher, up := s.pusher, s.up
	s.version, s.weights = version, dir
	s.mu.Unlock()
	if pusher == nil {
		return nil, milepost.E("push", milepost.KindInternal, "no pusher")
	}
	select {
	case <-up:
	case <-s.failed:
		return nil, s.failure
	case <-ctx.Done():
		return nil, milepost.Wrap("push", milepost.KindCanceled, context.Cause(ctx))
	}
	s.pushing.Lock()
	defer s.pushing.Unlock()
	report, err := pusher.Push(ctx, version, dir, s.addresses())
	return report.Metrics(), err
}

// close stops a server that this process started or adopted. Why a server was given up was told before.
func (s *serving) close() error {
	s.cancel()
	err := <-s.done
	select {
	case <-s.failed:
		err = nil
	default:
	}
	return errors.Join(err, os.RemoveAll(s.identityFile()))
}

func (s *serving) identityFile() string { return filepath.Join(s.dir, "vllm-0.json") }

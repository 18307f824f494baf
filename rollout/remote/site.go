package remote

import (
	"context"
	"log/slog"
	"sync"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// Policy is the model of a run at a worker, over the endpoints of the run's notices.
type Policy interface {
	rollout.Model
	Follow([]policy.EndpointState) error // mirrors the pool of the run; never out of order
	Close()
}

// tokenPolicy is the token-exact model over a mirror of the run's pool.
type tokenPolicy struct {
	*policy.TokenModel
	pool *policy.Pool
	end  func()
}

// NewPolicy makes the model that training uses: its tokens leave only as the run's own gate allows (policy.Pool.Follow). Errors:
// KindInvalid.
func NewPolicy(s Settings) (Policy, error) {
	pool, err := policy.NewPool(s.Pool, policy.PoolDeps{Fresh: s.Fresh})
	if err != nil {
		return nil, err
	}
	model, err := policy.NewTokenModel(pool, s.Token)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { pool.Run(ctx) }) // health as this machine sees it
	return &tokenPolicy{model, pool, func() { cancel(); wg.Wait() }}, nil
}

func (p *tokenPolicy) Follow(states []policy.EndpointState) error { return p.pool.Follow(states) }

func (p *tokenPolicy) Close() { p.end() }

// site is what a worker has of one epoch of a run: its policy and its agent loops. It routes the loops' probe requests to the
// episode that they are of.
type site struct {
	policy      Policy
	train, eval *rollout.Runner // with and without probes of steps

	mu       sync.Mutex
	episodes map[string]*probes
}

func (w *Worker) newSite(s Settings) (*site, error) {
	out := &site{episodes: map[string]*probes{}}
	var err error
	if out.policy, err = w.deps.Policy(s); err != nil {
		return nil, err
	}
	deps := rollout.Deps{Env: w.deps.Env, Bases: w.deps.Bases, Blobs: w.deps.Blobs, Model: out.policy, Prober: out, Log: slog.New(slog.DiscardHandler)}
	s.Rollout.ProbeSteps = true
	if out.train, err = rollout.New(s.Rollout, deps); err == nil {
		s.Rollout.ProbeSteps = false
		out.eval, err = rollout.New(s.Rollout, deps)
	}
	if err != nil {
		out.policy.Close()
		return nil, err
	}
	return out, nil
}

// endpoints asks the run of an address for the states of its endpoints. Errors: KindUnavailable, KindCorrupt.
func (w *Worker) endpoints(ctx context.Context, a address) ([]policy.EndpointState, error) {
	m, err := messages.Encode(w.subj.endpoints(a.Run, a.Epoch), wireAsk{V: w.version, Worker: w.cfg.Name})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	answer, err := w.request(ctx, m)
	if err != nil {
		return nil, milepost.Wrap("remote: endpoints", milepost.KindUnavailable, err)
	}
	var out wireEndpoints
	return out.Endpoints, messages.Decode(w.version, answer.Header, answer.Data, &out)
}

// attach routes an episode's requests to p until detach.
func (s *site) attach(episode string, p *probes) (detach func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.episodes[episode] = p
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.episodes[episode] == p {
			delete(s.episodes, episode)
		}
	}
}

// Publish implements rollout.Prober.
func (s *site) Publish(_ context.Context, r milepost.ProbeRequest) error {
	s.mu.Lock()
	p := s.episodes[r.Episode]
	s.mu.Unlock()
	if p == nil {
		return milepost.E("remote: probe", milepost.KindInternal, "episode %s is not under way", r.Episode)
	}
	p.add(r)
	return nil
}

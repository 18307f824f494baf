package policy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// PoolConfig says which vLLM servers there are and how they are shared.
type PoolConfig struct {
	URLs          []string      `yaml:"urls"`           // base addresses; filled in by a run from server
	Model         string        `yaml:"model"`          // model name to send; filled in by a run from server.name, "" leaves it to the server
	APIKey        string        `yaml:"-"`              // bearer token; read from the environment by the caller, never from a file
	MaxConcurrent int           `yaml:"max_concurrent"` // requests under way per endpoint; more wait here
	Timeout       time.Duration `yaml:"timeout"`        // of one attempt
	Retries       int           `yaml:"retries"`        // attempts after the first
	Backoff       Backoff       `yaml:"backoff"`        // wait before a retry: random between 0 and min(max, base * 2^n)
	OpenAfter     int           `yaml:"open_after"`     // consecutive failures that open an endpoint's circuit
	OpenFor       time.Duration `yaml:"open_for"`       // how long it then gets no request
	HealthEvery   time.Duration `yaml:"health_every"`   // between health checks
}

// DefaultPoolConfig is every default; URLs must be set.
func DefaultPoolConfig() PoolConfig {
	return PoolConfig{
		MaxConcurrent: 64, Timeout: 10 * time.Minute, Retries: 6,
		Backoff:   Backoff{Base: 200 * time.Millisecond, Max: 10 * time.Second},
		OpenAfter: 3, OpenFor: 5 * time.Second, HealthEvery: 10 * time.Second,
	}
}

// Validate checks every field but URLs, which a supervisor may fill later; NewPool checks those.
func (c PoolConfig) Validate() error {
	const op = "policy: pool configuration"
	switch {
	case c.MaxConcurrent < 1:
		return milepost.E(op, milepost.KindInvalid, "max_concurrent is %d; it must be at least 1", c.MaxConcurrent)
	case c.Timeout <= 0:
		return milepost.E(op, milepost.KindInvalid, "timeout is %v; it must be above 0", c.Timeout)
	case c.Retries < 0:
		return milepost.E(op, milepost.KindInvalid, "retries is %d; it must be at least 0", c.Retries)
	case c.Backoff.Base <= 0 || c.Backoff.Max < c.Backoff.Base:
		return milepost.E(op, milepost.KindInvalid, "backoff is %v to %v; base must be above 0 and max at least base", c.Backoff.Base, c.Backoff.Max)
	case c.OpenAfter < 1 || c.OpenFor <= 0:
		return milepost.E(op, milepost.KindInvalid, "open_after is %d and open_for %v; they must be at least 1 and above 0", c.OpenAfter, c.OpenFor)
	case c.HealthEvery <= 0:
		return milepost.E(op, milepost.KindInvalid, "health_every is %v; it must be above 0", c.HealthEvery)
	}
	return nil
}

// Pool shares vLLM endpoints among conversations.
//
// Invariants, under mu:
//   - a request runs at one endpoint only and is counted in its running until it ends; running never exceeds MaxConcurrent
//   - an endpoint whose circuit is open gets no request; a half-open one gets one at a time
//   - while the gate is shut no request starts; those under way go on
//   - wake is closed and replaced at every change that can let a waiter go on: a request ended, the gate opened, a
//     circuit changed
//   - a session stays with its endpoint until that fails, is full while another has room, or the session is forgotten
type Pool struct {
	cfg   PoolConfig
	clock Clock
	rand  func() float64

	mu        sync.Mutex
	endpoints []*endpoint
	sessions  map[string]*endpoint
	shut      bool
	wake      chan struct{}
}

// PoolDeps is what a pool takes from outside; the zero value is the machine's.
type PoolDeps struct {
	Clock Clock          // nil = SystemClock
	Rand  func() float64 // uniform in [0, 1); nil = math/rand
	HTTP  *http.Client   // nil = one per endpoint
}

// NewPool checks the configuration and makes the pool; it contacts no endpoint.
func NewPool(cfg PoolConfig, deps PoolDeps) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(cfg.URLs) == 0 {
		return nil, milepost.E("policy: new pool", milepost.KindInvalid, "urls is empty; at least one endpoint is needed")
	}
	p := &Pool{cfg: cfg, clock: deps.Clock, rand: deps.Rand, sessions: map[string]*endpoint{}, wake: make(chan struct{})}
	if p.clock == nil {
		p.clock = SystemClock{}
	}
	if p.rand == nil {
		p.rand = uniform
	}
	seen := map[string]bool{}
	for i, u := range cfg.URLs {
		c, err := vllm.New(vllm.Config{URL: u, Model: cfg.Model, APIKey: cfg.APIKey, HTTP: deps.HTTP})
		if err != nil {
			return nil, milepost.E("policy: new pool", milepost.KindInvalid, "urls[%d]: %w", i, err)
		}
		if seen[c.URL()] {
			return nil, milepost.E("policy: new pool", milepost.KindInvalid, "urls[%d]: %s is listed twice", i, c.URL())
		}
		seen[c.URL()] = true
		p.endpoints = append(p.endpoints, &endpoint{client: c})
	}
	return p, nil
}

// Pause shuts the gate: requests that start from here on wait for Resume. Requests under way are not touched; the
// server's own pause holds them. Pausing twice is pausing once.
func (p *Pool) Pause() { p.set(true) }

// Resume opens the gate.
func (p *Pool) Resume() { p.set(false) }

func (p *Pool) set(shut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = shut
	p.broadcast()
}

// broadcast wakes every waiter; mu is held.
func (p *Pool) broadcast() {
	close(p.wake)
	p.wake = make(chan struct{})
}

// Forget ends a session's affinity.
func (p *Pool) Forget(session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, session)
}

// Stats returns the state of every endpoint.
func (p *Pool) Stats() []EndpointStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]EndpointStats, len(p.endpoints))
	for i, e := range p.endpoints {
		out[i] = EndpointStats{URL: e.client.URL(), Circuit: string(e.circuit(p.clock.Now(), p.cfg.OpenAfter)), Running: e.running, Done: e.done, Failed: e.failed}
		if e.last != nil {
			out[i].Last = e.last.Error()
		}
	}
	return out
}

// Do carries fn out at an endpoint, the session's own if it can, and tries again elsewhere with back-off where it
// fails by the endpoint's fault (KindUnavailable, KindCorrupt). It returns the address of the endpoint that answered.
// Where no attempt succeeds the error is KindUnavailable and names each endpoint with its last error.
func (p *Pool) Do(ctx context.Context, session string, fn func(context.Context, *vllm.Client) error) (string, error) {
	var avoid *endpoint
	for attempt := 0; ; attempt++ {
		e, err := p.acquire(ctx, session, avoid)
		if err == nil {
			err = p.try(ctx, e, fn)
			p.release(e, session, err)
			if !retriable(err) {
				return e.client.URL(), err
			}
			avoid = e
		} else if !errors.Is(err, errNoEndpoint) {
			return "", err
		}
		if attempt == p.cfg.Retries {
			return "", p.exhausted(attempt + 1)
		}
		if err := p.clock.Sleep(ctx, p.cfg.Backoff.Wait(attempt, p.rand())); err != nil {
			return "", ended("policy: request", err)
		}
	}
}

func retriable(err error) bool {
	k := milepost.KindOf(err)
	return k == milepost.KindUnavailable || k == milepost.KindCorrupt
}

// ended wraps the end of a context as KindTimeout or KindCanceled.
func ended(op string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return milepost.E(op, milepost.KindTimeout, "%w", err)
	}
	return milepost.Wrap(op, milepost.KindCanceled, err)
}

// try bounds one attempt by the time-out and tells the attempt's end from the caller's.
func (p *Pool) try(ctx context.Context, e *endpoint, fn func(context.Context, *vllm.Client) error) error {
	bounded, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	err := fn(bounded, e.client)
	if milepost.KindOf(err) == milepost.KindTimeout && ctx.Err() == nil {
		return milepost.E("policy: request", milepost.KindUnavailable, "%s: no answer within %v", e.client.URL(), p.cfg.Timeout)
	}
	return err
}

var errNoEndpoint = errors.New("no endpoint is available")

// acquire waits for the gate and for room, and takes a place at an endpoint. It fails with errNoEndpoint at once where
// every circuit is open.
func (p *Pool) acquire(ctx context.Context, session string, avoid *endpoint) (*endpoint, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, ended("policy: request", err)
		}
		p.mu.Lock()
		wake := p.wake
		if !p.shut {
			e, hope := p.pick(session, avoid)
			if e != nil {
				p.take(e, session)
				p.mu.Unlock()
				return e, nil
			}
			if !hope {
				p.mu.Unlock()
				return nil, errNoEndpoint
			}
		}
		p.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// pick chooses the session's endpoint if it has room, else the least loaded one; avoid, which has just failed this
// request, only where there is no other. Hope says whether waiting can help. mu is held.
func (p *Pool) pick(session string, avoid *endpoint) (best *endpoint, hope bool) {
	now := p.clock.Now()
	if own := p.sessions[session]; own != nil && own != avoid {
		if free, _ := own.room(now, p.cfg.OpenAfter, p.cfg.MaxConcurrent); free {
			return own, true
		}
	}
	for _, e := range p.endpoints {
		free, worthIt := e.room(now, p.cfg.OpenAfter, p.cfg.MaxConcurrent)
		hope = hope || worthIt
		if free && (best == nil || better(e, best, avoid)) {
			best = e
		}
	}
	return best, hope
}

func better(e, than, avoid *endpoint) bool {
	if (e == avoid) != (than == avoid) {
		return than == avoid
	}
	return e.running < than.running
}

func (p *Pool) take(e *endpoint, session string) {
	e.trial = e.circuit(p.clock.Now(), p.cfg.OpenAfter) == halfOpen
	e.running++
	if session != "" {
		p.sessions[session] = e
	}
}

// release gives the place back and lets the circuit learn from the outcome. A request's own fault (KindInvalid, …) and
// a caller that gave up say nothing about the endpoint.
func (p *Pool) release(e *endpoint, session string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.running--
	e.trial = false
	switch {
	case err == nil:
		e.done++
		e.fails = 0
	case retriable(err):
		e.failed++
		p.fail(e, err)
		if p.sessions[session] == e {
			delete(p.sessions, session)
		}
	}
	p.broadcast()
}

// fail counts a failure and opens the circuit at the bound; mu is held.
func (p *Pool) fail(e *endpoint, err error) {
	e.last = err
	if e.fails++; e.fails >= p.cfg.OpenAfter {
		e.openUntil = p.clock.Now().Add(p.cfg.OpenFor)
	}
}

func (p *Pool) exhausted(attempts int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, e := range p.endpoints {
		last := "no error yet"
		if e.last != nil {
			last = e.last.Error()
		}
		fmt.Fprintf(&b, "\n  %s (circuit %s): %s", e.client.URL(), e.circuit(p.clock.Now(), p.cfg.OpenAfter), last)
	}
	return milepost.E("policy: request", milepost.KindUnavailable, "no endpoint is left after %d attempts:%s", attempts, b.String())
}

// Run checks the health of every endpoint each HealthEvery until ctx ends: a failing one is opened before a request
// finds out, a recovered one is half-open at once.
func (p *Pool) Run(ctx context.Context) {
	for {
		p.Check(ctx)
		if p.clock.Sleep(ctx, p.cfg.HealthEvery) != nil {
			return
		}
	}
}

// Check asks every endpoint for its health once and adjusts the circuits.
func (p *Pool) Check(ctx context.Context) {
	var wg sync.WaitGroup
	for _, e := range p.endpoints {
		wg.Go(func() {
			bounded, cancel := context.WithTimeout(ctx, p.cfg.HealthEvery)
			defer cancel()
			err := e.client.Health(bounded)
			if ctx.Err() != nil {
				return
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			switch {
			case err != nil:
				e.fails = max(e.fails, p.cfg.OpenAfter-1)
				p.fail(e, err)
			case e.fails >= p.cfg.OpenAfter:
				e.openUntil = p.clock.Now()
			}
			p.broadcast()
		})
	}
	wg.Wait()
}

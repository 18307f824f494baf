package policy

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/milepost-rl/milepost"
)

// PoolConfig says which vLLM servers there are and how they are shared.
type PoolConfig struct {
	URLs          []string      `yaml:"urls"`           // base addresses; filled in by a run from server
	Model         string        `yaml:"model"`          // model name to send; filled in by a run from server.name, "" leaves it to the server
	Adapters      bool          `yaml:"-"`              // versions are LoRA adapters, which requests name; filled in by a run from weights.method
	APIKey        string        `yaml:"-"`              // bearer token; read from the environment by the caller, never from a file
	MaxConcurrent int           `yaml:"max_concurrent"` // requests under way per endpoint; more wait here
	Timeout       time.Duration `yaml:"timeout"`        // of one attempt, with the wait for the canary where its tokens are of new weights
	Retries       int           `yaml:"retries"`        // attempts after the first
	Backoff       Backoff       `yaml:"backoff"`        // wait before a retry: random between 0 and min(max, base * 2^n)
	OpenAfter     int           `yaml:"open_after"`     // consecutive failures that open an endpoint's circuit
	OpenFor       time.Duration `yaml:"open_for"`       // how long it then gets no request
	HealthEvery   time.Duration `yaml:"health_every"`   // between health checks
}

// DefaultPoolConfig is every default.
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

// Pool shares a changing set of vLLM endpoints among conversations, and keeps distrusted tokens out of them.
//
// The one rule: a sampled token leaves the pool only after the canary agreed to its version on its server. Every other
// invariant serves it, or that nobody waits in vain. All hold under mu:
//
//   - An answer leaves Sample only where each token's version was approved in its endpoint's term, which is still the one
//     that the request was placed in. Where a newer one is among them the answer is held until Approve; an older one, of a
//     server that was started anew behind our back, is the endpoint's failure.
//   - A term ends, for good, when its endpoint is quarantined, goes, is approved for older weights than before, or is pushed
//     to again after a push without a verdict: what was sampled in it, or still would be, is dropped and counted, and runs
//     again from the same prompt. So an answer that weights nobody trusts had a part in is dropped even where a repeated push
//     gives its version a good name later.
//   - The label of a token tells versions apart, not pushes. So whoever pushes a version that is not above the approved one
//     (a rollback, the same again) has the endpoint quarantined, or removed and added, before the weights change.
//   - A pool that mirrors another lags behind it. It holds longer, therefore, and before it lets an answer go it asks the
//     other (PoolDeps.Fresh) whether the term holds still.
//   - A request is either in one queue, or counted in the running of one endpoint, or has ended. Sampling requests are
//     placed at open endpoints only; others (rendering, tokenizing) at any, for they depend on no weights.
//   - running never exceeds MaxConcurrent. An endpoint whose circuit is open gets no request; a half-open one gets one
//     at a time.
//   - dispatch runs after every change that can let a waiter go on, so none waits while an endpoint that may take it has
//     room; each queue is first in, first out, so none is overtaken for ever.
//   - A session stays with its endpoint until that fails, goes, is full while another has room, or the session is
//     forgotten.
type Pool struct {
	cfg   PoolConfig
	deps  PoolDeps
	clock Clock
	rand  func() float64

	mu        sync.Mutex
	endpoints []*endpoint // in the order in which they came
	sessions  map[string]*endpoint
	queues    [2][]*place   // waiting requests: of any endpoint, of sampling
	term      uint64        // the last one given out
	changed   chan struct{} // closed and replaced when the snapshot changes
	totals    PoolTotals
}

// PoolDeps is what a pool takes from outside; the zero value is the machine's.
type PoolDeps struct {
	Clock Clock          // nil = SystemClock
	Rand  func() float64 // uniform in [0, 1); nil = math/rand
	HTTP  *http.Client   // nil = one per endpoint
	// Fresh, in a pool that follows another, asks that one for its snapshot as of after the call; nil in a pool that follows none.
	Fresh func(context.Context) ([]EndpointState, error)
}

// PoolTotals counts over the pool's life.
type PoolTotals struct {
	Rerun   int64 `json:"rerun"`   // samplings that ran again from the same prompt, for whatever fault of their endpoint
	Held    int64 `json:"held"`    // answers that had to wait for Approve
	Dropped int64 `json:"dropped"` // answers that were whole and were thrown away, because their term ended
}

// NewPool checks the configuration and makes the pool, whose URLs are joining; it contacts no endpoint.
func NewPool(cfg PoolConfig, deps PoolDeps) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Pool{cfg: cfg, deps: deps, clock: deps.Clock, rand: deps.Rand, sessions: map[string]*endpoint{}, changed: make(chan struct{})}
	if p.clock == nil {
		p.clock = SystemClock{}
	}
	if p.rand == nil {
		p.rand = uniform
	}
	// Terms of two pools differ, so that a mirror which outlives the one it followed takes none for another.
	p.term = uint64(p.clock.Now().UnixNano())
	for i, u := range cfg.URLs {
		if err := p.Add(u); err != nil {
			return nil, milepost.E("policy: new pool", milepost.KindInvalid, "urls[%d]: %w", i, err)
		}
	}
	return p, nil
}

// Config is what the pool was made with.
func (p *Pool) Config() PoolConfig { return p.cfg }

// Forget ends a session's affinity.
func (p *Pool) Forget(session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, session)
}

// Totals returns the counts so far.
func (p *Pool) Totals() PoolTotals {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.totals
}

// Stats returns the state of every endpoint with its figures.
func (p *Pool) Stats() []EndpointStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]EndpointStats, len(p.endpoints))
	for i, e := range p.endpoints {
		out[i] = EndpointStats{EndpointState: e.EndpointState, Circuit: string(e.circuit(p.clock.Now(), p.cfg.OpenAfter)),
			Running: e.running, Held: e.held, Done: e.done, Failed: e.failed}
		if e.last != nil {
			out[i].Last = e.last.Error()
		}
	}
	return out
}

// find returns the endpoint of an address, nil where there is none; mu is held.
func (p *Pool) find(url string) *endpoint {
	url = strings.TrimRight(url, "/")
	for _, e := range p.endpoints {
		if e.URL == url {
			return e
		}
	}
	return nil
}

package weights

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// Unknown is the version under which a server stands while its weights change. It is above every real one, so that
// tokens which a server samples because a load broke off are never those of an approved version.
const Unknown int32 = math.MaxInt32

// errSilent marks a call that got no answer in time: the replica hangs, so it is not tried again.
var errSilent = errors.New("no answer")

// Deps is what a pusher takes from outside.
type Deps struct {
	Scorer Scorer           // the trainer, which must hold the weights that are pushed
	Gate   Gate             // nil = nothing samples during a push
	HTTP   *http.Client     // nil = one per server
	APIKey string           // bearer token of the servers, "" = none
	Model  string           // model name that the canary asks for; "" leaves it to the server, which serves one
	Now    func() time.Time // nil = time.Now
}

// Pusher pushes weights to replicas by one method.
//
// Invariants:
//   - Replicas are independent: each is shut, updated, sung to and approved alone, and pushes to different ones run side by
//     side. One replica has one push at a time. A caller that pushes different versions to one replica orders them.
//   - A replica is approved only after the canary agreed, cold and warm, under the pushed version.
//   - From the pause until the new weights are whole a replica stands under the version Unknown. A method of kind Beside
//     pauses nothing and leaves the gate alone: what a replica serves is approved as it was until the canary agrees to more.
//   - A replica that was paused is resumed whatever happens in between.
type Pusher struct {
	method Method
	cfg    Config
	deps   Deps
	canary *canary
	turn   sync.Mutex // held while a server is updated, where the method is exclusive

	mu       sync.Mutex
	replicas map[string]*replica
	approved *Weights // that some replica took last
}

// replica is one server. Busy is held during a push to it.
type replica struct {
	busy   sync.Mutex
	client *vllm.Client
}

// New checks the configuration; it contacts no server. Config.Method is the caller's to have obeyed.
func New(method Method, cfg Config, deps Deps) (*Pusher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c, err := newCanary(cfg.Canary, deps.Scorer)
	if err != nil {
		return nil, err
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	return &Pusher{method: method, cfg: cfg, deps: deps, canary: c, replicas: map[string]*replica{}}, nil
}

// Push makes the replicas at urls serve the weights in dir under the given version, and returns once the canary passed
// on each, or it was quarantined. It fails where none is left: then the last approved weights are put back on those
// that answer, and they stay quarantined, since the trainer, whom the canary asks, holds other weights.
//
// Kinds: invalid for bad arguments, not_found where dir has no weights, unavailable where replicas or the trainer
// failed, conflict where replicas hold requests that they must not, corrupt where the canary found other weights than
// the trainer's, canceled. The report is valid, as far as it got, with an error too.
func (p *Pusher) Push(ctx context.Context, version int32, dir string, urls []string) (Report, error) {
	began := p.deps.Now()
	w := Weights{Version: version, Dir: dir}
	r := Report{Version: version, Dir: dir, Method: p.method.Name(), Bound: p.cfg.Canary.bound(), RolledBack: -1}
	replicas, err := p.check(w, urls)
	if err != nil {
		return r, err
	}
	r.Endpoints = make([]EndpointReport, len(replicas))
	errs := each(replicas, func(i int, s *replica) error { return p.one(ctx, s, w, &r.Endpoints[i]) })
	r.sum()
	if !slices.ContainsFunc(r.Endpoints, func(e EndpointReport) bool { return e.Approved }) {
		err = errors.Join(errs...)
		if ctx.Err() == nil && slices.ContainsFunc(r.Endpoints, func(e EndpointReport) bool { return e.Quarantined }) {
			err = p.putBack(ctx, awake(replicas, errs), &r, err)
		}
	}
	r.Total = p.deps.Now().Sub(began)
	return r, err
}

func (p *Pusher) check(w Weights, urls []string) ([]*replica, error) {
	const op = "weights: push"
	switch {
	case w.Version < 0 || w.Version == Unknown:
		return nil, milepost.E(op, milepost.KindInvalid, "version is %d; it must be 0 to %d", w.Version, Unknown-1)
	case len(urls) == 0:
		return nil, milepost.E(op, milepost.KindInvalid, "there is no replica to push to")
	}
	if err := p.method.Check(w); err != nil {
		return nil, err
	}
	out := make([]*replica, len(urls))
	for i, url := range urls {
		if slices.Contains(urls[:i], url) {
			return nil, milepost.E(op, milepost.KindInvalid, "replica %s is listed twice", url)
		}
		var err error
		if out[i], err = p.replica(url); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (p *Pusher) replica(url string) (*replica, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.replicas[url]; r != nil {
		return r, nil
	}
	c, err := vllm.New(vllm.Config{URL: url, Model: p.deps.Model, APIKey: p.deps.APIKey, HTTP: p.deps.HTTP})
	if err != nil {
		return nil, err
	}
	p.replicas[url] = &replica{client: c}
	return p.replicas[url], nil
}

// each runs fn for every replica at once.
func each(replicas []*replica, fn func(i int, s *replica) error) []error {
	errs := make([]error, len(replicas))
	var wg sync.WaitGroup
	for i, s := range replicas {
		wg.Go(func() { errs[i] = fn(i, s) })
	}
	wg.Wait()
	return errs
}

// one pushes to one replica until it is approved, or quarantines it.
func (p *Pusher) one(ctx context.Context, s *replica, w Weights, r *EndpointReport) error {
	s.busy.Lock()
	defer s.busy.Unlock()
	r.URL = s.client.URL()
	gate := p.deps.Gate
	if gate == nil {
		gate = open{}
	}
	_, beside := p.method.(Beside)
	if !beside {
		gate.Shut(r.URL)
	}
	for {
		r.Attempts++
		err := p.update(ctx, s.client, w, r)
		if err == nil {
			err = p.sing(ctx, s.client, w, r)
		}
		if err == nil {
			r.Approved = true
			p.mu.Lock()
			p.approved = &w
			p.mu.Unlock()
			gate.Approve(r.URL, w.Version)
			return nil
		}
		r.Error = err.Error()
		var trainer *trainerError
		switch {
		case ctx.Err() != nil || errors.As(err, &trainer):
			return err
		case r.Attempts > p.cfg.Repeats || errors.Is(err, errSilent):
			r.Quarantined = true
			gate.Quarantine(r.URL, w.Version, err)
			return err
		}
		if !beside {
			// What requests under way sampled of this attempt bears the version that the next one may have approved.
			gate.Quarantine(r.URL, w.Version, err)
			gate.Shut(r.URL)
		}
	}
}

// open is the gate of a pusher without one.
type open struct{}

func (open) Shut(string)                     {}
func (open) Approve(string, int32)           {}
func (open) Quarantine(string, int32, error) {}

// update changes the weights of one server.
func (p *Pusher) update(ctx context.Context, s *vllm.Client, w Weights, r *EndpointReport) (err error) {
	if err := bounded(ctx, p.cfg.ReloadTimeout, func(ctx context.Context) error { return p.method.Prepare(ctx, s, w) }); err != nil {
		return err
	}
	if p.method.Exclusive() {
		p.turn.Lock()
		defer p.turn.Unlock()
	}
	if _, beside := p.method.(Beside); beside {
		err := p.load(ctx, s, w, r)
		r.Pause = r.Load // it loads between two steps, so it stands still for no longer
		return err
	}
	began := p.deps.Now()
	defer func() {
		// Even a pause that failed may have paused: a server is never left standing.
		resumed := bounded(context.WithoutCancel(ctx), p.cfg.PauseTimeout, s.Resume)
		r.Pause = p.deps.Now().Sub(began)
		err = errors.Join(err, resumed)
	}()
	if err := bounded(ctx, p.cfg.PauseTimeout, func(ctx context.Context) error { return s.Pause(ctx, !p.cfg.Salted) }); err != nil {
		return err
	}
	if err := p.name(ctx, s, Unknown); err != nil {
		return err
	}
	if err := p.load(ctx, s, w, r); err != nil {
		return err
	}
	if p.cfg.Salted {
		return p.name(ctx, s, w.Version)
	}
	preempt := p.cfg.InFlight == InFlightRecompute
	if err := bounded(ctx, p.cfg.PauseTimeout, func(ctx context.Context) error { return s.ResetPrefixCache(ctx, preempt) }); err != nil {
		return err
	}
	return p.name(ctx, s, w.Version)
}

// load lets the method do its part.
func (p *Pusher) load(ctx context.Context, s *vllm.Client, w Weights, r *EndpointReport) error {
	began := p.deps.Now()
	defer func() { r.Load = p.deps.Now().Sub(began) }()
	return bounded(ctx, p.cfg.ReloadTimeout, func(ctx context.Context) error { return p.method.Load(ctx, s, w) })
}

func (p *Pusher) name(ctx context.Context, s *vllm.Client, version int32) error {
	return bounded(ctx, p.cfg.PauseTimeout, func(ctx context.Context) error { return s.SetVersion(ctx, version) })
}

// bounded runs one call under a time-out of its own, whose end is the server's failure and not the caller's.
func bounded(ctx context.Context, bound time.Duration, fn func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := fn(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return milepost.E("weights: push", milepost.KindUnavailable, "%w within %v: %w", errSilent, bound, err)
	}
	return err
}

// sing runs the canary on one server, cold then warm, and judges both.
func (p *Pusher) sing(ctx context.Context, s *vllm.Client, w Weights, r *EndpointReport) error {
	if method, ok := p.method.(Beside); ok {
		s = method.Client(s, w.Version)
	}
	salt := ""
	if p.cfg.Salted {
		salt = rand.Text() // what an earlier canary left in the cache, maybe of this very version, does not match
	}
	var songs [2]sung
	err := bounded(ctx, p.cfg.CanaryTimeout, func(ctx context.Context) (err error) {
		for i := range songs {
			if songs[i], err = p.canary.sing(ctx, s, w.Version, salt); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var gaps []Gap
	err = bounded(ctx, p.cfg.CanaryTimeout, func(ctx context.Context) (err error) {
		gaps, err = p.canary.judge(ctx, songs[:])
		return err
	})
	if err != nil {
		return &trainerError{err}
	}
	r.Cold, r.Warm = gaps[0], gaps[1]
	if err := p.canary.verdict(r.URL, "cold", w.Dir, r.Cold); err != nil {
		return err
	}
	return p.canary.verdict(r.URL, "warm", w.Dir, r.Warm)
}

// trainerError is a failure of the trainer, which says nothing of the replica that was asked about.
type trainerError struct{ error }

// Unwrap returns the failure.
func (e *trainerError) Unwrap() error { return e.error }

// awake are the replicas that answered, if only by an error.
func awake(replicas []*replica, errs []error) (out []*replica) {
	for i, s := range replicas {
		if !errors.Is(errs[i], errSilent) {
			out = append(out, s)
		}
	}
	return out
}

// putBack loads the last approved weights where nobody took the new ones, and says so in the error.
func (p *Pusher) putBack(ctx context.Context, replicas []*replica, r *Report, cause error) error {
	kind := milepost.KindOf(cause)
	p.mu.Lock()
	old := p.approved
	p.mu.Unlock()
	if old == nil || old.Version == r.Version {
		return milepost.E("weights: push", kind, "no replica took the weights: %w", cause)
	}
	took := make([]bool, len(replicas))
	errs := each(replicas, func(i int, s *replica) error {
		s.busy.Lock()
		defer s.busy.Unlock()
		err := p.update(ctx, s.client, *old, &EndpointReport{})
		took[i] = err == nil
		return err
	})
	var back []string
	for i, s := range replicas {
		if took[i] {
			back = append(back, s.client.URL())
		}
	}
	if len(back) == 0 {
		return milepost.E("weights: push", kind, "no replica took the weights, and version %d could not be put back: %w", old.Version, errors.Join(append(errs, cause)...))
	}
	r.RolledBack = old.Version
	return milepost.E("weights: push", kind, "no replica took the weights; version %d was put back on %s, which the canary did not see: %w", old.Version, strings.Join(back, ", "), cause)
}

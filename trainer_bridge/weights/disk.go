package weights

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// DiskConfig says how weights go from a directory to the servers.
type DiskConfig struct {
	// InFlight is what becomes of requests under way: recompute gives up their keys and values, so that what they sample
	// from here on is the new policy's to the last bit; refuse fails the push while there are any. Leaving old keys and
	// values is not offered: they would serve later requests of the same prefix.
	InFlight      string        `yaml:"in_flight"`
	PauseTimeout  time.Duration `yaml:"pause_timeout"`  // of each short call: pause, cache reset, version, resume
	ReloadTimeout time.Duration `yaml:"reload_timeout"` // of reading the new weights
	CanaryTimeout time.Duration `yaml:"canary_timeout"` // of the canary on all servers
	Canary        CanaryConfig  `yaml:"canary"`         // after each push the logprobs of servers and trainer are compared
}

// What becomes of requests under way.
const (
	InFlightRecompute = "recompute"
	InFlightRefuse    = "refuse"
)

// DefaultDiskConfig is every default; Canary.Vocab must be set.
func DefaultDiskConfig() DiskConfig {
	return DiskConfig{
		InFlight: InFlightRecompute, PauseTimeout: 30 * time.Second, ReloadTimeout: 10 * time.Minute, CanaryTimeout: 5 * time.Minute,
		Canary: DefaultCanaryConfig(),
	}
}

// Validate checks every field.
func (c DiskConfig) Validate() error {
	const op = "weights: configuration"
	switch {
	case c.InFlight != InFlightRecompute && c.InFlight != InFlightRefuse:
		return milepost.E(op, milepost.KindInvalid, "in_flight %q is not one of: %s, %s", c.InFlight, InFlightRecompute, InFlightRefuse)
	case c.PauseTimeout <= 0 || c.ReloadTimeout <= 0 || c.CanaryTimeout <= 0:
		return milepost.E(op, milepost.KindInvalid, "pause_timeout is %v, reload_timeout %v, canary_timeout %v; each must be above 0", c.PauseTimeout, c.ReloadTimeout, c.CanaryTimeout)
	}
	return c.Canary.Validate()
}

// Deps is what a pusher takes from outside.
type Deps struct {
	Scorer Scorer           // the trainer, which must hold the weights that are pushed
	Gate   Gate             // shut during a push; nil = nothing samples meanwhile
	HTTP   *http.Client     // nil = one per server
	APIKey string           // bearer token of the servers, "" = none
	Now    func() time.Time // nil = time.Now
}

// Disk pushes weights from a directory that every server sees under the same path.
//
// Invariants: one push at a time. The gate is shut from before the first server pauses until the canary has passed on
// every server; a push that failed leaves it shut, for nothing may be sampled from weights nobody knows, and the next
// push that succeeds opens it. A server that was paused is resumed whatever happens in between.
type Disk struct {
	cfg     DiskConfig
	deps    Deps
	servers []*vllm.Client
	canary  *canary

	mu sync.Mutex
}

var _ Pusher = (*Disk)(nil)

// NewDisk checks the configuration; it contacts no server.
func NewDisk(endpoints []string, cfg DiskConfig, deps Deps) (*Disk, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(endpoints) == 0 {
		return nil, milepost.E("weights: new", milepost.KindInvalid, "there is no endpoint to push to")
	}
	c, err := newCanary(cfg.Canary, deps.Scorer)
	if err != nil {
		return nil, err
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	d := &Disk{cfg: cfg, deps: deps, canary: c}
	for _, url := range endpoints {
		server, err := vllm.New(vllm.Config{URL: url, APIKey: deps.APIKey, HTTP: deps.HTTP})
		if err != nil {
			return nil, err
		}
		d.servers = append(d.servers, server)
	}
	return d, nil
}

// Push implements [Pusher]: on every server at once pause, reload_weights, reset_prefix_cache, update_weight_version,
// resume; then the canary on each, cold and warm.
func (d *Disk) Push(ctx context.Context, version int32, dir string) (Report, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	began := d.deps.Now()
	r := Report{Version: version, Dir: dir, Bound: d.cfg.Canary.bound()}
	if err := d.check(version, dir); err != nil {
		return r, err
	}
	if d.deps.Gate != nil {
		d.deps.Gate.Pause()
	}
	r.Endpoints = make([]EndpointReport, len(d.servers))
	err := d.each(&r, func(i int) error { return d.update(ctx, d.servers[i], version, dir, &r.Endpoints[i]) })
	for _, e := range r.Endpoints {
		r.Pause = max(r.Pause, e.Pause)
	}
	if err == nil {
		err = d.sing(ctx, &r)
	}
	r.Total = d.deps.Now().Sub(began)
	if err == nil && d.deps.Gate != nil {
		d.deps.Gate.Resume()
	}
	return r, err
}

// Verify runs the canary alone: do the servers serve the trainer's weights, under this version? For a server that was
// adopted, and between pushes. Dir only names the weights in errors.
func (d *Disk) Verify(ctx context.Context, version int32, dir string) (Report, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	began := d.deps.Now()
	r := Report{Version: version, Dir: dir, Bound: d.cfg.Canary.bound(), Endpoints: make([]EndpointReport, len(d.servers))}
	for i, s := range d.servers {
		r.Endpoints[i].URL = s.URL()
	}
	err := d.sing(ctx, &r)
	r.Total = d.deps.Now().Sub(began)
	return r, err
}

func (d *Disk) check(version int32, dir string) error {
	const op = "weights: push"
	if version < 0 {
		return milepost.E(op, milepost.KindInvalid, "version is %d; it must be at least 0", version)
	}
	if !filepath.IsAbs(dir) {
		return milepost.E(op, milepost.KindInvalid, "directory %q is not absolute; the servers have working directories of their own", dir)
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "*.safetensors")); len(found) == 0 {
		return milepost.E(op, milepost.KindNotFound, "directory %s has no *.safetensors", dir)
	}
	return nil
}

// each runs fn for every server at once and notes failures in the report.
func (d *Disk) each(r *Report, fn func(i int) error) error {
	errs := make([]error, len(d.servers))
	var wg sync.WaitGroup
	for i := range d.servers {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			r.Endpoints[i].Error = err.Error()
		}
	}
	return errors.Join(errs...)
}

// update changes the weights of one server.
func (d *Disk) update(ctx context.Context, s *vllm.Client, version int32, dir string, r *EndpointReport) (err error) {
	r.URL = s.URL()
	began := d.deps.Now()
	defer func() {
		// Even a pause that failed may have paused: a server is never left standing.
		resumed := d.bounded(context.WithoutCancel(ctx), d.cfg.PauseTimeout, s.Resume)
		r.Pause = d.deps.Now().Sub(began)
		err = errors.Join(err, resumed)
	}()
	if err := d.bounded(ctx, d.cfg.PauseTimeout, s.Pause); err != nil {
		return err
	}
	reload := d.deps.Now()
	if err := d.bounded(ctx, d.cfg.ReloadTimeout, func(ctx context.Context) error { return s.Reload(ctx, dir) }); err != nil {
		return err
	}
	r.Reload = d.deps.Now().Sub(reload)
	preempt := d.cfg.InFlight == InFlightRecompute
	if err := d.bounded(ctx, d.cfg.PauseTimeout, func(ctx context.Context) error { return s.ResetPrefixCache(ctx, preempt) }); err != nil {
		return err
	}
	return d.bounded(ctx, d.cfg.PauseTimeout, func(ctx context.Context) error { return s.SetVersion(ctx, version) })
}

// bounded runs one call under a time-out of its own, whose end is the server's failure and not the caller's.
func (d *Disk) bounded(ctx context.Context, bound time.Duration, fn func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := fn(limited)
	if milepost.KindOf(err) == milepost.KindTimeout && ctx.Err() == nil {
		return milepost.E("weights: push", milepost.KindUnavailable, "no answer within %v: %w", bound, err)
	}
	return err
}

// sing runs the canary on every server, cold then warm, and fills in the gaps.
func (d *Disk) sing(ctx context.Context, r *Report) error {
	cold, warm := make([]sung, len(d.servers)), make([]sung, len(d.servers))
	err := d.each(r, func(i int) error {
		return d.bounded(ctx, d.cfg.CanaryTimeout, func(ctx context.Context) (err error) {
			if cold[i], err = d.canary.sing(ctx, d.servers[i], r.Version); err != nil {
				return err
			}
			warm[i], err = d.canary.sing(ctx, d.servers[i], r.Version)
			return err
		})
	})
	if err != nil {
		return err
	}
	var gaps []Gap
	err = d.bounded(ctx, d.cfg.CanaryTimeout, func(ctx context.Context) (err error) {
		gaps, err = d.canary.judge(ctx, append(cold, warm...))
		return err
	})
	if err != nil {
		return err
	}
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		e.Cold, e.Warm = gaps[i], gaps[len(d.servers)+i]
		r.Gap = r.Gap.join(e.Cold).join(e.Warm)
	}
	return d.each(r, func(i int) error {
		e := r.Endpoints[i]
		if err := d.canary.verdict(e.URL, "cold", r.Dir, e.Cold); err != nil {
			return err
		}
		return d.canary.verdict(e.URL, "warm", r.Dir, e.Warm)
	})
}

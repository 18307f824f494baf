package env

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/driver"
)

// The values that travel to and from a driver; package driver documents their fields.
type (
	Limits   = driver.Limits
	Mount    = driver.Mount
	Spec     = driver.Spec
	Command  = driver.Command
	Result   = driver.Result
	Change   = driver.Change
	FileInfo = driver.FileInfo
)

// DefaultLimits hold where neither command, spec nor [WithLimits] says otherwise.
var DefaultLimits = Limits{
	Wall:     60 * time.Second,
	Memory:   1 << 30,
	Procs:    128,
	Output:   1 << 20,
	FileSize: 128 << 20,
	Disk:     512 << 20,
}

// DefaultMaxRead is the largest file that ReadFile returns, and the most data that Changes does, in bytes.
const DefaultMaxRead = 64 << 20

// Env makes sandboxes with one driver. It may be used concurrently.
type Env struct {
	driver  driver.Driver
	limits  Limits
	ignore  func(path string) bool
	maxRead int64

	mu     sync.Mutex
	open   map[*Sandbox]struct{}
	closed bool
}

// Option changes how an Env works.
type Option func(*Env)

// WithLimits sets limits over [DefaultLimits]; zero fields keep them.
func WithLimits(l Limits) Option { return func(e *Env) { e.limits = l.Or(DefaultLimits) } }

// WithIgnore replaces [IsCache] as the policy on what Changes leaves out.
func WithIgnore(ignore func(path string) bool) Option { return func(e *Env) { e.ignore = ignore } }

// WithMaxRead sets the bound that is [DefaultMaxRead] otherwise.
func WithMaxRead(n int64) Option { return func(e *Env) { e.maxRead = n } }

// New returns an Env on the driver, which it owns from here on.
func New(d driver.Driver, opts ...Option) *Env {
	e := &Env{driver: d, limits: DefaultLimits, ignore: IsCache, maxRead: DefaultMaxRead, open: map[*Sandbox]struct{}{}}
	for _, o := range opts {
		o(e)
	}
	return e
}

// Create makes a sandbox whose workspace equals spec.Base. Kinds: invalid, conflict (the Env is closed), unavailable,
// canceled.
func (e *Env) Create(ctx context.Context, spec Spec) (*Sandbox, error) {
	const op = "env: create"
	if err := validateSpec(&spec); err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, classify(op, err)
	}
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return nil, milepost.E(op, milepost.KindConflict, "the environment is closed")
	}
	spec.Limits = spec.Limits.Or(e.limits)
	d, err := e.driver.Create(ctx, &spec)
	if err != nil {
		if spec.Image != "" && ctx.Err() == nil {
			err = fmt.Errorf("%s, image %s: %w", spec.Name, spec.Image, err)
		}
		return nil, classify(op, err)
	}
	s := &Sandbox{env: e, spec: spec, driver: d}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		_ = d.Close() // the environment was closed meanwhile; its error is the one that matters
		return nil, milepost.E(op, milepost.KindConflict, "the environment is closed")
	}
	e.open[s] = struct{}{}
	return s, nil
}

// Open returns how many sandboxes are not closed.
func (e *Env) Open() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.open)
}

// Close closes every sandbox that is still open, then the driver. It may be called again.
func (e *Env) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	left := make([]*Sandbox, 0, len(e.open))
	for s := range e.open {
		left = append(left, s)
	}
	e.mu.Unlock()
	var first error
	for _, s := range left {
		if err := s.Close(context.Background()); err != nil && first == nil {
			first = err
		}
	}
	if err := e.driver.Close(); err != nil && first == nil {
		first = err
	}
	return classify("env: close", first)
}

func (e *Env) forget(s *Sandbox) {
	e.mu.Lock()
	delete(e.open, s)
	e.mu.Unlock()
}

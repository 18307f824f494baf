package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/guest"
)

// Driver makes sandboxes on Docker engines. It may be used concurrently.
//
// Invariants: background ends with Close, and every goroutine of the driver with it; mu guards wake and orders the choice
// of engines.
type Driver struct {
	cfg       Config
	me        identity
	agent     string // path of the program
	uid, gid  string
	engines   []*engine
	pulls     *pulls
	manifests guest.Manifests
	next      atomic.Int64

	mu   sync.Mutex
	wake chan struct{} // closed when a place may have become free

	background context.Context
	stop       context.CancelFunc
	tasks      sync.WaitGroup
	closeOnce  sync.Once
	closeErr   error
}

// New checks the configuration and the engines, collects what dead owners left and pre-pulls images. At least one engine
// must answer. Kinds: invalid (the configuration), not_found (an image), unavailable.
func New(ctx context.Context, cfg Config) (*Driver, error) {
	const op = "env/docker: open"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	program, err := guest.Program(cfg.Agent, "sandbox.docker.agent")
	if err != nil {
		return nil, err
	}
	me, err := newIdentity(cfg.Lease)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	d := &Driver{cfg: cfg, me: me, agent: program, wake: make(chan struct{})}
	d.pulls = newPulls(&d.cfg)
	d.background, d.stop = context.WithCancel(context.Background())
	if d.uid, d.gid, err = numericUser(cfg.user()); err == nil {
		err = d.open(ctx)
	}
	if err != nil {
		return nil, errors.Join(milepost.Wrap(op, milepost.KindUnavailable, err), d.Close())
	}
	return d, nil
}

// numericUser splits user[:group]; a tmpfs needs numbers.
func numericUser(s string) (uid, gid string, err error) {
	uid, gid, ok := strings.Cut(s, ":")
	if !ok {
		gid = uid
	}
	for _, n := range []string{uid, gid} {
		if n == "" || strings.Trim(n, "0123456789") != "" {
			return "", "", milepost.E("env/docker: configure", milepost.KindInvalid, "user %q must be UID or UID:GID, as numbers", s)
		}
	}
	return uid, gid, nil
}

// open connects to the engines and starts what works in the background.
func (d *Driver) open(ctx context.Context) error {
	for _, host := range d.cfg.hosts() {
		if err := checkHost(host); err != nil {
			return milepost.E("env/docker: configure", milepost.KindInvalid, "DOCKER_HOST: %w", err)
		}
		e, err := newEngine(d, host)
		if err != nil {
			return err
		}
		d.engines = append(d.engines, e)
	}
	var errs []error
	for _, e := range d.engines {
		err := e.ping(ctx)
		if err == nil {
			err = e.reap(ctx)
		}
		if err != nil {
			e.failed()
			errs = append(errs, err)
		}
	}
	if len(errs) == len(d.engines) {
		return errors.Join(errs...)
	}
	if err := d.Prepull(ctx, d.cfg.Prepull); err != nil {
		return err
	}
	for _, e := range d.engines {
		d.tasks.Go(func() { e.reapAlways(d.background) })
		d.tasks.Go(func() { e.watchMemory(d.background) })
	}
	return nil
}

// Prepull gets images onto every engine that can be asked, as fast as pull_rate allows. Kinds as of Create.
func (d *Driver) Prepull(ctx context.Context, images []string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, e := range d.engines {
		if !e.healthy() {
			continue
		}
		for _, image := range images {
			g.Go(func() error { return d.pulls.ensure(ctx, e, image) })
		}
	}
	return g.Wait()
}

// Engines describes the engines that answer, for a person (milepost doctor).
func (d *Driver) Engines(ctx context.Context) ([]string, error) {
	var out []string
	for _, e := range d.engines {
		text, err := e.describe(ctx)
		if err != nil {
			return out, err
		}
		out = append(out, text)
	}
	return out, nil
}

// createTime bounds the making of one sandbox on one engine, without the wait for a place and for an image.
const createTime = 5 * time.Minute

var errSlow = fmt.Errorf("the engine did not make a sandbox within %s", createTime)

// Create implements driver.Driver. An engine that fails is left alone for a while, and the next one asked.
func (d *Driver) Create(ctx context.Context, spec *driver.Spec) (driver.Sandbox, error) {
	image, err := d.cfg.image(spec.Image)
	if err != nil {
		return nil, err
	}
	open := guest.OpenBase
	if spec.Workdir != "" && spec.Base != "" {
		open = d.manifests.Base
	}
	b, err := open(ctx, spec.Base)
	if err != nil {
		return nil, err
	}
	tried := map[*engine]bool{}
	for {
		e, err := d.take(ctx, tried)
		if err != nil {
			return nil, err
		}
		s, err := d.createOn(ctx, e, spec, image, b)
		d.release(e)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !infra(err) {
			return nil, err
		}
		tried[e] = true
		if len(tried) == len(d.engines) {
			return nil, fmt.Errorf("engine %s: %w", e.host, err)
		}
	}
}

// createOn makes a sandbox on one engine. Something it needs may have been removed by somebody since it was last used: it
// tries once more with a fresh look.
func (d *Driver) createOn(ctx context.Context, e *engine, spec *driver.Spec, image string, b guest.Base) (*sandbox, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, createTime, errSlow)
	defer cancel()
	s, err := e.create(ctx, spec, image, b)
	if err != nil && ctx.Err() == nil && (infra(err) || milepost.KindOf(err) == milepost.KindNotFound) && e.ping(ctx) == nil {
		d.pulls.lost(e, image)
		e.refill()
		e.bases.lost()
		s, err = e.create(ctx, spec, image, b)
	}
	if err != nil && errors.Is(context.Cause(ctx), errSlow) {
		err = milepost.E("env/docker: create", milepost.KindUnavailable, "%w", errSlow)
	}
	switch {
	case err == nil:
		e.worked()
	case infra(err):
		e.failed()
	}
	return s, err
}

// Close implements driver.Driver: it ends the background work and removes what the driver itself made.
func (d *Driver) Close() error {
	d.closeOnce.Do(func() {
		d.stop()
		d.tasks.Wait()
		var errs []error
		for _, e := range d.engines {
			errs = append(errs, e.close())
		}
		d.closeErr = errors.Join(errs...)
	})
	return d.closeErr
}

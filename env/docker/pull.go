package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/milepost-rl/milepost"
)

// pulls gets images onto engines.
//
// Invariants: an engine pulls an image once, however many sandboxes want it; all pulls from one registry, of all engines,
// draw on one token bucket.
type pulls struct {
	cfg    *Config
	flight singleflight.Group

	mu      sync.Mutex
	have    map[string]bool          // engine and image
	buckets map[string]*rate.Limiter // by registry
}

func newPulls(cfg *Config) *pulls {
	return &pulls{cfg: cfg, have: map[string]bool{}, buckets: map[string]*rate.Limiter{}}
}

// ensure returns once the engine has the image. Kinds: not_found, invalid and denied of the image; unavailable; canceled.
func (p *pulls) ensure(ctx context.Context, e *engine, name string) error {
	key := e.host + " " + name
	p.mu.Lock()
	have := p.have[key]
	p.mu.Unlock()
	if have {
		return nil
	}
	// The flight outlives a caller that gives up: others may wait for it.
	done := p.flight.DoChan(key, func() (any, error) {
		err := p.fetch(e.d.background, e, name)
		if err == nil {
			p.mu.Lock()
			p.have[key] = true
			p.mu.Unlock()
		}
		return nil, err
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lost forgets that an engine has an image: somebody removed it.
func (p *pulls) lost(e *engine, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.have, e.host+" "+name)
}

func (p *pulls) fetch(ctx context.Context, e *engine, name string) error {
	_, err := e.cli.ImageInspect(ctx, name)
	if err == nil {
		return nil
	}
	if !cerrdefs.IsNotFound(err) {
		return engineError("inspect image "+name, err)
	}
	if p.cfg.Pull == PullNever {
		return milepost.E("env/docker: pull", milepost.KindNotFound, "engine %s does not have image %s, and sandbox.docker.pull is never", e.host, name)
	}
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return milepost.E("env/docker: pull", milepost.KindInvalid, "image %q: %v", name, err)
	}
	if err := p.bucket(reference.Domain(ref)).Wait(ctx); err != nil {
		return err
	}
	return p.pull(ctx, e, name)
}

func (p *pulls) bucket(registry string) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, ok := p.buckets[registry]
	if !ok {
		b = rate.NewLimiter(rate.Limit(p.cfg.PullRate/60), p.cfg.PullBurst)
		p.buckets[registry] = b
	}
	return b
}

func (p *pulls) pull(ctx context.Context, e *engine, name string) error {
	what := "pull image " + name
	progress, err := e.cli.ImagePull(ctx, name, image.PullOptions{})
	if err != nil {
		return pullError(what, err)
	}
	defer progress.Close()
	dec := json.NewDecoder(progress)
	for {
		var line struct {
			Error string `json:"error"`
		}
		err := dec.Decode(&line)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return engineError(what, err)
		}
		if line.Error != "" {
			return pullError(what, errors.New(line.Error))
		}
	}
	if _, err := e.cli.ImageInspect(ctx, name); err != nil {
		return engineError(what, fmt.Errorf("it was pulled, and is not there: %w", err))
	}
	return nil
}

// pullError is engineError for a pull: engines answer with an error of their own for an image that is nowhere, and only
// their words tell.
func pullError(what string, err error) error {
	for _, words := range []string{"manifest unknown", "manifest for ", "repository does not exist", "name unknown"} {
		if strings.Contains(err.Error(), words) {
			return milepost.E("env/docker", milepost.KindNotFound, "%s: %w", what, err)
		}
	}
	return engineError(what, err)
}

package testrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// pool lends resident processes to runs.
//
// Invariants: there are never more slots than tokens; a run that waits for one waits for a token. A slot is either lent
// or in idle. mu guards idle, live, made and scratch. Nothing slow happens under mu but the making of the scratch folder.
type pool struct {
	cfg    *Config
	env    *env.Env
	tokens chan struct{}

	mu      sync.Mutex
	idle    []*slot // last used last
	live    int     // lent and idle
	made    int     // slots ever made, which names their directories
	scratch *scratch
	closed  bool
}

func newPool(cfg *Config, e *env.Env) *pool {
	return &pool{cfg: cfg, env: e, tokens: make(chan struct{}, cfg.slots())}
}

// get lends a slot for the image; the caller gives it back with put. Kinds: conflict (closed), unavailable, canceled.
func (p *pool) get(ctx context.Context, image string) (*slot, error) {
	const op = "testrun: get resident"
	select {
	case p.tokens <- struct{}{}:
	case <-ctx.Done():
		return nil, milepost.Wrap(op, milepost.KindCanceled, context.Canceled)
	}
	s, trees, err := p.choose(image)
	if err == nil && s == nil {
		s, err = startSlot(ctx, p.env, p.cfg.Limits, image, trees)
		if err != nil {
			s = nil
			p.mu.Lock()
			p.live--
			p.mu.Unlock()
		}
	}
	if err != nil {
		<-p.tokens
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return s, nil
}

// choose takes an idle slot of the image, or counts a new one and returns its directory; where that would be one too
// many, an idle slot of another image ends.
func (p *pool) choose(image string) (s *slot, trees string, err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, "", milepost.E("testrun: get resident", milepost.KindConflict, "the runner is closed")
	}
	for i := len(p.idle) - 1; i >= 0; i-- {
		if s := p.idle[i]; s.image == image {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			p.mu.Unlock()
			return s, "", nil
		}
	}
	var victim *slot
	if p.live == cap(p.tokens) { // then one is idle, for this run holds a token and no slot
		victim, p.idle = p.idle[0], p.idle[1:]
		p.live--
	}
	if p.scratch == nil {
		p.scratch, err = openScratch(p.cfg.scratch())
	}
	if err == nil {
		p.live++
		p.made++
		trees = filepath.Join(p.scratch.dir, fmt.Sprint(p.made))
	}
	p.mu.Unlock()
	if victim == nil {
		return nil, trees, err
	}
	if closeErr := victim.close(); closeErr != nil && err == nil {
		p.mu.Lock()
		p.live--
		p.mu.Unlock()
		err = closeErr
	}
	return nil, trees, err
}

// put takes a slot back, and ends it where keep is false or it has served long enough.
func (p *pool) put(s *slot, keep bool) error {
	defer func() { <-p.tokens }()
	p.mu.Lock()
	if keep && s.uses < p.cfg.MaxUses && !p.closed {
		p.idle = append(p.idle, s)
		p.mu.Unlock()
		return nil
	}
	p.live--
	p.mu.Unlock()
	return s.close()
}

// close waits for the lent slots and ends all.
func (p *pool) close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for range cap(p.tokens) {
		p.tokens <- struct{}{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.idle {
		errs = append(errs, s.close())
	}
	p.idle, p.live = nil, 0
	if p.scratch != nil {
		errs = append(errs, p.scratch.close())
		p.scratch = nil
	}
	for range cap(p.tokens) {
		<-p.tokens
	}
	return errors.Join(errs...)
}

// scratch is a folder of this process for copies of trees: <parent>/milepost-testrun-*, with a lock that lives as long as
// its owner. Opening one removes those whose owner is dead.
type scratch struct {
	dir  string
	lock *os.File
}

const scratchPattern = "milepost-testrun-*"

func openScratch(parent string) (*scratch, error) {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(parent, scratchPattern))
	if err != nil {
		return nil, err
	}
	for _, dir := range left {
		sweep(dir)
	}
	dir, err := os.MkdirTemp(parent, scratchPattern)
	if err != nil {
		return nil, err
	}
	made := filepath.Join(dir, "lock.new") // gets its name when it is locked
	lock, err := os.OpenFile(made, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(made, filepath.Join(dir, "lock"))
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &scratch{dir, lock}, nil
}

// sweep removes the folder if its lock is free. One without a lock is being made and left alone.
func sweep(dir string) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.RemoveAll(dir) // another process may sweep it at the same time
	}
}

func (s *scratch) close() error {
	return errors.Join(os.RemoveAll(s.dir), s.lock.Close())
}

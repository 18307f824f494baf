package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/milepost-rl/milepost"
)

// healthy reports whether the engine may be asked for something.
func (e *engine) healthy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !time.Now().Before(e.until)
}

// failed leaves the engine alone, longer with each failure in a row.
func (e *engine) failed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.until = time.Now().Add(e.d.cfg.Retry << min(e.failures, 4))
	e.failures++
}

func (e *engine) worked() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.until, e.failures = time.Time{}, 0
}

// load is how many sandboxes the engine has, those that are being made included.
func (e *engine) load() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reserved + len(e.open)
}

// take reserves a place on the engine with the fewest sandboxes that is not in tried. It waits where all are full. Where
// no engine can be asked, it fails at once: the caller knows how long to wait better than a queue does.
func (d *Driver) take(ctx context.Context, tried map[*engine]bool) (*engine, error) {
	for {
		d.mu.Lock()
		wake := d.wake
		var best *engine
		usable := false
		for _, e := range d.engines {
			if tried[e] || !e.healthy() {
				continue
			}
			usable = true
			if n := e.load(); (d.cfg.Slots == 0 || n < d.cfg.Slots) && (best == nil || n < best.load()) {
				best = e
			}
		}
		if best != nil {
			best.mu.Lock()
			best.reserved++
			best.mu.Unlock()
		}
		d.mu.Unlock()
		if best != nil {
			return best, nil
		}
		if !usable {
			return nil, milepost.E("env/docker: create", milepost.KindUnavailable, "no Docker engine is usable: %s", d.ailments())
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// release gives a place back that take reserved; where a sandbox came of it that one counts from now on.
func (d *Driver) release(e *engine) {
	e.mu.Lock()
	e.reserved--
	e.mu.Unlock()
	d.changed()
}

// changed wakes those who wait for a place.
func (d *Driver) changed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.wake)
	d.wake = make(chan struct{})
}

// ailments says why engines cannot be asked.
func (d *Driver) ailments() error {
	var errs []error
	for _, e := range d.engines {
		e.mu.Lock()
		left := time.Until(e.until).Round(time.Millisecond)
		if left > 0 {
			errs = append(errs, fmt.Errorf("%s failed %d times in a row and is left alone for %s", e.host, e.failures, left))
		}
		e.mu.Unlock()
	}
	return errors.Join(errs...)
}

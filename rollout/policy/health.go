package policy

import (
	"context"
	"slices"
	"sync"
)

// Run checks the health of every endpoint each HealthEvery until ctx ends: a failing one is opened before a request
// finds out, a recovered one is half-open at once.
func (p *Pool) Run(ctx context.Context) {
	for {
		p.Check(ctx, nil)
		if p.clock.Sleep(ctx, p.cfg.HealthEvery) != nil {
			return
		}
	}
}

// Check asks the endpoints of these addresses, nil for every one, for their health once and adjusts the circuits.
func (p *Pool) Check(ctx context.Context, urls []string) {
	p.mu.Lock()
	endpoints := slices.Clone(p.endpoints)
	p.mu.Unlock()
	if urls != nil {
		endpoints = slices.DeleteFunc(endpoints, func(e *endpoint) bool { return !slices.Contains(urls, e.URL) })
	}
	var wg sync.WaitGroup
	for _, e := range endpoints {
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
			p.dispatch()
		})
	}
	wg.Wait()
}

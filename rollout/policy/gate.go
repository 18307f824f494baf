package policy

import (
	"context"

	"github.com/milepost-rl/milepost"
)

// Pool is the gate of package trainer_bridge/weights. A push goes: Shut; new weights; canary; then Approve, or Quarantine
// wherever the push failed or the canary disagreed, also where a repeat follows at once: what was sampled in between has to
// go. An address that is no member's (the endpoint went during the push) is passed over.

// Shut lets an endpoint begin no more sampling; the server's own pause holds what is under way. Where the push before came
// to no verdict, what was sampled under its weights will never have one, and the term ends.
func (p *Pool) Shut(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.find(url)
	if e == nil {
		return
	}
	if e.pushing {
		p.newTerm(e)
	}
	e.State, e.pushing = StateShut, true
	p.announce(e)
}

// Trust opens an endpoint for whatever it serves, where no trainer is there to judge it.
func (p *Pool) Trust(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.find(url); e != nil {
		e.State, e.Approved, e.Since = StateOpen, trusted, 0
		p.announce(e)
	}
}

// Approve opens an endpoint whose canary agreed to the version, and lets go what is held of it.
func (p *Pool) Approve(url string, version int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.find(url)
	if e == nil {
		return
	}
	if version < e.Approved { // another lineage: tokens of the higher versions were sampled from weights that are given up
		p.newTerm(e)
	}
	if e.Since == NoVersion {
		e.Since = version
	}
	e.Approved, e.Why, e.State, e.pushing = version, "", StateOpen, false
	if e.leaving {
		e.State = StateShut
	}
	p.announce(e)
}

// Quarantine takes an endpoint out of sampling because of the version that was pushed: what is under way or held there is
// dropped and runs again elsewhere.
func (p *Pool) Quarantine(url string, version int32, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.find(url)
	if e == nil {
		return
	}
	p.newTerm(e)
	e.State, e.last, e.pushing = StateQuarantined, why, false
	e.Why = milepost.E("policy: quarantine", milepost.KindCorrupt, "version %d: %w", version, why).Error()
	p.announce(e)
}

// newTerm ends the endpoint's term and begins another; mu is held.
func (p *Pool) newTerm(e *endpoint) {
	p.endTerm(e)
	p.term++
	e.Term, e.Approved, e.Since = p.term, NoVersion, NoVersion
}

func (p *Pool) endTerm(e *endpoint) {
	e.trust.end()
	e.trust = newLife()
}

// hold waits until an answer with these versions may leave. It fails with errVoid where the term that it was sampled in ends
// first, with KindUnavailable where ctx does, and with KindCorrupt where a version never was approved.
func (p *Pool) hold(ctx context.Context, at *place, oldest, newest int32) error {
	const op = "policy: hold answer"
	e := at.e
	p.mu.Lock()
	defer p.mu.Unlock()
	for first := true; ; first = false {
		verdict := e.judge(oldest, newest)
		if verdict == passes && at.life.Err() == nil {
			p.mu.Unlock()
			verdict = p.confirm(ctx, at, oldest, newest)
			p.mu.Lock()
		}
		switch {
		case at.life.Err() != nil || verdict == voids:
			p.totals.Dropped++
			return errVoid
		case verdict == passes:
			return nil
		case verdict == fails:
			return milepost.E(op, milepost.KindCorrupt, "%s: an answer holds tokens of version %d, approved were %d to %d: was the server started anew?", e.URL, oldest, e.Since, e.Approved)
		case ctx.Err() != nil:
			return milepost.E(op, milepost.KindUnavailable, "%s: an answer holds tokens of version %d, approved is %d, and nobody decided in time", e.URL, newest, e.Approved)
		}
		if first {
			p.totals.Held++
		}
		p.wait(ctx, at)
	}
}

// wait waits, with mu given up meanwhile, for news of an endpoint that holds an answer.
func (p *Pool) wait(ctx context.Context, at *place) {
	news := at.e.news
	at.e.held++
	p.mu.Unlock()
	select {
	case <-news:
	case <-at.life.Done():
	case <-ctx.Done():
	}
	p.mu.Lock()
	at.e.held--
}

// confirm asks the pool that this one follows, if any, whether an answer may leave. Where that one does not answer it asks
// again until ctx ends.
func (p *Pool) confirm(ctx context.Context, at *place, oldest, newest int32) passing {
	if p.deps.Fresh == nil {
		return passes
	}
	for {
		states, err := p.deps.Fresh(ctx)
		if err == nil {
			for _, s := range states {
				if s.URL == at.e.URL && s.Term == at.term {
					return s.judge(oldest, newest)
				}
			}
			return voids
		}
		if p.clock.Sleep(ctx, p.cfg.Backoff.Base) != nil {
			return waits
		}
	}
}

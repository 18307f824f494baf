package policy

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// Add makes an endpoint a member, in state joining; the address is contacted by requests only. Errors: KindInvalid for
// an address of the wrong form or one that is a member.
func (p *Pool) Add(url string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.term++
	e, err := p.add(EndpointState{URL: url, State: StateJoining, Approved: NoVersion, Since: NoVersion, Term: p.term})
	if err == nil {
		p.announce(e)
	}
	return err
}

// add makes a member; mu is held.
func (p *Pool) add(s EndpointState) (*endpoint, error) {
	const op = "policy: add endpoint"
	client, err := vllm.New(vllm.Config{URL: s.URL, Model: p.cfg.Model, APIKey: p.cfg.APIKey, HTTP: p.deps.HTTP, Concurrent: p.cfg.MaxConcurrent})
	if err != nil {
		return nil, err
	}
	if s.URL = client.URL(); p.find(s.URL) != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s is a member already; an endpoint must not be listed twice", s.URL)
	}
	e := &endpoint{EndpointState: s, client: client, member: newLife(), trust: newLife(), news: make(chan struct{})}
	p.endpoints = append(p.endpoints, e)
	return e, nil
}

// Remove ends the membership of an endpoint that is dead, or is to be taken for dead: its requests run again elsewhere.
// An address that is no member's is none afterwards either.
func (p *Pool) Remove(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.find(url); e != nil {
		p.remove(e)
		p.announce(e)
	}
}

// remove is Remove without the announcement; mu is held.
func (p *Pool) remove(e *endpoint) {
	e.State = StateShut // for sessions that still point to it
	e.trust.end()
	e.member.end()
	p.endpoints = slices.DeleteFunc(p.endpoints, func(o *endpoint) bool { return o == e })
	e.client.CloseIdle()
}

// Drain lets an endpoint leave: it gets no sampling request any more, those under way, here and in the pools that follow this
// one, end as long as ctx does, and the membership ends.
func (p *Pool) Drain(ctx context.Context, url string) {
	p.mu.Lock()
	e := p.find(url)
	if e == nil {
		p.mu.Unlock()
		return
	}
	e.leaving = true
	if e.State == StateOpen {
		e.State = StateShut
	}
	p.announce(e)
	for e.running > 0 && ctx.Err() == nil && e.member.Err() == nil {
		news := e.news
		p.mu.Unlock()
		select {
		case <-news:
		case <-e.member.Done():
		case <-ctx.Done():
		}
		p.mu.Lock()
	}
	p.mu.Unlock()
	idle(ctx, e)
	p.mu.Lock()
	if e.member.Err() == nil {
		p.remove(e)
		p.announce(e)
	}
	p.mu.Unlock()
}

// idleEvery is how often a server that leaves is asked what it still does, and idleLooks how often in a row it must do nothing: a pool
// on another machine may have sent a request before it knew, and has an answer a little later than the server is done with it.
const (
	idleEvery = 250 * time.Millisecond
	idleLooks = 4
)

// idle waits until a server says that it has no request any more. It alone knows those of pools on other machines. One that
// does not answer has none worth waiting for.
func idle(ctx context.Context, e *endpoint) {
	for looks := 0; e.member.Err() == nil && ctx.Err() == nil; {
		m, err := e.client.Metrics(ctx)
		if m.Running+m.Waiting > 0 {
			looks = 0
		} else if looks++; err != nil || looks == idleLooks {
			return
		}
		select {
		case <-time.After(idleEvery):
		case <-e.member.Done():
		case <-ctx.Done():
		}
	}
}

// Snapshot returns what another machine's pool has to know: all members with their states, in the order in which they came.
func (p *Pool) Snapshot() []EndpointState {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]EndpointState, len(p.endpoints))
	for i, e := range p.endpoints {
		out[i] = e.EndpointState
	}
	return out
}

// Changed is closed when the snapshot changes. It is taken before the snapshot that it is to outdate.
func (p *Pool) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Follow makes the pool the mirror of another one, whose snapshot this is: members come, go and change their states as
// there. Snapshots may be late and may be left out, but never come out of order. A pool either follows or is told by Add,
// Remove and the gate's methods. Errors: KindInvalid for an address of the wrong form, with the rest followed.
func (p *Pool) Follow(states []EndpointState) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := map[string]bool{}
	var bad error
	for _, s := range states {
		s.URL = strings.TrimRight(s.URL, "/")
		told[s.URL] = true
		e := p.find(s.URL)
		if e == nil {
			if _, err := p.add(s); err != nil {
				bad = err
			}
			continue
		}
		if e.Term != s.Term {
			p.endTerm(e)
		}
		e.State, e.Approved, e.Since, e.Term, e.Why = s.State, s.Approved, s.Since, s.Term, s.Why // URL is read without mu and never changes
		e.tell()
	}
	for _, e := range slices.Clone(p.endpoints) {
		if !told[e.URL] {
			p.remove(e)
		}
	}
	p.announce(nil)
	return bad
}

// announce follows every change of states: waiters are placed anew, and whoever waits for the endpoint (nil = nobody's in
// particular) or for the snapshot is told. mu is held.
func (p *Pool) announce(e *endpoint) {
	if e != nil {
		e.tell()
	}
	close(p.changed)
	p.changed = make(chan struct{})
	p.dispatch()
}

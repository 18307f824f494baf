package policy

import (
	"context"
	"errors"
	"slices"

	"github.com/milepost-rl/milepost/internal/vllm"
)

// place is one attempt's way through the pool: queued, placed at an endpoint, given back.
type place struct {
	session string
	samples bool      // needs an open endpoint, and an answer that may leave
	avoid   *endpoint // failed this request just now; taken only where there is no other

	placed chan struct{} // closed when e or err is set
	err    error         // errNoEndpoint or errNoneYet
	e      *endpoint
	client *vllm.Client    // of the endpoint; where versions are adapters, of the one that was approved when the request was placed
	life   context.Context // ends when the request has to end: the endpoint's term, or its membership where nothing is sampled
	term   uint64
	salt   string // of the prefix cache, see Pool.Sample
}

// Why a request is not queued though it has no place: the circuit of every endpoint that might take it is open, and only
// time closes circuits. With errNoneYet another endpoint is about to open.
var (
	errNoEndpoint = errors.New("no endpoint is available")
	errNoneYet    = errors.New("no endpoint is available yet")
)

// acquire waits for a place at an endpoint. It fails with errNoEndpoint or errNoneYet at once where a queue cannot help.
func (p *Pool) acquire(ctx context.Context, at *place) error {
	if err := ctx.Err(); err != nil {
		return ended("policy: request", err)
	}
	at.placed = make(chan struct{})
	q := at.queue()
	p.mu.Lock()
	p.queues[q] = append(p.queues[q], at)
	p.dispatch()
	p.mu.Unlock()
	select {
	case <-at.placed:
		return at.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.queues[q] = slices.DeleteFunc(p.queues[q], func(o *place) bool { return o == at })
	p.mu.Unlock()
	select {
	case <-at.placed: // at the last moment
		if at.err == nil {
			p.release(at, ctx.Err())
		}
	default:
	}
	return ended("policy: request", ctx.Err())
}

func (at *place) queue() int {
	if at.samples {
		return 1
	}
	return 0
}

// dispatch places waiting requests, each queue from its head, until the next one finds no room. Rooms are anybody's, so
// behind one that finds none nobody does. mu is held.
func (p *Pool) dispatch() {
	for i := range p.queues {
		for len(p.queues[i]) > 0 {
			at := p.queues[i][0]
			e, err := p.pick(at)
			if e == nil && err == nil {
				break
			}
			if at.err = err; err == nil {
				p.take(e, at)
			}
			p.queues[i][0] = nil
			p.queues[i] = p.queues[i][1:]
			close(at.placed)
		}
	}
}

// pick chooses the session's endpoint if it has room, else the best one. It returns neither endpoint nor error where the
// queue helps: a request ends, or, as no endpoint is open at all, one will be, for somebody looks after that. mu is held.
func (p *Pool) pick(at *place) (best *endpoint, err error) {
	now := p.clock.Now()
	if own := p.sessions[at.session]; own != nil && own != at.avoid && own.serves(at) && own.member.Err() == nil {
		if free, _ := own.room(now, p.cfg.OpenAfter, p.cfg.MaxConcurrent); free {
			return own, nil
		}
	}
	serving, full, coming := false, false, false
	for _, e := range p.endpoints {
		if !e.serves(at) {
			coming = coming || e.State == StateShut || e.State == StateJoining
			continue
		}
		serving = true
		free, worthIt := e.room(now, p.cfg.OpenAfter, p.cfg.MaxConcurrent)
		full = full || worthIt && !free
		if free && (best == nil || better(e, best, at.avoid)) {
			best = e
		}
	}
	switch {
	case best != nil || full || !serving:
		return best, nil
	case coming:
		return nil, errNoneYet
	}
	return nil, errNoEndpoint
}

// serves reports whether the endpoint's state allows the request.
func (e *endpoint) serves(at *place) bool { return e.State == StateOpen || !at.samples }

func better(e, than, avoid *endpoint) bool {
	if (e == avoid) != (than == avoid) {
		return than == avoid
	}
	if (e.State == StateOpen) != (than.State == StateOpen) {
		return e.State == StateOpen
	}
	return e.running < than.running
}

// take puts a request at an endpoint; mu is held.
func (p *Pool) take(e *endpoint, at *place) {
	e.trial = e.circuit(p.clock.Now(), p.cfg.OpenAfter) == halfOpen
	e.running++
	at.e, at.client, at.life, at.term = e, e.client, e.member, e.Term
	if at.samples {
		at.life, at.salt = e.trust, e.salt()
	}
	if at.samples && p.cfg.Adapters && e.Approved != trusted {
		at.client = e.client.Adapter(e.Approved)
	}
	if at.session != "" {
		p.sessions[at.session] = e
	}
}

// release gives the place back and lets the circuit learn from the outcome. A request's own fault (KindInvalid, …), a
// caller that gave up and a term that ended say nothing about the endpoint.
func (p *Pool) release(at *place, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := at.e
	e.running--
	e.trial = false
	switch {
	case err == nil:
		e.done++
		e.fails = 0
	case retriable(err):
		e.failed++
		p.fail(e, err)
	}
	if (retriable(err) || errors.Is(err, errVoid)) && p.sessions[at.session] == e {
		delete(p.sessions, at.session)
	}
	if e.running == 0 {
		e.tell()
	}
	p.dispatch()
}

// fail counts a failure and opens the circuit at the bound; mu is held.
func (p *Pool) fail(e *endpoint, err error) {
	e.last = err
	if e.fails++; e.fails >= p.cfg.OpenAfter {
		e.openUntil = p.clock.Now().Add(p.cfg.OpenFor)
	}
}

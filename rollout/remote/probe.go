package remote

import (
	"context"
	"sync"

	"github.com/milepost-rl/milepost"
)

// probes sends the probe requests of one episode to the run, in order and beside the episode.
//
// Invariants: add never waits; one goroutine (send's) sends, each request until it was answered; sent are the blobs that the
// run is known to have, send's own until it returned.
type probes struct {
	w *Worker
	h *holding

	mu    sync.Mutex
	queue []milepost.ProbeRequest
	more  chan struct{} // capacity 1
	last  bool          // nothing more is added
	sent  map[string]bool
}

func newProbes(w *Worker, h *holding) *probes {
	return &probes{w: w, h: h, more: make(chan struct{}, 1), sent: map[string]bool{}}
}

func (p *probes) add(r milepost.ProbeRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, r)
	p.signal()
}

func (p *probes) signal() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// finish lets send return once the queue is empty.
func (p *probes) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = true
	p.signal()
}

// take is the next request; last says that there will be none.
func (p *probes) take() (r *milepost.ProbeRequest, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return nil, p.last
	}
	r = &p.queue[0]
	p.queue = p.queue[1:]
	return r, false
}

// send sends what comes until finish was called, or nobody waits for the episode any more.
func (p *probes) send() {
	for {
		r, last := p.take()
		switch {
		case last || p.h.gone.Err() != nil:
			return
		case r == nil:
			select {
			case <-p.more:
			case <-p.h.gone.Done():
			}
			continue
		}
		r.Task = nil // the run knows it
		delta := p.fresh(r.Delta)
		taken := p.w.insist(p.h, p.w.subj.step(p.h.at.Run, p.h.at.Epoch), stepTries, func(ctx context.Context) (any, error) {
			s := wireStep{V: p.w.version, address: p.h.at}
			var err error
			if s.Request, err = p.w.depot.wrap(ctx, r); err == nil {
				s.Blobs, err = p.w.depot.pack(ctx, p.w.deps.Blobs, delta)
			}
			return s, err
		})
		for _, c := range delta {
			p.sent[c.Blob] = taken // if not, it comes with the episode, and the barrier asks for the probe
		}
	}
}

// fresh are the changes of a difference whose bytes the run does not have yet.
func (p *probes) fresh(delta []milepost.TreeChange) (out []milepost.TreeChange) {
	for _, c := range delta {
		if !c.Deleted && !p.sent[c.Blob] {
			out = append(out, c)
		}
	}
	return out
}

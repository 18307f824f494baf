package remote

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// aside lets handle work in a goroutine of its own, as it may move objects, and answers with what it returns. Messages that
// depend on each other are sent one after the other's answer.
func (d *Dispatcher) aside(handle func(context.Context, *nats.Msg) any) nats.MsgHandler {
	return func(m *nats.Msg) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.closed {
			return
		}
		d.wg.Go(func() {
			ctx, cancel := context.WithTimeout(d.ctx, handleBound)
			defer cancel()
			answer := handle(ctx, m)
			out, err := messages.Encode(m.Reply, answer)
			if err == nil {
				err = milepost.Wrap("remote: answer", milepost.KindUnavailable, d.deps.NC.PublishMsg(out))
			}
			if err != nil {
				d.unsaid(answer)
				d.warn(err)
			}
		})
	}
}

// unsaid takes an offer back that did not leave.
func (d *Dispatcher) unsaid(answer any) {
	if offer, ok := answer.(wireOffer); ok && offer.Episode != "" {
		d.back(offer.address)
	}
}

// back makes an order wait again.
func (d *Dispatcher) back(a address) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o := d.ledger.current(a); o != nil && d.ledger.giveBack(o) {
		d.answer(o, ended{episode: unfinished(o.req, milepost.EpisodeCancelled, "")})
	}
	d.tell()
}

// unread counts a message that cannot be read.
func (d *Dispatcher) unread(err error) wireReply {
	d.mu.Lock()
	d.ledger.stats.Corrupt++
	d.mu.Unlock()
	d.warn(err)
	return wireReply{V: wireVersion, Error: err.Error()}
}

// onAsk gives a free slot the first episode that waits.
func (d *Dispatcher) onAsk(ctx context.Context, m *nats.Msg) any {
	var ask wireAsk
	if err := messages.Decode(wireVersion, m.Header, m.Data, &ask); err != nil {
		d.unread(err)
		return wireOffer{V: wireVersion}
	}
	d.mu.Lock()
	o := d.ledger.next(ask.Worker, time.Now())
	if o == nil {
		d.mu.Unlock()
		return wireOffer{V: wireVersion}
	}
	offer := wireOffer{V: wireVersion, address: d.address(o)}
	d.mu.Unlock()
	if offer.Attempt > 1 {
		d.deps.Prober.Cancel(o.req.Episode) // what the hand-out before asked for
	}
	order := wireOrder{Settings: d.deps.Settings, Request: o.req, ProbeSteps: o.probeSteps}
	order.Request.Task = agentTask(o.req.Task)
	var err error
	if offer.Order, err = d.depot.wrap(ctx, order); err != nil {
		d.warn(err)
		d.back(offer.address)
		return wireOffer{V: wireVersion}
	}
	return offer
}

// onStep publishes the probe that an episode under way asks for.
func (d *Dispatcher) onStep(ctx context.Context, m *nats.Msg) any {
	var s wireStep
	if err := messages.Decode(wireVersion, m.Header, m.Data, &s); err != nil {
		return d.unread(err)
	}
	o, reply := d.wanted(s.address)
	if o == nil {
		return reply
	}
	var r milepost.ProbeRequest
	err := d.depot.unwrap(ctx, s.Request, &r)
	if err == nil {
		err = d.depot.unpack(ctx, d.deps.Blobs, r.Delta, s.Blobs)
	}
	if err != nil {
		return wireReply{V: wireVersion, Error: err.Error()}
	}
	r.Task, r.Episode = o.req.Task, o.req.Episode
	d.warn(d.deps.Prober.Publish(ctx, r)) // no failure of the episode: the barrier publishes it again
	d.depot.discard(ctx, s.Request)
	return reply
}

// wanted is the order of a step or result, nil where its attempt is over, with what to answer.
func (d *Dispatcher) wanted(a address) (*order, wireReply) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.ledger.current(a)
	if o == nil {
		d.ledger.stats.Fenced++
		return nil, wireReply{V: wireVersion, Unwanted: true}
	}
	return o, wireReply{V: wireVersion}
}

// onResult takes an episode that ended, or one that is handed back.
func (d *Dispatcher) onResult(ctx context.Context, m *nats.Msg) any {
	var r wireResult
	if err := messages.Decode(wireVersion, m.Header, m.Data, &r); err != nil {
		return d.unread(err)
	}
	o, reply := d.wanted(r.address)
	if o == nil {
		return reply
	}
	if r.Returned {
		d.back(r.address)
		return reply
	}
	ep, err := d.open(ctx, o, &r)
	if milepost.KindOf(err) == milepost.KindUnavailable {
		return wireReply{V: wireVersion, Error: err.Error()} // the worker sends it again
	}
	if err != nil {
		d.warn(err)
		ep = unfinished(o.req, milepost.EpisodeInfra, fmt.Sprintf("its result of worker %s: %v", r.Worker, err))
	}
	d.mu.Lock()
	if d.ledger.current(r.address) != o || !d.answer(o, ended{episode: ep}) {
		d.ledger.stats.Fenced++
	} else {
		d.ledger.stats.Ended++
	}
	d.mu.Unlock()
	d.depot.discard(ctx, r.Body)
	return reply
}

// open reads an episode and brings its files into the run's store. Errors: KindUnavailable, after which it can be tried again;
// others mean that the episode is lost.
func (d *Dispatcher) open(ctx context.Context, o *order, r *wireResult) (*milepost.Episode, error) {
	const op = "remote: result"
	var ep milepost.Episode
	if err := d.depot.unwrap(ctx, r.Body, &ep); err != nil {
		return nil, err
	}
	if ep.ID != o.req.Episode {
		return nil, milepost.E(op, milepost.KindCorrupt, "episode %s came in place of %s", ep.ID, o.req.Episode)
	}
	ep.Group, ep.Task, ep.Attempt, ep.Retry = o.req.Group, o.req.Task.ID, o.req.Attempt, o.req.Retry // a worker that could not begin knows none
	switch ep.Status {
	case milepost.EpisodeCompleted, milepost.EpisodeLimit:
		return &ep, d.depot.unpack(ctx, d.deps.Blobs, differences(&ep), r.Blobs)
	case milepost.EpisodeInfra, milepost.EpisodeCancelled:
		return &ep, nil
	}
	return nil, milepost.E(op, milepost.KindCorrupt, "episode %s has status %q", ep.ID, ep.Status)
}

// onWorker takes a heartbeat: leases of what the worker holds begin anew, and it is told what nobody waits for.
func (d *Dispatcher) onWorker(m *nats.Msg) {
	w, err := readHeartbeat(m)
	if err != nil {
		d.unread(err)
		return
	}
	if w.Only != "" && w.Only != d.deps.Run {
		return // another run's own
	}
	now := time.Now()
	d.mu.Lock()
	foreign := w.Wire != wireVersion && !d.foreign[w.Wire]
	if foreign {
		d.foreign[w.Wire] = true
	}
	d.heard[w.Name] = heardWorker{info: w.WorkerInfo, at: now}
	var over []address
	if w.Wire == wireVersion {
		over = d.ledger.hear(w.Name, w.Held, now)
	}
	d.mu.Unlock()
	d.end(over)
	if foreign {
		d.warn(milepost.E("remote: workers", milepost.KindUnavailable, "rollout worker %s speaks version %d of the messages, this run version %d: "+
			"workers of that version get none of its episodes", w.Name, w.Wire, wireVersion))
	}
}

// readHeartbeat reads a heartbeat of any version. Errors: KindCorrupt.
func readHeartbeat(m *nats.Msg) (wireWorker, error) {
	var w wireWorker
	version, err := messages.DecodeAny(m.Header, m.Data, &w)
	w.Wire = version
	return w, err
}

package shadow

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// publishers carry requests to the stream; several, because each waits for the server's acknowledgement.
const publishers = 4

// publishBound is how long one try to publish waits for the server's word, on both sides: a server that has just died gives
// none, and a second try is harmless. uploadBound is the same for a request with all of its objects.
const (
	publishBound = 5 * time.Second
	uploadBound  = 2 * time.Minute
)

// enqueue puts f at the end of its kind's backlog. Under the lock.
func (p *Prober) enqueue(f *flight) {
	i := kindIndex(f.req.Kind)
	p.backlog[i] = append(p.backlog[i], f)
	p.queued++
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// dequeue takes the first flight of the most urgent kind; nil when there is none.
func (p *Prober) dequeue() (f *flight, attempt int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.backlog {
		for len(p.backlog[i]) > 0 {
			f := p.backlog[i][0]
			p.backlog[i][0] = nil
			p.backlog[i] = p.backlog[i][1:]
			p.queued--
			if p.book.current(f, f.attempt) {
				if p.queued > 0 {
					select { // another publisher may go on
					case p.more <- struct{}{}:
					default:
					}
				}
				return f, f.attempt
			}
		}
	}
	return nil, 0
}

func (p *Prober) publishLoop() {
	for {
		f, attempt := p.dequeue()
		if f != nil {
			p.carry(f, attempt)
			continue
		}
		select {
		case <-p.more:
		case <-p.ctx.Done():
			return
		}
	}
}

// carry brings one attempt of f onto the stream, however long the server is away. It gives up when the prober stops, when
// nobody wants the flight any more, or when its bytes are gone, which ends the probe.
func (p *Prober) carry(f *flight, attempt int) {
	wait := 50 * time.Millisecond
	for {
		ctx, cancel := context.WithTimeout(p.ctx, uploadBound)
		seq, err := p.send(ctx, f, attempt)
		cancel()
		if err == nil {
			p.arrived(f, attempt, seq)
			return
		}
		if k := milepost.KindOf(err); k == milepost.KindNotFound || k == milepost.KindCorrupt || k == milepost.KindInvalid {
			p.abandon(f, attempt, err)
			return
		}
		p.report(err)
		p.report(p.refused(err))
		select {
		case <-time.After(wait):
			wait = min(2*wait, 2*time.Second)
		case <-p.ctx.Done():
			return
		}
		p.mu.Lock()
		wanted := p.book.current(f, attempt)
		p.mu.Unlock()
		if !wanted {
			return
		}
	}
}

func (p *Prober) arrived(f *flight, attempt int, seq uint64) {
	p.mu.Lock()
	p.refusals = refusals{}
	p.book.sent(f, attempt, seq)
	gone := p.book.flights[f.key] != f
	if gone { // released meanwhile, or its result was faster: then the message is gone already
		p.deleteSeqs([]uint64{seq})
	}
	p.mu.Unlock()
	if gone {
		return
	}
	_ = p.nc.Publish(p.names.wake(), nil) // idle workers look by themselves too
}

// refused counts a failed try and returns what there is to say about the server beside it.
func (p *Prober) refused(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.book.stats.PublishErrors++
	if !p.nc.IsConnected() {
		p.refusals = refusals{}
		return nil
	}
	return p.refusals.refused(err, p.opts.now())
}

// abandon ends a probe that cannot be asked for: bytes of its tree are missing or damaged.
func (p *Prober) abandon(f *flight, attempt int, why error) {
	p.mu.Lock()
	if p.book.current(f, attempt) {
		p.book.conclude(f, &wireResult{address: address{Attempt: attempt}, Status: milepost.ProbeTreeWrong, Reason: why.Error()}, p.opts.now())
	}
	p.mu.Unlock()
	p.report(why)
}

// send publishes one attempt. Errors: KindUnavailable; KindNotFound, KindCorrupt and KindInvalid from the blob store.
func (p *Prober) send(ctx context.Context, f *flight, attempt int) (seq uint64, err error) {
	const op = "shadow: publish"
	m, err := p.message(ctx, f, attempt)
	if err != nil {
		return 0, err
	}
	// The server drops a second copy of the same attempt, sent because the first acknowledgement was lost.
	id := fmt.Sprintf("%s/%d/%s/%d", p.names.run, p.cfg.Epoch, f.key, attempt)
	ctx, cancel := context.WithTimeout(ctx, publishBound)
	defer cancel()
	ack, err := p.js.PublishMsg(ctx, m, jetstream.WithMsgID(id), jetstream.WithExpectStream(p.names.probes()))
	if err != nil {
		return 0, milepost.E(op, milepost.KindUnavailable, "request %s: %w", f.req.ID, err)
	}
	return ack.Sequence, nil
}

// message makes the request's message and uploads what does not fit into it. From the second attempt on everything large
// is looked for in the store again, as its absence may be why the first failed.
func (p *Prober) message(ctx context.Context, f *flight, attempt int) (*nats.Msg, error) {
	w := &wireRequest{address: address{V: p.names.version, Run: p.cfg.Run, Epoch: p.cfg.Epoch, Key: f.key, ID: f.req.ID, Attempt: attempt},
		Kind: f.req.Kind, Task: f.print.sum, Tree: f.req.Tree, Delta: f.req.Delta}
	limit := int(p.nc.MaxPayload()) - messages.Headroom
	if len(f.print.body) <= min(p.cfg.InlineLimit, limit/4) {
		w.TaskBody = f.print.body
	} else if err := p.store(ctx, messages.TaskObject(f.print.sum), f.print.body, attempt); err != nil {
		return nil, err
	}
	var err error
	w.Blobs, err = messages.PackBlobs(p.blobs, f.req.Delta, min(p.cfg.InlineLimit, limit/2), func(object string, data []byte) error {
		return p.store(ctx, object, data, attempt)
	})
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", f.req.ID, err)
	}
	m, err := messages.Encode(p.names.probe(f.req.Kind), w)
	if err == nil && len(m.Data) > limit {
		err = milepost.E("shadow: publish", milepost.KindInvalid, "request %s takes %d bytes without its blobs (%d changed files); the server takes %d: raise max_payload",
			f.req.ID, len(m.Data), len(f.req.Delta), limit)
	}
	return m, err
}

func (p *Prober) store(ctx context.Context, object string, data []byte, attempt int) error {
	if attempt > 1 {
		p.objs.Forget(object)
	}
	return p.objs.UploadBytes(ctx, object, data)
}

// deleteMessages takes the requests of unwanted flights off the stream.
func (p *Prober) deleteMessages(unwanted []*flight) {
	var seqs []uint64
	p.mu.Lock()
	for _, f := range unwanted {
		if f.seq != 0 {
			seqs = append(seqs, f.seq)
		}
	}
	defer p.mu.Unlock()
	p.deleteSeqs(seqs)
}

// deleteSeqs deletes messages in the background. A failure costs a worker's time and nothing else. Under the lock.
func (p *Prober) deleteSeqs(seqs []uint64) {
	if len(seqs) == 0 || p.stopped != nil {
		return
	}
	p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
		defer cancel()
		s, err := p.js.Stream(ctx, p.names.probes())
		if err != nil {
			return
		}
		for _, seq := range seqs {
			_ = s.DeleteMsg(ctx, seq) // gone already, or served: both fine
		}
	})
}

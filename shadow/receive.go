package shadow

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// subscribe listens to workers: what they take, that they live, and which bases they lack.
func (p *Prober) subscribe() error {
	for subject, handle := range map[string]nats.MsgHandler{
		p.names.progress(): p.onProgress, p.names.workers(): p.onWorker, messages.BaseSubject(p.cfg.Streams.Prefix, p.cfg.Run): p.onBaseAsk,
	} {
		s, err := p.nc.Subscribe(subject, handle)
		if err != nil {
			return milepost.Wrap("shadow: subscribe", milepost.KindUnavailable, err)
		}
		p.subs = append(p.subs, s)
	}
	return nil
}

func (p *Prober) onProgress(m *nats.Msg) {
	var w wireStarted
	err := messages.Decode(p.names.version, m.Header, m.Data, &w)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		p.book.stats.Corrupt++
	case w.Epoch == p.cfg.Epoch:
		p.book.started(w.address, p.opts.now())
	}
}

func (p *Prober) onWorker(m *nats.Msg) {
	w, err := readHeartbeat(m.Header, m.Data)
	if err == nil && p.hear(w) {
		err = milepost.E("shadow: workers", milepost.KindUnavailable, "worker %s speaks version %d of the messages, this run version %d: workers of that version get "+
			"none of its probes, which wait for workers of its own version", w.Name, w.Wire, p.names.version)
	} else if err != nil {
		p.mu.Lock()
		p.book.stats.Corrupt++
		p.mu.Unlock()
		return
	}
	p.report(err)
}

// hear notes that w lives, and reports whether it is the first of a version that this run cannot use.
func (p *Prober) hear(w WorkerInfo) (foreign bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard[w.Name] = heardWorker{w, p.opts.now()}
	p.countSlots()
	foreign = w.Wire != p.names.version && !p.foreign[w.Wire]
	p.foreign[w.Wire] = p.foreign[w.Wire] || foreign
	return foreign
}

// aloneFor is how long requests may wait without a worker before the run says so.
const aloneFor = 30 * time.Second

// missWorkers reports, every aloneFor, that requests wait and nobody is there to take them.
func (p *Prober) missWorkers() {
	p.mu.Lock()
	waiting, others, now := len(p.book.flights), len(p.workers())-len(p.able()), p.opts.now()
	var err error
	switch {
	case waiting == 0 || waiting > 0 && len(p.able()) > 0:
		p.idle = time.Time{}
	case p.idle.IsZero():
		p.idle = now
	case now.Sub(p.idle) >= aloneFor:
		p.idle = now
		err = milepost.E("shadow: workers", milepost.KindUnavailable, "%d probes wait and no worker is there for them (%d others drain or are of another version): "+
			"start `milepost worker shadow` with this run's server, or set probes.local", waiting, others)
	}
	p.mu.Unlock()
	p.report(err)
}

// receiveLoop consumes results until the prober stops, and begins anew when the server lost its streams.
func (p *Prober) receiveLoop(c jetstream.Consumer) {
	for p.ctx.Err() == nil {
		if c != nil {
			p.report(p.receive(c))
		}
		if p.ctx.Err() != nil {
			return
		}
		var err error
		if c, err = p.reclaim(); err != nil {
			c = nil
			if milepost.KindOf(err) == milepost.KindConflict {
				p.report(err)
				p.stop(err)
				return
			}
			p.report(err)
			select {
			case <-time.After(500 * time.Millisecond):
			case <-p.ctx.Done():
			}
		}
	}
}

func (p *Prober) reclaim() (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	if _, err := p.js.Stream(ctx, p.names.results()); errors.Is(err, jetstream.ErrStreamNotFound) {
		if _, err := ensure(ctx, p.js, p.cfg.Streams, p.names, true); err != nil {
			return nil, err
		}
	}
	return claim(ctx, p.js, p.names, p.cfg.Epoch, p.cfg.Streams.AckWait)
}

// receive takes results off c until the prober stops or the consumer is gone, which is the error.
func (p *Prober) receive(c jetstream.Consumer) error {
	broken := make(chan error, 1)
	cc, err := c.Consume(p.onResult, jetstream.PullMaxMessages(256), jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(2*time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
				errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrNoHeartbeat) || errors.Is(err, nats.ErrNoResponders) {
				select {
				case broken <- err:
				default:
				}
			}
		}))
	if err != nil {
		return milepost.Wrap("shadow: receive", milepost.KindUnavailable, err)
	}
	defer func() {
		cc.Stop()
		<-cc.Closed()
	}()
	select {
	case <-p.ctx.Done():
		return nil
	case err := <-broken:
		return milepost.Wrap("shadow: receive", milepost.KindUnavailable, err)
	case <-cc.Closed():
		return milepost.E("shadow: receive", milepost.KindUnavailable, "the subscription to results ended")
	}
}

// onResult takes one result into the book, then acknowledges it.
func (p *Prober) onResult(m jetstream.Msg) {
	var r wireResult
	err := messages.Decode(p.names.version, m.Headers(), m.Data(), &r)
	if err == nil && !knownStatus(r.Status) {
		err = milepost.E("shadow: result", milepost.KindCorrupt, "status %q of %s is not one a worker may send", r.Status, r.ID)
	}
	if err == nil && r.Run != p.cfg.Run {
		err = milepost.E("shadow: result", milepost.KindCorrupt, "result of run %q on the subject of run %q", r.Run, p.cfg.Run)
	}
	if err != nil { // the reconciler will miss the request and publish it again
		p.mu.Lock()
		p.book.stats.Corrupt++
		p.mu.Unlock()
		p.report(err)
		_ = m.TermWithReason("cannot be read")
		return
	}
	p.report(p.take(&r))
	_ = m.Ack() // a lost acknowledgement brings a duplicate, which is counted and dropped
}

// take gives a result to the book. The error is of a file in the run folder; the result is safe in memory then.
func (p *Prober) take(r *wireResult) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Epoch != p.cfg.Epoch {
		p.book.stats.StaleEpoch++
		return nil
	}
	out := p.book.result(r, p.opts.now())
	if out.recheck != nil {
		p.enqueue(out.recheck)
	}
	var err error
	if out.store != nil {
		err = p.cache.add(*out.store)
	}
	if out.differs != nil {
		err = errors.Join(err, p.flaky.add(out.differs))
	}
	if err != nil {
		p.book.stats.CacheErrors++
	}
	return err
}

// tickLoop publishes retries when they are due and looks for lost messages.
func (p *Prober) tickLoop() {
	tick := time.NewTicker(min(p.cfg.RetryDelay/2+time.Millisecond, 100*time.Millisecond))
	defer tick.Stop()
	look := time.NewTicker(p.cfg.Reconcile)
	defer look.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
			p.mu.Lock()
			for _, f := range p.book.due(p.opts.now()) {
				p.enqueue(f)
			}
			p.countSlots() // workers that fell silent count no more
			p.mu.Unlock()
		case <-look.C:
			p.missWorkers()
			p.reconcile()
		}
	}
}

// reconcile compares the flights with what the stream holds. A work queue holds a message until its worker, having
// published the result, acknowledged it: a message that is gone while no result is under way was lost.
func (p *Prober) reconcile() {
	ctx, cancel := context.WithTimeout(p.ctx, max(p.cfg.Reconcile, 2*time.Second))
	defer cancel()
	// The results first: one that is published after this look belongs to a request that the second look still sees.
	c, err := p.js.Consumer(ctx, p.names.results(), p.names.resultConsumer(p.cfg.Epoch))
	if err != nil {
		return // receiveLoop deals with it
	}
	if info := c.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
		return
	}
	s, err := p.js.Stream(ctx, p.names.probes())
	if err != nil {
		return
	}
	info, err := s.Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return
	}
	st := info.State
	held := func(seq uint64) bool {
		_, deleted := slices.BinarySearch(st.Deleted, seq)
		return st.Msgs > 0 && seq >= st.FirstSeq && seq <= st.LastSeq && !deleted
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.book.lost(held, p.opts.now())
}

package shadow

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// Prober is the orchestrator's side of shadow probing. It is safe for concurrent use.
//
// Invariants:
//   - mu guards book, cache, flaky, backlog, prints, tasks and heard; nothing that can block (network, channel) happens under
//     it, except the append to the files of the run folder.
//   - Publish only touches memory. Four publishers carry the backlog to the stream; a flight is carried by one of them.
//   - A result is acknowledged after the book has taken it: an orchestrator that is busy or dies loses none.
//   - One epoch of a run owns its results. When a newer epoch takes over, this one stops, and Err says why.
//   - Close ends all goroutines, and every Await with it.
type Prober struct {
	cfg   ProberConfig
	names names
	nc    *nats.Conn
	js    jetstream.JetStream
	objs  *messages.Objects
	blobs messages.BlobGetter
	opts  proberOptions

	mu       sync.Mutex
	book     *book
	cache    *cacheFile
	flaky    *flakyFile
	backlog  [len(kinds)][]*flight
	queued   int
	prints   map[string]*taskPrint
	tasks    map[string]*milepost.Task
	heard    map[string]heardWorker
	foreign  map[int]bool // wire versions of workers that were reported
	refusals refusals
	idle     time.Time // since when requests wait and no worker is there for them; zero where one is
	stopped  error     // why the prober does no more; nil while it works

	more   chan struct{} // capacity 1: the backlog has grown
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	subs   []*nats.Subscription
}

type heardWorker struct {
	info WorkerInfo
	at   time.Time
}

type proberOptions struct {
	now   func() time.Time
	tasks func(id string) (*milepost.Task, error)
	bases BaseExporter
	onErr func(error)
	// version of the wire; another than this program's only in tests, where runs of two versions stand side by side
	version int
}

// ProberOption gives a prober what only some runs have.
type ProberOption func(*proberOptions)

// WithTasks lets Fill find a task that this prober has not yet seen (a resumed run).
func WithTasks(f func(id string) (*milepost.Task, error)) ProberOption {
	return func(o *proberOptions) { o.tasks = f }
}

// WithBases lets workers on other machines ask for base archives.
func WithBases(b BaseExporter) ProberOption { return func(o *proberOptions) { o.bases = b } }

// WithErrors reports failures that the prober survives, such as a cache file on a full disk or a server that is away: each
// is counted in Stats too. f must not block and must not call the prober.
func WithErrors(f func(error)) ProberOption { return func(o *proberOptions) { o.onErr = f } }

// WithClock replaces time.Now in what is measured; waiting uses real time.
func WithClock(now func() time.Time) ProberOption { return func(o *proberOptions) { o.now = now } }

// NewProber connects the run to the streams, takes it over from older epochs and opens the result cache. ctx bounds the
// set-up only; Close ends the prober. nc stays the caller's. Errors: KindInvalid, KindConflict where a newer epoch owns
// the run, KindUnavailable.
func NewProber(ctx context.Context, nc *nats.Conn, cfg ProberConfig, blobs messages.BlobGetter, options ...ProberOption) (*Prober, error) {
	const op = "shadow: new prober"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o := proberOptions{now: time.Now, onErr: func(error) {}, version: wireVersion}
	for _, f := range options {
		f(&o)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	n := newNames(cfg.Streams.Prefix, cfg.Run)
	n.version = o.version
	store, err := ensure(ctx, js, cfg.Streams, n, true)
	if err != nil {
		return nil, err
	}
	results, err := claim(ctx, js, n, cfg.Epoch, cfg.Streams.AckWait)
	if err != nil {
		return nil, err
	}
	book, cache, flaky, err := openFiles(cfg, o.onErr)
	if err != nil {
		return nil, err
	}
	p := &Prober{cfg: cfg, names: n, nc: nc, js: js, objs: messages.NewObjects(store, cfg.Streams.MaxAge, o.now), blobs: blobs, opts: o,
		book: book, cache: cache, flaky: flaky, prints: map[string]*taskPrint{},
		tasks: map[string]*milepost.Task{}, heard: map[string]heardWorker{}, foreign: map[int]bool{}, more: make(chan struct{}, 1)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if err := p.subscribe(); err != nil {
		_ = p.Close()
		return nil, err
	}
	for range publishers {
		p.wg.Go(p.publishLoop)
	}
	p.wg.Go(func() { p.receiveLoop(results) })
	p.wg.Go(p.tickLoop)
	return p, nil
}

// openFiles opens what the run folder keeps of earlier starts and makes the book of it. Errors: KindUnavailable.
func openFiles(cfg ProberConfig, onErr func(error)) (b *book, cache *cacheFile, flaky *flakyFile, err error) {
	unread := func(bad int, path string) {
		if bad > 0 {
			b.stats.CacheErrors += bad
			onErr(milepost.E("shadow: new prober", milepost.KindCorrupt, "%d lines of %s could not be read and are passed over", bad, path))
		}
	}
	cache, flaky = &cacheFile{}, &flakyFile{}
	var cached []cacheEntry
	bad := 0
	if cfg.CacheFile != "" {
		if cache, cached, bad, err = openCache(cfg.CacheFile); err != nil {
			return nil, nil, nil, err
		}
	}
	b = newBook(cfg, cached)
	unread(bad, cfg.CacheFile)
	if cfg.FlakyFile != "" {
		if flaky, bad, err = openFlaky(cfg.FlakyFile, b); err != nil {
			return nil, nil, nil, errors.Join(err, cache.close())
		}
		unread(bad, cfg.FlakyFile)
	}
	return b, cache, flaky, nil
}

// Publish takes a request and returns at once: verification happens elsewhere. In mode off, steps are ignored; in mode
// synchronous it behaves the same, and [NewSync] makes the loop wait. Errors: KindInvalid for a request that cannot be
// probed, KindLimit when the backlog is full (Fill publishes the step again), KindConflict or KindCanceled once the prober
// has stopped.
func (p *Prober) Publish(ctx context.Context, r milepost.ProbeRequest) error {
	if err := ctx.Err(); err != nil {
		return milepost.Wrap("shadow: publish", milepost.KindCanceled, err)
	}
	if p.cfg.Mode == ModeOff && r.Kind == milepost.ProbeStep {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.publish(r, false)
}

// publish is Publish under the lock. For a barrier, which is bounded by its batch, the backlog has no limit, and each step
// gets a probe of its own.
func (p *Prober) publish(r milepost.ProbeRequest, barrier bool) error {
	const op = "shadow: publish"
	if p.stopped != nil {
		return p.stopped
	}
	if err := checkRequest(r); err != nil {
		return err
	}
	if p.queued >= p.cfg.Backlog && !barrier {
		return milepost.E(op, milepost.KindLimit, "%d requests wait for the stream already", p.queued)
	}
	print := p.prints[r.Task.ID]
	if print == nil || print.task != r.Task {
		var err error
		if print, err = newTaskPrint(r.Task); err != nil {
			return err
		}
		p.prints[r.Task.ID], p.tasks[r.Task.ID] = print, r.Task
	}
	f := p.book.request(r, print, !barrier, p.opts.now())
	if f == nil {
		return nil
	}
	p.enqueue(f)
	if old := f.replaces; old != nil {
		f.replaces = nil
		if old.seq != 0 {
			p.deleteSeqs([]uint64{old.seq})
		}
	}
	return nil
}

func checkRequest(r milepost.ProbeRequest) error {
	const op = "shadow: publish"
	switch {
	case r.ID == "":
		return milepost.E(op, milepost.KindInvalid, "the request has no id")
	case kindIndex(r.Kind) < 0 || r.Kind == kindRecheck:
		return milepost.E(op, milepost.KindInvalid, "request %s: kind %q is not one of %v", r.ID, r.Kind, kinds[:len(kinds)-1])
	case r.Task == nil:
		return milepost.E(op, milepost.KindInvalid, "request %s: no task", r.ID)
	case len(r.Task.Tests) == 0:
		return milepost.E(op, milepost.KindInvalid, "request %s: task %s has no tests", r.ID, r.Task.ID)
	case r.Tree == "":
		return milepost.E(op, milepost.KindInvalid, "request %s: no tree", r.ID)
	case r.Kind != milepost.ProbeBaseline && r.Episode == "":
		return milepost.E(op, milepost.KindInvalid, "request %s: no episode", r.ID)
	}
	return nil
}

func kindIndex(k milepost.ProbeKind) int {
	for i, x := range kinds {
		if x == k {
			return i
		}
	}
	return -1
}

// Cancel forgets what the episode waits for: nobody will read it. Requests that no worker has begun are taken off the
// stream, unless another episode shares them.
func (p *Prober) Cancel(episode string) {
	p.mu.Lock()
	for _, id := range p.book.episodes[episode] {
		if e := p.book.entries[id]; e != nil && e.probe == nil {
			p.book.stats.Cancelled++
		}
	}
	unwanted := p.book.release(episode)
	p.mu.Unlock()
	p.deleteMessages(unwanted)
}

// Stats returns the counters so far.
func (p *Prober) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.book.stats
	s.Backlog, s.InFlight = p.queued, len(p.book.flights)
	s.Workers = len(p.able())
	return s
}

// Workers lists the workers heard of within the last 15 seconds, of all runs and versions on the server.
func (p *Prober) Workers() []WorkerInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers()
}

func (p *Prober) workers() (out []WorkerInfo) {
	for name, h := range p.heard {
		if p.opts.now().Sub(h.at) > 15*time.Second {
			delete(p.heard, name)
			continue
		}
		out = append(out, h.info)
	}
	return out
}

// able lists those of them that may take requests of this run. Under the lock.
func (p *Prober) able() (out []WorkerInfo) {
	for _, w := range p.workers() {
		if !w.Drains && w.Wire == p.names.version {
			out = append(out, w)
		}
	}
	return out
}

// countSlots tells the book what the workers can do. Under the lock.
func (p *Prober) countSlots() {
	p.book.slots = 0
	for _, w := range p.able() {
		p.book.slots += w.Slots
	}
}

// Err says why the prober has stopped, nil while it works. Errors: KindConflict when a newer epoch took over, KindCanceled
// after Close.
func (p *Prober) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// stop makes the prober do no more, because of err.
func (p *Prober) stop(err error) {
	p.mu.Lock()
	if p.stopped == nil {
		p.stopped = err
	}
	p.mu.Unlock()
	p.cancel()
}

// Close ends all goroutines, takes what is left off the stream, as nobody will read its results, and closes the cache
// file. Errors: KindUnavailable when results could not be written to the cache file.
func (p *Prober) Close() error {
	p.mu.Lock()
	owner := p.stopped == nil
	p.mu.Unlock()
	if owner && p.nc.IsConnected() {
		p.abandonStream()
	}
	p.stop(milepost.E("shadow: prober", milepost.KindCanceled, "the prober is closed"))
	for _, s := range p.subs {
		_ = s.Unsubscribe() // fails only where the connection is closed, which ends it too
	}
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	err := errors.Join(p.cache.close(), p.flaky.close())
	p.cache, p.flaky = &cacheFile{}, &flakyFile{}
	return milepost.Wrap("shadow: close prober", milepost.KindUnavailable, err)
}

// abandonStream purges the run's requests. Where that fails the next epoch does it, or MaxAge.
func (p *Prober) abandonStream() {
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
	defer cancel()
	if s, err := p.js.Stream(ctx, p.names.probes()); err == nil {
		_ = s.Purge(ctx, jetstream.WithPurgeSubject(p.names.allProbes()))
	}
}

// report counts nothing and tells the caller's error function; it must not be called under the lock.
func (p *Prober) report(err error) {
	if err != nil && p.ctx.Err() == nil {
		p.opts.onErr(err)
	}
}

package shadow

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/testrun"
	"github.com/milepost-rl/milepost/internal/messages"
)

// Outcome is what running a task's tests on one tree gave.
type Outcome = testrun.Outcome

// TestRunner rebuilds the tree base+delta, proves its id and runs the task's tests on it. The error is infrastructure or
// misuse; what the tests themselves do (time-out, memory, no output) is in the outcome. It is called from as many
// goroutines as the worker has slots. *testrun.Runner is one.
type TestRunner interface {
	Run(ctx context.Context, task *milepost.Task, tree string, delta []milepost.TreeChange) (Outcome, error)
}

// Worker serves probe requests of all runs on a server. Run may be called once.
//
// Invariants:
//   - mu guards what stands below it.
//   - Each slot asks for one request when it is free, never for more: what a busy worker held back, an idle one could run.
//   - While a probe runs its message is kept alive with InProgress; a worker that dies or hangs loses it after AckWait.
//   - A request is acknowledged only after its result is in the results stream. Who was fenced off meanwhile does no harm:
//     the prober drops the result.
//   - A worker whose own means fail (no sandbox, full disk) rests between probes, longer each time, so that it does not
//     take from the others, fast, what it can only fail at.
//   - A request that was handed out twice without a result may have killed its workers: it runs alone, and no other is fetched
//     meanwhile, so that those beside it do not die with it each time and are taken for deadly too.
//   - When ctx of Run ends, slots take no more, finish within DrainTimeout what they hold, and hand back the rest.
type Worker struct {
	cfg    WorkerConfig
	nc     *nats.Conn
	js     jetstream.JetStream
	runner TestRunner
	blobs  messages.BlobStore
	bases  *messages.BaseFetcher
	onErr  func(error)
	ready  func(context.Context) error // nil where nobody knows
	// version of the wire; another than this program's only in tests, where workers of two versions stand side by side
	version int

	gate *semaphore.Weighted // of one: who may fetch while the worker is careful
	room *semaphore.Weighted // one for each slot; a request that may have killed workers takes all
	asks singleflight.Group  // of ready
	wake chan struct{}       // a token for each slot at most

	mu      sync.Mutex
	careful time.Time // until then
	store   jetstream.ObjectStore
	queues  [len(kinds)]jetstream.Consumer
	lease   time.Duration // AckWait of the queues
	info    WorkerInfo
	tasks   map[string]*milepost.Task // by sum of the wire form
}

// WorkerOption gives a worker what only some have.
type WorkerOption func(*Worker)

// WithBaseStore lets the worker fetch base repositories that are not on its disk into the store its runner uses.
func WithBaseStore(b messages.BaseImporter) WorkerOption {
	return func(w *Worker) { w.bases.Bases = b }
}

// WithReadiness lets a worker whose probe failed for want of its own means (sandboxes, disk) ask f before it takes the next:
// until f returns nil it takes none, so that an engine that is away costs each slot one attempt and no more. f returns an
// error where no probe could be run, and may be called from several goroutines.
func WithReadiness(f func(context.Context) error) WorkerOption {
	return func(w *Worker) { w.ready = f }
}

// WithWorkerErrors reports failures that the worker survives. f must not block.
func WithWorkerErrors(f func(error)) WorkerOption { return func(w *Worker) { w.onErr = f } }

// NewWorker prepares a worker on nc, which stays the caller's; runner must read the blobs that the worker puts into blobs. ctx bounds the set-up. Errors: KindInvalid, KindUnavailable.
func NewWorker(ctx context.Context, nc *nats.Conn, cfg WorkerConfig, runner TestRunner, blobs messages.BlobStore, options ...WorkerOption) (*Worker, error) {
	const op = "shadow: new worker"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	info, err := messages.Self(cfg.Name, cfg.Slots)
	if err != nil {
		return nil, err
	}
	cfg.Name = info.Name
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	w := &Worker{cfg: cfg, nc: nc, js: js, runner: runner, blobs: blobs, onErr: func(error) {}, wake: make(chan struct{}, cfg.Slots),
		version: wireVersion, room: semaphore.NewWeighted(int64(cfg.Slots)), gate: semaphore.NewWeighted(1),
		careful: time.Now().Add(carefulFor), tasks: map[string]*milepost.Task{},
		info: info}
	w.bases = &messages.BaseFetcher{NC: nc, Prefix: cfg.Streams.Prefix, Store: func(context.Context) (jetstream.ObjectStore, error) { return w.objects(), nil }}
	for _, f := range options {
		f(w)
	}
	w.info.Wire = w.version
	return w, w.attach(ctx)
}

// Name is the worker's name in results and heartbeats.
func (w *Worker) Name() string { return w.cfg.Name }

// Info is what the worker's heartbeats say.
func (w *Worker) Info() WorkerInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.info
}

// names are those of a run, in the worker's version.
func (w *Worker) names(run string) names {
	n := newNames(w.cfg.Streams.Prefix, run)
	n.version = w.version
	return n
}

// attach finds or makes streams and consumers.
func (w *Worker) attach(ctx context.Context) error {
	n := w.names("any")
	store, err := ensure(ctx, w.js, w.cfg.Streams, n, false)
	if err != nil {
		return err
	}
	var queues [len(kinds)]jetstream.Consumer
	lease := w.cfg.Streams.AckWait
	for i, k := range kinds {
		if queues[i], err = w.js.Consumer(ctx, n.probes(), n.queue(k)); err != nil {
			return milepost.Wrap("shadow: attach worker", milepost.KindUnavailable, err)
		}
		lease = queues[i].CachedInfo().Config.AckWait // what holds is what the server has, whatever is configured here
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.store, w.queues, w.lease = store, queues, lease
	return nil
}

// Run serves until ctx ends, then drains, and returns nil. Errors: KindUnavailable when it cannot listen.
func (w *Worker) Run(ctx context.Context) error {
	sub, err := w.nc.Subscribe(w.names("any").wake(), func(*nats.Msg) { w.signal() })
	if err != nil {
		return milepost.Wrap("shadow: run worker", milepost.KindUnavailable, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection

	messages.Slots{N: w.cfg.Slots, Drain: w.cfg.DrainTimeout, Slot: w.slot, Beat: w.heartbeat, Draining: func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.info.Drains = true
	}}.Run(ctx)
	return milepost.Wrap("shadow: drain worker", milepost.KindUnavailable, w.nc.FlushTimeout(2*time.Second))
}

// signal wakes one idle slot.
func (w *Worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// slot takes one request after the other until ctx ends.
func (w *Worker) slot(ctx, hard context.Context) {
	poll := time.NewTimer(0)
	defer poll.Stop()
	for w.able(ctx) {
		m, open, err := w.take(ctx)
		switch {
		case err != nil:
			w.onErr(err)
			w.reattach(ctx)
		case m != nil:
			w.signal() // there may be more for another slot
			w.serve(hard, m, open)
			w.rest(ctx)
			continue
		}
		poll.Reset(w.cfg.Poll)
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-poll.C:
		}
	}
}

// restFirst and restMost bound how long a failing worker rests before it takes the next probe.
const restFirst, restMost = 250 * time.Millisecond, 30 * time.Second

// readyMost bounds how long a worker waits before it looks for its means again.
const readyMost = 5 * time.Second

// able waits, where the last probe failed for this worker's own reasons, until its means are back. It reports whether the
// slot may take a request; if not, ctx has ended.
func (w *Worker) able(ctx context.Context) bool {
	w.mu.Lock()
	failing := w.ready != nil && w.info.Failing > 0
	w.mu.Unlock()
	for wait := restFirst; failing && ctx.Err() == nil; wait = min(2*wait, readyMost) {
		_, err, _ := w.asks.Do("", func() (any, error) { return nil, w.ready(ctx) })
		if err == nil {
			break
		}
		if wait == restFirst && ctx.Err() == nil {
			w.onErr(milepost.E("shadow: worker", milepost.KindUnavailable, "takes no probe until its sandboxes can be had again: %w", err))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// rest waits where the last probes, two and more in a row, failed for this worker's own reasons.
func (w *Worker) rest(ctx context.Context) {
	w.mu.Lock()
	n := w.info.Failing
	w.mu.Unlock()
	if n < 2 {
		return
	}
	select {
	case <-time.After(min(restFirst<<min(n-2, 10), restMost)):
	case <-ctx.Done():
	}
}

// carefulFor is how long after its start, and after a request that may have killed workers, a worker fetches one request at a
// time.
const carefulFor = time.Minute

// take fetches one request; open lets other slots fetch, too, and must be called. While the worker is careful one slot at a
// time fetches: of two requests that may be deadly the second must not be handed out, and so be counted, while it can only
// wait for the first. Without a request, open was called.
func (w *Worker) take(ctx context.Context) (m jetstream.Msg, open func(), err error) {
	open = func() {}
	w.mu.Lock()
	careful := time.Now().Before(w.careful)
	w.mu.Unlock()
	if careful {
		if w.gate.Acquire(ctx, 1) != nil {
			return nil, open, nil
		}
		open = sync.OnceFunc(func() { w.gate.Release(1) })
	}
	if m, err = w.next(); m == nil {
		open()
	}
	return m, open, err
}

// next asks the queues for one request, the most urgent kind first; nil when they have none. Errors: KindUnavailable.
func (w *Worker) next() (jetstream.Msg, error) {
	w.mu.Lock()
	queues := w.queues
	w.mu.Unlock()
	if !w.nc.IsConnected() {
		return nil, nil
	}
	for _, q := range queues {
		batch, err := q.FetchNoWait(1)
		if err != nil {
			return nil, milepost.Wrap("shadow: fetch", milepost.KindUnavailable, err)
		}
		for m := range batch.Messages() {
			return m, nil
		}
		if err := batch.Error(); err != nil {
			return nil, milepost.Wrap("shadow: fetch", milepost.KindUnavailable, err)
		}
	}
	return nil, nil
}

// reattach makes the streams again after a server came back without them.
func (w *Worker) reattach(ctx context.Context) {
	if !w.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := w.attach(ctx); err != nil && ctx.Err() == nil {
		w.onErr(err)
	}
}

// heartbeat tells that the worker lives, at once and then every Heartbeat.
func (w *Worker) heartbeat(ctx context.Context) {
	subject := w.names("any").worker(w.cfg.Name)
	tick := time.NewTicker(w.cfg.Heartbeat)
	defer tick.Stop()
	for {
		w.mu.Lock()
		info := w.info
		w.mu.Unlock()
		if m, err := messages.Encode(subject, wireWorker{w.version, info}); err == nil {
			_ = w.nc.PublishMsg(m) // the next one follows; a closed connection shows in next
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

package remote

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/internal/messages"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// Prober publishes the probes of remote episodes; *shadow.Prober is one. Cancel forgets what an episode asked for.
type Prober interface {
	rollout.Prober
	Cancel(episode string)
}

// Endpoints is the pool whose states workers follow; *policy.Pool is one.
type Endpoints interface {
	Snapshot() []policy.EndpointState
	Changed() <-chan struct{} // closed at the next change; taken before the snapshot that it is to outdate
}

// Deps is what a dispatcher works with.
type Deps struct {
	NC        *nats.Conn // stays the caller's
	Prefix    string     // of subjects and of the object store, as the prober's
	Run       string     // id of the run
	Epoch     uint64     // higher with every start of the run
	Settings  Settings
	Prober    Prober
	Blobs     *repo.Blobs // the run's
	Endpoints Endpoints
	Warn      func(error) // told what the run survives; must not block. nil = nobody
}

// Dispatcher is the orchestrator's side: it hands the episodes of a run to workers. It is safe for concurrent use.
//
// Invariants:
//   - mu guards what stands below it, and nothing that can block happens under it.
//   - Whoever takes an order out of the ledger answers its Run, and nobody else does; ended has room for the one answer.
//   - Run ends: when its episode did, when its workers fell silent too often, at most cancelBound after its context, or with
//     Close.
//   - Close ends all goroutines.
type Dispatcher struct {
	cfg   Config
	deps  Deps
	subj  subjects
	depot *depot

	mu       sync.Mutex
	ledger   *ledger
	heard    map[string]heardWorker
	foreign  map[int]bool // versions of workers that were reported
	idle     time.Time    // since when episodes wait and no worker is there for them; zero where one is
	offline  bool         // the connection was away at the last look
	closed   bool
	sequence uint64

	news   chan struct{} // capacity 1: workers should be told
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	subs   []*nats.Subscription
}

type heardWorker struct {
	info WorkerInfo
	at   time.Time
}

const (
	noticeEvery  = time.Second            // between notices without news
	noticeLeast  = 20 * time.Millisecond  // between notices with news
	cancelBound  = 10 * time.Second       // how long a cancelled episode's worker may take to answer
	cancelAgain  = 250 * time.Millisecond // a cancellation may be lost, so it is repeated until it is answered
	handleBound  = 5 * time.Minute        // of one message, with its objects
	aloneFor     = 30 * time.Second       // how long episodes may wait without a worker before the run says so
	workerSilent = 15 * time.Second       // after which a worker is not counted any more
)

// NewDispatcher begins to hand out; Close ends it. Errors: KindInvalid, KindUnavailable.
func NewDispatcher(cfg Config, deps Deps) (*Dispatcher, error) {
	const op = "remote: new dispatcher"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Run == "" || deps.Epoch == 0 {
		return nil, milepost.E(op, milepost.KindInvalid, "run %q or epoch %d is missing", deps.Run, deps.Epoch)
	}
	if deps.Warn == nil {
		deps.Warn = func(error) {}
	}
	deps.Settings.Pool.APIKey, deps.Settings.Pool.URLs = "", nil // no secret travels, and addresses come with notices
	depot, err := newDepot(deps.NC, deps.Prefix, cfg.InlineLimit)
	if err != nil {
		return nil, err
	}
	d := &Dispatcher{cfg: cfg, deps: deps, subj: subjects(deps.Prefix), depot: depot, ledger: newLedger(deps.Run, deps.Epoch, cfg),
		heard: map[string]heardWorker{}, foreign: map[int]bool{}, news: make(chan struct{}, 1)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	for subject, handle := range map[string]nats.MsgHandler{
		d.subj.hello():                    func(*nats.Msg) { d.tell() },
		d.subj.workers():                  d.onWorker,
		d.subj.ask(deps.Run, deps.Epoch):  d.aside(d.onAsk),
		d.subj.step(deps.Run, deps.Epoch): d.aside(d.onStep),
		d.subj.endpoints(deps.Run, deps.Epoch): d.aside(func(context.Context, *nats.Msg) any {
			return wireEndpoints{V: wireVersion, Endpoints: deps.Endpoints.Snapshot()}
		}),
		d.subj.result(deps.Run, deps.Epoch): d.aside(d.onResult),
	} {
		s, err := deps.NC.Subscribe(subject, handle)
		if err != nil {
			d.cancel()
			d.unsubscribe()
			return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		d.subs = append(d.subs, s)
	}
	d.wg.Go(d.notify)
	d.wg.Go(d.watch)
	return d, nil
}

// Run hands one episode out and returns it when it ended. probeSteps asks for a probe of each step that changed the
// repository, in place of Settings.Rollout.ProbeSteps. When ctx ends the worker is told, and the episode comes back with
// status cancelled and what it has so far; an episode that nobody had begun is only the error. Errors: KindCanceled,
// KindConflict for an id that is under way, KindInvalid for a request without id or task.
func (d *Dispatcher) Run(ctx context.Context, req rollout.Request, probeSteps bool) (*milepost.Episode, error) {
	const op = "remote: run"
	if req.Episode == "" || req.Task == nil {
		return nil, milepost.E(op, milepost.KindInvalid, "the request has no episode or no task")
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, milepost.E(op, milepost.KindCanceled, "the dispatcher is closed")
	}
	o, err := d.ledger.add(req, probeSteps)
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	d.tell()
	select {
	case e := <-o.ended:
		return e.episode, e.err
	case <-ctx.Done():
		return d.giveUp(o, milepost.Wrap(op, milepost.KindCanceled, ctx.Err()))
	}
}

// giveUp ends an order whose caller does not want it any more.
func (d *Dispatcher) giveUp(o *order, why error) (*milepost.Episode, error) {
	d.mu.Lock()
	over := d.ledger.withdraw(o)
	at := d.address(o)
	d.mu.Unlock()
	if over {
		return nil, why
	}
	bound := time.NewTimer(cancelBound)
	defer bound.Stop()
	for {
		d.end([]address{at})
		select {
		case e := <-o.ended:
			return e.episode, e.err
		case <-time.After(cancelAgain):
		case <-bound.C:
			d.mu.Lock()
			defer d.mu.Unlock()
			if !d.ledger.end(o) {
				e := <-o.ended // it came just now
				return e.episode, e.err
			}
			d.ledger.stats.Abandoned++
			return unfinished(o.req, milepost.EpisodeCancelled, ""), nil
		}
	}
}

// address is that of an order's last hand-out. Under the lock.
func (d *Dispatcher) address(o *order) address {
	return address{Run: d.deps.Run, Epoch: d.deps.Epoch, Episode: o.req.Episode, Attempt: o.attempt}
}

// unfinished is an episode of which nothing came back.
func unfinished(req rollout.Request, status milepost.EpisodeStatus, why string) *milepost.Episode {
	stop := milepost.StopError
	if status == milepost.EpisodeCancelled {
		stop = milepost.StopCanceled
	}
	return &milepost.Episode{ID: req.Episode, Group: req.Group, Task: req.Task.ID, Attempt: req.Attempt, Retry: req.Retry,
		Status: status, Stop: stop, Error: why, FinalTree: req.Task.BaseTree, Started: time.Now()}
}

// end tells workers that hand-outs are over.
func (d *Dispatcher) end(over []address) {
	if len(over) == 0 {
		return
	}
	if m, err := messages.Encode(d.subj.cancel(d.deps.Run), wireCancel{V: wireVersion, Over: over}); err == nil {
		_ = d.deps.NC.PublishMsg(m) // lost, it is repeated: here, or at the worker's next heartbeat
	}
}

// tell makes workers hear of the run soon.
func (d *Dispatcher) tell() {
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// notify sends notices until the dispatcher is closed.
func (d *Dispatcher) notify() {
	tick := time.NewTicker(noticeEvery)
	defer tick.Stop()
	for {
		changed := d.deps.Endpoints.Changed()
		d.notice(false)
		select {
		case <-time.After(noticeLeast):
		case <-d.ctx.Done():
		}
		select {
		case <-d.news:
		case <-changed:
		case <-tick.C:
		case <-d.ctx.Done():
			d.notice(true)
			return
		}
	}
}

func (d *Dispatcher) notice(closed bool) {
	endpoints := d.deps.Endpoints.Snapshot()
	d.mu.Lock()
	d.sequence++
	n := wireNotice{V: wireVersion, Run: d.deps.Run, Epoch: d.deps.Epoch, Seq: d.sequence, Waiting: len(d.ledger.queue), Endpoints: endpoints, Lease: d.cfg.Lease, Closed: closed}
	d.mu.Unlock()
	if m, err := messages.Encode(d.subj.notice(d.deps.Run), n); err == nil {
		_ = d.deps.NC.PublishMsg(m) // the next one follows
	}
}

// watch takes episodes from workers that fell silent.
func (d *Dispatcher) watch() {
	tick := time.NewTicker(min(d.cfg.Lease/4, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-tick.C:
			d.look(time.Now())
		}
	}
}

// look ends leases that ran out.
func (d *Dispatcher) look(now time.Time) {
	online := d.deps.NC.IsConnected()
	d.mu.Lock()
	waiting := len(d.ledger.queue)
	switch {
	case !online:
		d.offline = true
	case d.offline:
		d.offline = false
		d.ledger.refresh(now)
	default:
		for _, o := range d.ledger.expire(now) {
			status, why := milepost.EpisodeInfra, "its worker fell silent, "+o.worker+" at last"
			if o.unwanted {
				status, why = milepost.EpisodeCancelled, ""
			}
			d.answer(o, ended{episode: unfinished(o.req, status, why)})
		}
	}
	news := len(d.ledger.queue) > waiting
	alone := d.alone(now)
	d.mu.Unlock()
	if news {
		d.tell()
	}
	d.warn(alone)
}

// alone says, every aloneFor, that episodes wait and nobody is there to take them. Under the lock.
func (d *Dispatcher) alone(now time.Time) error {
	workers, others := d.able(now)
	switch waiting := len(d.ledger.queue); {
	case waiting == 0 || len(workers) > 0:
		d.idle = time.Time{}
	case d.idle.IsZero():
		d.idle = now
	case now.Sub(d.idle) >= aloneFor:
		d.idle = now
		return milepost.E("remote: workers", milepost.KindUnavailable, "%d episodes wait and no rollout worker is there for them (%d others drain or are of another version): "+
			"start `milepost worker rollout` with this run's server, or set workers.mode: both", waiting, others)
	}
	return nil
}

// able lists the workers that may take episodes of this run, and counts the others. Under the lock.
func (d *Dispatcher) able(now time.Time) (able []heardWorker, others int) {
	for name, h := range d.heard {
		switch {
		case now.Sub(h.at) > workerSilent:
			delete(d.heard, name)
		case h.info.Drains || h.info.Wire != wireVersion:
			others++
		default:
			able = append(able, h)
		}
	}
	return able, others
}

// answer takes an order out and gives its Run what it returns. It reports whether the order was still there. Under the lock.
func (d *Dispatcher) answer(o *order, e ended) bool {
	if !d.ledger.end(o) {
		return false
	}
	o.ended <- e
	return true
}

// Stats returns the counters so far.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.ledger.stats
	s.Waiting = len(d.ledger.queue)
	s.Held = len(d.ledger.orders) - s.Waiting
	workers, _ := d.able(time.Now())
	for _, w := range workers {
		s.Workers++
		s.Slots += w.info.Slots
		s.Busy += w.info.Busy
	}
	return s
}

// Close tells the workers that the run ends here, ends every Run and all goroutines.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	d.closed = true
	for _, o := range d.ledger.orders {
		d.answer(o, ended{err: milepost.E("remote: run", milepost.KindCanceled, "the dispatcher is closed")})
	}
	d.mu.Unlock()
	d.cancel()
	d.unsubscribe()
	d.wg.Wait()
	_ = d.deps.NC.FlushTimeout(time.Second) // the last notice; workers find out without it, later
}

func (d *Dispatcher) unsubscribe() {
	for _, s := range d.subs {
		_ = s.Unsubscribe() // fails only where the connection is closed, which ends it too
	}
}

func (d *Dispatcher) warn(err error) {
	if err != nil && d.ctx.Err() == nil {
		d.deps.Warn(err)
	}
}

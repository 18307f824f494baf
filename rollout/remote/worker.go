package remote

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/internal/messages"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// WorkerDeps is what a worker works with.
type WorkerDeps struct {
	NC     *nats.Conn // stays the caller's
	Prefix string     // as the runs'
	Inline int        // Config.InlineLimit
	Env    *env.Env
	Bases  *repo.Store
	Blobs  *repo.Blobs
	Policy func(Settings) (Policy, error) // the model of a run; NewPolicy outside tests and the orchestrator's own process
	Ready  func(context.Context) error    // asked, after an episode that could not begin, whether sandboxes can be had; nil where nobody knows
	Warn   func(error)                    // told what the worker survives; must not block. nil = nobody
	Only   string                         // id of the only run whose episodes it takes, as Policy samples of that run's weights alone; "" = all
}

// Worker runs episodes of all runs on a server, or of WorkerDeps.Only. Run may be called once.
//
// Invariants:
//   - mu guards what stands below it.
//   - Each free slot asks for one episode; a busy worker holds nothing back from an idle one.
//   - What it holds is in every heartbeat until the run answered for it or nobody waits for it.
//   - Notices of a run take effect in the order of (epoch, seq); a newer epoch drops what is held of an older one.
//   - A run that falls silent while the worker is connected is given up after WorkerConfig.Orphaned, and what is held of it.
//   - A worker whose episodes fail before their first turn rests between them, longer each time: failing is faster than
//     working, so it would otherwise take every episode there is.
//   - When ctx of Run ends, slots take no more, finish within DrainTimeout what they hold, and hand back the rest.
type Worker struct {
	cfg   WorkerConfig
	deps  WorkerDeps
	subj  subjects
	nc    *nats.Conn
	depot *depot
	bases *messages.BaseFetcher
	wake  chan struct{} // a token for each slot at most
	// version of the wire; another than this program's only in tests
	version int

	mu      sync.Mutex
	info    WorkerInfo
	runs    map[string]*known
	held    map[address]*holding
	foreign map[string]int // versions of runs that were reported, by run
	offline bool
}

// known is a run that a worker hears of.
type known struct {
	notice wireNotice
	at     time.Time // last heard
	served time.Time // when a slot last asked it
	site   *site     // made at the first episode
}

// NewWorker prepares a worker. Errors: KindInvalid, KindUnavailable.
func NewWorker(cfg WorkerConfig, deps WorkerDeps) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	info, err := messages.Self(cfg.Name, cfg.Slots)
	if err != nil {
		return nil, err
	}
	cfg.Name = info.Name
	if deps.Warn == nil {
		deps.Warn = func(error) {}
	}
	depot, err := newDepot(deps.NC, deps.Prefix, deps.Inline)
	if err != nil {
		return nil, err
	}
	return &Worker{cfg: cfg, deps: deps, subj: subjects(deps.Prefix), nc: deps.NC, depot: depot, wake: make(chan struct{}, cfg.Slots), version: wireVersion,
		bases: &messages.BaseFetcher{NC: deps.NC, Prefix: deps.Prefix, Store: depot.Store, Bases: deps.Bases},
		info:  info, runs: map[string]*known{}, held: map[address]*holding{}, foreign: map[string]int{}}, nil
}

// Name is the worker's name in results and heartbeats.
func (w *Worker) Name() string { return w.cfg.Name }

// Info is what the worker's heartbeats say.
func (w *Worker) Info() WorkerInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.info
}

// Run serves until ctx ends, then drains, and returns nil. Errors: KindUnavailable when it cannot listen.
func (w *Worker) Run(ctx context.Context) error {
	const op = "remote: run worker"
	for subject, handle := range map[string]nats.MsgHandler{w.subj.notices(): w.onNotice, w.subj.cancels(): w.onCancel} {
		sub, err := w.nc.Subscribe(subject, handle)
		if err != nil {
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	}
	_ = w.nc.Publish(w.subj.hello(), nil) // a run that does not hear it tells of itself within a second

	var giveUp *time.Timer
	messages.Slots{N: w.cfg.Slots, Drain: w.cfg.DrainTimeout, Slot: w.slot, Beat: w.heartbeat, Draining: func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.info.Drains = true
		giveUp = time.AfterFunc(w.cfg.DrainTimeout+handBackBound, w.dropAll)
	}}.Run(ctx)
	giveUp.Stop()
	w.mu.Lock()
	for _, r := range w.runs {
		r.close()
	}
	w.mu.Unlock()
	if w.nc.IsConnected() {
		_ = w.nc.FlushTimeout(2 * time.Second) // the last heartbeat; all that matters was answered
	}
	return nil
}

// handBackBound is how long a worker that stops tries to hand back what it holds.
const handBackBound = 5 * time.Second

func (w *Worker) dropAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		h.drop(errGone)
	}
}

// close ends what a worker has of a run.
func (r *known) close() {
	if r.site != nil {
		go r.site.policy.Close() // it waits for a health check under way
		r.site = nil
	}
}

// slot takes one episode after the other until ctx ends.
func (w *Worker) slot(ctx, hard context.Context) {
	for w.able(ctx) {
		offer := w.ask(ctx)
		if offer == nil {
			select {
			case <-w.wake:
			case <-ctx.Done():
			}
			continue
		}
		w.serve(hard, offer)
	}
}

// restFirst and restMost bound how long a failing worker rests before it takes the next episode.
const restFirst, restMost = 250 * time.Millisecond, 30 * time.Second

// able waits, where the last episodes failed before they began, longer each time and until sandboxes can be had. It reports
// whether the slot may take one; if not, ctx has ended.
func (w *Worker) able(ctx context.Context) bool {
	for ctx.Err() == nil {
		w.mu.Lock()
		n := w.info.Failing
		w.mu.Unlock()
		if n == 0 {
			return true
		}
		select {
		case <-time.After(min(restFirst<<min(n-1, 10), restMost)):
		case <-ctx.Done():
			return false
		}
		if w.deps.Ready == nil {
			return ctx.Err() == nil
		}
		err := w.deps.Ready(ctx)
		if err == nil {
			return ctx.Err() == nil
		}
		w.warn(milepost.E("remote: worker", milepost.KindUnavailable, "takes no episode until its sandboxes can be had again: %w", err))
	}
	return false
}

// askBound is how long a slot waits for a run's offer.
const askBound = 10 * time.Second

// ask gets an episode from a run that has some, nil where none has.
func (w *Worker) ask(ctx context.Context) *wireOffer {
	for ctx.Err() == nil && w.nc.IsConnected() {
		run, epoch := w.choose(time.Now())
		if run == "" {
			return nil
		}
		m, err := messages.Encode(w.subj.ask(run, epoch), wireAsk{V: w.version, Worker: w.cfg.Name})
		if err != nil {
			w.warn(err)
			return nil
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), askBound) // an offer must not be lost to a stop
		answer, err := w.request(bounded, m)
		cancel()
		var offer wireOffer
		if err == nil {
			err = messages.Decode(w.version, answer.Header, answer.Data, &offer)
		}
		switch {
		case err != nil:
			w.warn(milepost.E("remote: ask", milepost.KindUnavailable, "run %s: %w", run, err))
			return nil // the next notice wakes the slot
		case offer.Episode != "":
			return &offer
		}
	}
	return nil
}

// choose takes one of the waiting episodes that are known of, of the run that was asked longest ago.
func (w *Worker) choose(now time.Time) (run string, epoch uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var best *known
	for _, r := range w.runs {
		if r.notice.Waiting > 0 && (best == nil || r.served.Before(best.served)) {
			best = r
		}
	}
	if best == nil {
		return "", 0
	}
	best.notice.Waiting-- // until the next notice; so no more slots ask than there are episodes
	best.served = now
	return best.notice.Run, best.notice.Epoch
}

// site is what this worker has of the run of an address. Errors: KindCanceled where the epoch is over, those of Policy.
func (w *Worker) site(a address, s Settings) (*site, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.runs[a.Run]
	if r == nil || r.notice.Epoch != a.Epoch {
		return nil, milepost.E("remote: episode", milepost.KindCanceled, "epoch %d of run %s is over", a.Epoch, a.Run)
	}
	if r.site == nil {
		s.Fresh = func(ctx context.Context) ([]policy.EndpointState, error) { return w.endpoints(ctx, a) }
		made, err := w.newSite(s)
		if err != nil {
			return nil, err
		}
		if err := made.policy.Follow(r.notice.Endpoints); err != nil {
			made.policy.Close()
			return nil, err
		}
		r.site = made
	}
	return r.site, nil
}

// hold begins a holding; letGo ends it. An older hand-out of the episode that is still here is dropped.
func (w *Worker) hold(a address) *holding {
	h := &holding{at: a}
	h.gone, h.drop = context.WithCancelCause(context.Background())
	h.play, h.stop = context.WithCancelCause(h.gone)
	w.mu.Lock()
	defer w.mu.Unlock()
	for old, other := range w.held {
		if old.Run == a.Run && old.Episode == a.Episode {
			other.drop(errGone)
		}
	}
	w.held[a] = h
	w.info.Busy++
	return h
}

func (w *Worker) letGo(h *holding) {
	h.drop(errGone)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, h.at)
	w.info.Busy--
}

func (w *Worker) count(ep *milepost.Episode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info.Served++
	switch {
	case ep.Status == milepost.EpisodeInfra:
		w.info.Failed++
		if len(ep.Steps) == 0 {
			w.info.Failing++
		}
	case ep.Status != milepost.EpisodeCancelled:
		w.info.Failing = 0
	}
}

func (w *Worker) warn(err error) { w.deps.Warn(err) }

package servers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// WorkerDeps is what the server's side works with.
type WorkerDeps struct {
	NC     *nats.Conn // stays the caller's
	Prefix string     // of subjects
	Offer  Offer
	Health func(context.Context) error // nil while the server can serve
	Say    func(string)                // who claims it, and who lets it go; must not block
}

// Worker announces one server until it is stopped. Run may be called once.
//
// Invariants:
//   - mu guards what stands below it.
//   - At most one run holds the server. A claim is taken where none holds it, where it is the holder's own (the same epoch or a
//     later one), or where the holder has been silent for Lease; never while the server stops, and never by a run that refused it.
//   - A server that stops says so until its run let it go, or DrainTimeout is over.
type Worker struct {
	cfg  Config
	deps WorkerDeps
	subj subjects

	mu      sync.Mutex
	info    messages.WorkerInfo
	ready   bool
	run     string
	epoch   uint64
	heard   time.Time
	refused map[string]string // why, by run
	free    chan struct{}     // closed when a stopping server is held by nobody
	failed  chan error        // capacity 1: the only run that it may serve refused it
}

// NewWorker checks the configuration; it contacts nobody. Errors: KindInvalid, KindUnavailable.
func NewWorker(cfg Config, deps WorkerDeps) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	info, err := messages.Self(cfg.Name, 1)
	if err != nil {
		return nil, err
	}
	cfg.Name, info.Wire = info.Name, wireVersion
	return &Worker{cfg: cfg, deps: deps, subj: subjects(deps.Prefix), refused: map[string]string{}, failed: make(chan error, 1), info: info}, nil
}

// Name is the server's name.
func (w *Worker) Name() string { return w.cfg.Name }

// Info is what the next heartbeat tells.
func (w *Worker) Info() messages.WorkerInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.info
}

// Anew says that the server was started again: what it was pushed is lost, and it has to join again.
func (w *Worker) Anew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info.Started = time.Now()
}

// Run announces the server until ctx ends, then lets its run drain it, and returns nil. Errors: KindUnavailable where it
// cannot listen, KindConflict where the only run that it may serve refuses it.
func (w *Worker) Run(ctx context.Context) error {
	sub, err := w.deps.NC.Subscribe(w.subj.claim(w.cfg.Name), w.onClaim)
	if err != nil {
		return milepost.Wrap("servers: run worker", milepost.KindUnavailable, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	tick := time.NewTicker(w.cfg.Heartbeat)
	defer tick.Stop()
	for stopped := ctx.Done(); ; {
		w.beat(ctx)
		select {
		case <-tick.C:
		case err := <-w.failed:
			return err
		case <-stopped:
			return w.drain(tick.C)
		}
	}
}

// drain tells that the server stops until its run has let it go.
func (w *Worker) drain(tick <-chan time.Time) error {
	w.mu.Lock()
	w.info.Drains, w.free = true, make(chan struct{})
	free := w.free
	if w.run == "" {
		close(free)
		w.free = nil
	}
	w.mu.Unlock()
	end := time.NewTimer(w.cfg.DrainTimeout)
	defer end.Stop()
	for {
		w.beat(context.Background())
		select {
		case <-free:
		case <-end.C:
		case <-tick:
			continue
		}
		w.beat(context.Background()) // so that nobody counts on it
		return milepost.Wrap("servers: stop worker", milepost.KindUnavailable, w.deps.NC.FlushTimeout(2*time.Second))
	}
}

// beat asks for the server's health and tells how it is.
func (w *Worker) beat(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, w.cfg.Heartbeat)
	err := w.deps.Health(bounded)
	cancel()
	w.mu.Lock()
	if err != nil && ctx.Err() == nil {
		w.info.Failing++
	} else {
		w.info.Failing = 0
	}
	w.ready = w.info.Failing == 0 || w.ready && w.info.Failing < 2          // one slow answer is none
	if w.run != "" && !w.info.Drains && time.Since(w.heard) > w.cfg.Lease { // a run that drains the server claims no more; DrainTimeout bounds it
		w.deps.Say(fmt.Sprintf("run %s has been silent for %s: free", w.run, w.cfg.Lease))
		w.release()
	}
	b := wireBeat{V: wireVersion, WorkerInfo: w.info, Offer: w.deps.Offer, Ready: w.ready, Only: w.cfg.Run, Run: w.run, Epoch: w.epoch, Drain: w.cfg.DrainTimeout}
	w.mu.Unlock()
	if m, err := messages.Encode(w.subj.beat(w.cfg.Name), b); err == nil {
		_ = w.deps.NC.PublishMsg(m) // the next one follows
	}
}

// release ends the hold; mu is held.
func (w *Worker) release() {
	w.run, w.epoch, w.info.Busy = "", 0, 0
	if w.free != nil {
		close(w.free)
		w.free = nil
	}
}

func (w *Worker) onClaim(m *nats.Msg) {
	var c wireClaim
	if err := messages.Decode(wireVersion, m.Header, m.Data, &c); err != nil {
		return // of another version: its sender sees ours in the heartbeats
	}
	reply, err := messages.Encode(m.Reply, w.claimed(c))
	if err == nil {
		_ = m.RespondMsg(reply) // the run asks again
	}
}

// claimed decides on a claim.
func (w *Worker) claimed(c wireClaim) wireReply {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := wireReply{V: wireVersion, By: w.run}
	own := w.run == c.Run && c.Epoch >= w.epoch
	switch {
	case c.Free:
		w.letGo(c, own)
	case w.cfg.Run != "" && c.Run != w.cfg.Run:
		r.Why = "it serves run " + w.cfg.Run + " alone"
	case w.refused[c.Run] != "":
		r.Why = w.refused[c.Run]
	case w.run != "" && !own:
		r.Why = fmt.Sprintf("run %s (epoch %d) has it", w.run, w.epoch)
	case w.run == "" && w.info.Drains:
		r.Why = "it stops"
	default:
		if w.run == "" || c.Epoch > w.epoch {
			w.deps.Say(fmt.Sprintf("serving run %s", c.Run))
		}
		w.run, w.epoch, w.heard, w.info.Busy = c.Run, c.Epoch, time.Now(), 1
		r.Taken = true
	}
	return r
}

// letGo ends a run's hold, for good where it refuses the server; mu is held.
func (w *Worker) letGo(c wireClaim, own bool) {
	if c.Reason != "" && w.refused[c.Run] == "" {
		w.refused[c.Run] = c.Reason
		w.deps.Say(fmt.Sprintf("run %s refuses this server: %s", c.Run, c.Reason))
		if w.cfg.Run == c.Run {
			w.failed <- milepost.E("servers: run worker", milepost.KindConflict, "run %s refuses this server: %s", c.Run, c.Reason)
		}
	}
	if own {
		w.release()
	}
}

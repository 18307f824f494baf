package remote

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// onNotice takes the word of a run.
func (w *Worker) onNotice(m *nats.Msg) {
	var n wireNotice
	version, err := messages.DecodeAny(m.Header, m.Data, &n)
	if err == nil && w.deps.Only != "" && n.Run != w.deps.Only {
		return
	}
	if version != 0 && version != w.version {
		w.refuse(n.Run, version)
		return
	}
	if err != nil {
		w.warn(err)
		return
	}
	w.mu.Lock()
	free := w.cfg.Slots - w.info.Busy
	err = w.learn(n, time.Now())
	w.mu.Unlock()
	if err != nil {
		w.warn(err)
	}
	for range min(n.Waiting, free) {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// refuse says once that a run is of another version.
func (w *Worker) refuse(run string, version int) {
	w.mu.Lock()
	said := w.foreign[run] == version
	w.foreign[run] = version
	w.mu.Unlock()
	if !said {
		w.warn(milepost.E("remote: worker", milepost.KindInvalid, "run %s speaks version %d of the messages, this worker version %d: it takes no episodes of it; "+
			"start a worker of the run's own release", run, version, w.version))
	}
}

// learn brings what is known of a run up to a notice, unless that is old. Under the lock.
func (w *Worker) learn(n wireNotice, now time.Time) error {
	r := w.runs[n.Run]
	switch {
	case r != nil && (n.Epoch < r.notice.Epoch || n.Epoch == r.notice.Epoch && n.Seq <= r.notice.Seq):
		return nil
	case r != nil && n.Epoch > r.notice.Epoch, n.Closed:
		w.forget(n.Run)
		r = nil
	}
	if n.Closed {
		return nil
	}
	if r == nil {
		r = &known{}
		w.runs[n.Run] = r
	}
	r.notice, r.at = n, now
	if r.site == nil {
		return nil
	}
	return r.site.policy.Follow(n.Endpoints)
}

// forget drops a run, and what is held of it. Under the lock.
func (w *Worker) forget(run string) {
	for a, h := range w.held {
		if a.Run == run {
			h.drop(errGone)
		}
	}
	if r := w.runs[run]; r != nil {
		r.close()
		delete(w.runs, run)
	}
}

// onCancel ends hand-outs that the run does not wait for any more.
func (w *Worker) onCancel(m *nats.Msg) {
	var c wireCancel
	if err := messages.Decode(w.version, m.Header, m.Data, &c); err != nil {
		return // another version's, or damaged: it is said again
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range c.Over {
		if h := w.held[a]; h != nil {
			h.stop(errCancelled)
		}
	}
}

// heartbeat tells that the worker lives and what it holds, at once and then every Heartbeat or third of a lease, and looks for runs that fell
// silent.
func (w *Worker) heartbeat(ctx context.Context) {
	subject := w.subj.worker(w.cfg.Name)
	for {
		beat, wait := wireWorker{V: w.version, Only: w.deps.Only}, w.cfg.Heartbeat
		w.mu.Lock()
		w.orphans(time.Now())
		beat.WorkerInfo = w.info
		for _, r := range w.runs {
			if lease := r.notice.Lease; lease > 0 {
				wait = min(wait, lease/3)
			}
		}
		for a := range w.held {
			beat.Held = append(beat.Held, a)
		}
		w.mu.Unlock()
		if m, err := messages.Encode(subject, beat); err == nil {
			_ = w.nc.PublishMsg(m) // the next one follows
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// orphans gives up runs that fell silent. Time without a connection does not count. Under the lock.
func (w *Worker) orphans(now time.Time) {
	online := w.nc.IsConnected()
	for run, r := range w.runs {
		switch {
		case online && w.offline:
			r.at = now
		case online && now.Sub(r.at) > w.cfg.Orphaned:
			w.forget(run)
		}
	}
	w.offline = !online
}

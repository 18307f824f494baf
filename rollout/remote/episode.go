package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
	"github.com/milepost-rl/milepost/rollout"
)

// Why an episode at a worker ends early.
var (
	errCancelled = errors.New("the run cancelled the episode")
	errGone      = errors.New("nobody waits for the episode")
	errDrained   = errors.New("the worker stops")
	errNoAnswer  = errors.New("the run does not answer")
	errCutOff    = errors.New("the connection was lost")
)

// holding is one hand-out at a worker.
type holding struct {
	at   address
	gone context.Context // ends when nobody waits for the hand-out: it is dropped
	drop context.CancelCauseFunc
	play context.Context // ends when the episode must: gone, cancelled or drained
	stop context.CancelCauseFunc
}

// serve runs one episode and sends back what came of it. hard ends when the worker must let go of it.
func (w *Worker) serve(hard context.Context, offer *wireOffer) {
	h := w.hold(offer.address)
	defer w.letGo(h)
	defer context.AfterFunc(hard, func() { h.stop(errDrained) })()

	p := newProbes(w, h)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		p.send()
	}()
	ep := w.episode(h, offer, p)
	p.finish()
	cause := context.Cause(h.play)
	if errors.Is(cause, errDrained) && ep.Status != milepost.EpisodeCancelled && ep.Status != milepost.EpisodeInfra {
		cause = nil // it ended just before
	}
	switch {
	case errors.Is(cause, errGone):
	case errors.Is(cause, errDrained):
		w.insist(h, w.subj.result(h.at.Run, h.at.Epoch), forEver, func(context.Context) (any, error) {
			return wireResult{V: w.version, address: h.at, Worker: w.cfg.Name, Returned: true}, nil
		})
	default:
		var files []milepost.TreeChange
		if ep.Status == milepost.EpisodeCompleted || ep.Status == milepost.EpisodeLimit {
			<-sent // its files come before it, and its verdict is asked for
			files = p.fresh(differences(ep))
		}
		w.deliver(h, ep, files)
		w.count(ep)
	}
	h.drop(errGone)
	<-sent
}

// episode runs the loop; whatever fails is an episode of status infra_error.
func (w *Worker) episode(h *holding, offer *wireOffer, p *probes) (ep *milepost.Episode) {
	req := rollout.Request{Episode: h.at.Episode, Task: &milepost.Task{}}
	fail := func(err error) *milepost.Episode {
		if h.play.Err() != nil {
			return unfinished(req, milepost.EpisodeCancelled, "")
		}
		return unfinished(req, milepost.EpisodeInfra, fmt.Sprintf("worker %s: %v", w.cfg.Name, err))
	}
	defer func() {
		if v := recover(); v != nil {
			ep = fail(milepost.E("remote: episode", milepost.KindInternal, "panic: %v\n%s", v, debug.Stack()))
		}
	}()
	var order wireOrder
	err := w.depot.unwrap(h.play, offer.Order, &order)
	if err != nil {
		return fail(err)
	}
	req = order.Request
	s, err := w.site(h.at, order.Settings)
	if err == nil {
		err = w.bases.Have(h.play, h.at.Run, req.Task)
	}
	if err != nil {
		return fail(err)
	}
	defer s.attach(h.at.Episode, p)()
	runner := s.eval
	if order.ProbeSteps {
		runner = s.train
	}
	if ep, err = runner.Run(h.play, req); err != nil { // a task that no worker could run comes back so often that the run ends by it
		return fail(err)
	}
	return ep
}

// deliver sends an episode, with the files of it that the run does not have yet, until the run took it or nobody waits for it.
// One that cannot be sent, as it holds numbers that JSON cannot or the store takes nothing, becomes a failure that says so.
func (w *Worker) deliver(h *holding, ep *milepost.Episode, files []milepost.TreeChange) {
	var why error
	taken := w.insist(h, w.subj.result(h.at.Run, h.at.Epoch), resultTries, func(ctx context.Context) (any, error) {
		r := wireResult{V: w.version, address: h.at, Worker: w.cfg.Name}
		if r.Body, why = w.depot.wrap(ctx, ep); why == nil {
			r.Blobs, why = w.depot.pack(ctx, w.deps.Blobs, files)
		}
		return r, why
	})
	if taken || h.gone.Err() != nil {
		return
	}
	lost := &milepost.Episode{ID: ep.ID, Status: milepost.EpisodeInfra, Stop: milepost.StopError, Started: ep.Started, FinalTree: ep.FinalTree,
		Error: fmt.Sprintf("worker %s could not send the episode: %v", w.cfg.Name, cmp.Or(why, errNoAnswer))}
	w.insist(h, w.subj.result(h.at.Run, h.at.Epoch), forEver, func(ctx context.Context) (any, error) {
		r := wireResult{V: w.version, address: h.at, Worker: w.cfg.Name}
		var err error
		r.Body, err = w.depot.wrap(ctx, lost)
		return r, err
	})
}

// How long a worker waits for the word of a run, between tries, and how many tries it makes while it is connected.
const (
	replyBound  = 30 * time.Second // beyond the time that the objects of a message took, which the run has to fetch as well
	tryFirst    = 50 * time.Millisecond
	tryMost     = 2 * time.Second
	stepTries   = 8
	resultTries = 60
	forEver     = math.MaxInt
)

// insist sends what body makes to the run until the run took it, which it reports. It gives up where nobody waits for the
// holding, after so many tries, and at once where body cannot be made at all (KindInternal).
func (w *Worker) insist(h *holding, subject string, tries int, body func(context.Context) (any, error)) bool {
	for wait := tryFirst; h.gone.Err() == nil && tries > 0; wait = min(2*wait, tryMost) {
		reply, err := w.say(h.gone, subject, body)
		switch {
		case err == nil && reply.Unwanted:
			h.drop(errGone)
			return false
		case err == nil && reply.Error == "":
			return true
		case err == nil:
			err = errors.New("the run could not take it: " + reply.Error)
		case h.gone.Err() != nil || milepost.KindOf(err) == milepost.KindInternal && isOurs(err):
			return false
		}
		if wait == tryFirst {
			w.warn(milepost.E("remote: send", milepost.KindUnavailable, "episode %s, trying again: %w", h.at.Episode, err))
		}
		if w.nc.IsConnected() {
			tries--
		}
		select {
		case <-time.After(wait):
		case <-h.gone.Done():
		}
	}
	return false
}

// isOurs tells an error with a kind of its own from others, which are taken for internal ones, too.
func isOurs(err error) bool {
	var e *milepost.Error
	return errors.As(err, &e)
}

// say makes one try. The answer may take as long again as what was stored for it: a slow network is slow in both directions.
func (w *Worker) say(ctx context.Context, subject string, body func(context.Context) (any, error)) (*wireReply, error) {
	began := time.Now()
	v, err := body(ctx)
	if err != nil {
		return nil, err
	}
	m, err := messages.Encode(subject, v)
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, replyBound+time.Since(began))
	defer cancel()
	answer, err := w.request(asking, m)
	if err != nil {
		return nil, err
	}
	var reply wireReply
	return &reply, messages.Decode(w.version, answer.Header, answer.Data, &reply)
}

// request asks the run. It fails as soon as the connection is lost, as the answer will not come then.
func (w *Worker) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lost := w.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer w.nc.RemoveStatusListener(lost)
	go func() {
		select {
		case <-lost:
			cancel(errCutOff)
		case <-ctx.Done():
		}
	}()
	answer, err := w.nc.RequestMsgWithContext(ctx, m)
	if err != nil && errors.Is(context.Cause(ctx), errCutOff) {
		err = errCutOff
	}
	return answer, err
}

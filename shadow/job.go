package shadow

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// aloneAfter is how often a request may be handed out before it runs alone on its worker.
const aloneAfter = 2

// serve runs one request. ctx ends when the worker must let go of it; open lets other slots fetch requests (take).
func (w *Worker) serve(ctx context.Context, m jetstream.Msg, open func()) {
	defer open()
	w.busy(1)
	defer w.busy(-1)
	var req wireRequest
	meta, err := m.Metadata()
	if err == nil {
		err = messages.Decode(w.version, m.Headers(), m.Data(), &req)
	}
	if err != nil {
		w.bury(ctx, m, err)
		return
	}
	req.Delivery = int(meta.NumDelivered)
	if req.Delivery > w.cfg.MaxDeliveries {
		w.poison(ctx, m, &req)
		return
	}
	stop := w.keepAlive(ctx, m)
	defer stop()
	n := w.names(req.Run)
	if note, err := messages.Encode(n.progress(), wireStarted{req.address, w.cfg.Name}); err == nil {
		_ = w.nc.PublishMsg(note) // a lost notice costs precision of times only
	}
	room := int64(1)
	if req.Delivery > aloneAfter {
		room = int64(w.cfg.Slots)
		w.mu.Lock()
		w.careful = time.Now().Add(carefulFor)
		w.mu.Unlock()
	} else {
		open()
	}
	if err := w.room.Acquire(ctx, room); err != nil {
		_ = m.Nak() // as below
		return
	}
	defer w.room.Release(room)
	res := w.run(ctx, &req)
	if ctx.Err() != nil && res.Status == milepost.ProbeInfra {
		_ = m.Nak() // drained: another worker takes it now rather than after AckWait
		return
	}
	w.deliver(ctx, m, n, res)
}

// deliver publishes the result, however long the server is away, and then acknowledges the request.
func (w *Worker) deliver(ctx context.Context, m jetstream.Msg, n names, res *wireResult) {
	out, err := w.pack(n, res)
	if err != nil {
		w.onErr(err)
		return
	}
	id := fmt.Sprintf("%s/%d/%s/%d/%d", n.run, res.Epoch, res.Key, res.Attempt, res.Delivery)
	var refusals refusals
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		tctx, cancel := context.WithTimeout(ctx, publishBound)
		_, err = w.js.PublishMsg(tctx, out, jetstream.WithMsgID(id))
		cancel()
		if err == nil {
			break
		}
		w.onErr(milepost.E("shadow: publish result", milepost.KindUnavailable, "probe %s: %w", res.ID, err))
		if !w.nc.IsConnected() {
			refusals.since = time.Time{}
		} else if advice := refusals.refused(err, time.Now()); advice != nil {
			w.onErr(advice)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			_ = m.Nak()
			return
		}
	}
	w.count(res)
	tctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := m.DoubleAck(tctx); err != nil { // it is run again then, and the prober drops the duplicate
		w.onErr(milepost.E("shadow: acknowledge", milepost.KindUnavailable, "probe %s: %w", res.ID, err))
	}
}

// What a result may say beside its report: tests print what they like.
const (
	maxReason = 2 << 10 // bytes
	maxExtra  = 50      // ids
	maxExtraN = 256     // bytes of one
)

// pack makes the message of a result. One that is too large for the server becomes a failure that says so: sent as it is, it
// would be refused for ever.
func (w *Worker) pack(n names, res *wireResult) (*nats.Msg, error) {
	res.Reason = cut(res.Reason, maxReason)
	res.Extra = bounded(res.Extra, maxExtra)
	for i, id := range res.Extra {
		res.Extra[i] = cut(id, maxExtraN)
	}
	out, err := messages.Encode(n.resultSubject(res.Epoch), res)
	limit := int(w.nc.MaxPayload()) - messages.Headroom
	if err != nil || len(out.Data) <= limit || limit <= 0 {
		return out, err
	}
	*res = wireResult{address: res.address, Worker: res.Worker, Status: milepost.ProbeInfra, Ran: res.Ran,
		Reason: fmt.Sprintf("the result takes %d bytes, the server takes %d: raise max_payload", len(out.Data), limit)}
	return messages.Encode(n.resultSubject(res.Epoch), res)
}

// run rebuilds, tests and says what happened. It never fails: failures are results of status infra.
func (w *Worker) run(ctx context.Context, req *wireRequest) (res *wireResult) {
	res = &wireResult{address: req.address, Worker: w.cfg.Name}
	began := time.Now()
	fail := func(err error) {
		kind := milepost.KindOf(err)
		res.Status, res.Report, res.Reason = milepost.ProbeInfra, nil, err.Error()
		res.Retry = kind.Infra() || kind == milepost.KindCanceled || kind == milepost.KindNotFound
		res.own = kind == milepost.KindUnavailable || kind == milepost.KindInternal
		res.Ran = time.Since(began)
	}
	defer func() {
		if v := recover(); v != nil {
			w.onErr(milepost.E("shadow: probe", milepost.KindInternal, "%s: panic: %v\n%s", req.ID, v, debug.Stack()))
			fail(milepost.E("shadow: probe", milepost.KindInternal, "panic: %v", v))
		}
	}()
	whole := ctx
	ctx, cancel := context.WithTimeout(whole, w.cfg.MaxRun)
	defer cancel()
	task, err := w.prepare(ctx, req)
	if err != nil {
		fail(err)
		return res
	}
	out, err := w.runner.Run(ctx, task, req.Tree, req.Delta)
	if err != nil && ctx.Err() != nil && whole.Err() == nil {
		err = milepost.E("shadow: probe", milepost.KindUnavailable, "not done within max_run, %s: %w", w.cfg.MaxRun, err)
	}
	if err != nil {
		fail(err)
		return res
	}
	res.Status, res.Tree, res.Report, res.Extra, res.Reason = out.Status, out.Tree, out.Report, out.Extra, out.Reason
	res.Ran = time.Since(began)
	if out.Status == milepost.ProbeInfra {
		res.Retry = true
	}
	if out.Status == milepost.ProbeUnparsed && len(out.Log) > 0 {
		res.Reason += "; end of the output: " + string(tail(out.Log, 500))
	}
	return res
}

// prepare brings task, blobs and base of a request onto this machine. Errors: KindNotFound for an object that expired,
// KindCorrupt, KindUnavailable, KindInvalid.
func (w *Worker) prepare(ctx context.Context, req *wireRequest) (*milepost.Task, error) {
	task, err := w.task(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := messages.UnpackBlobs(ctx, w.blobs, req.Delta, req.Blobs, w.objects()); err != nil {
		return nil, err
	}
	return task, w.bases.Have(ctx, req.Run, task)
}

func (w *Worker) objects() jetstream.ObjectStore {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.store
}

func (w *Worker) task(ctx context.Context, req *wireRequest) (*milepost.Task, error) {
	w.mu.Lock()
	t := w.tasks[req.Task]
	w.mu.Unlock()
	if t != nil {
		return t, nil
	}
	body := []byte(req.TaskBody)
	if len(body) == 0 {
		var err error
		if body, err = messages.Download(ctx, w.objects(), messages.TaskObject(req.Task)); err != nil {
			return nil, err
		}
	}
	t, err := parseTask(req.Task, body)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tasks) >= 4096 { // a worker outlives many runs
		clear(w.tasks)
	}
	w.tasks[req.Task] = t
	return t, nil
}

// keepAlive tells the server, three times per AckWait, that the message is being worked on. stop waits for its end.
func (w *Worker) keepAlive(ctx context.Context, m jetstream.Msg) (stop func()) {
	w.mu.Lock()
	lease := w.lease
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = m.InProgress() // fails while disconnected; then the lease runs out and the fence decides
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// bury sets a message aside that cannot be read: into the dead-letter stream, never to be delivered again. The prober
// misses it and publishes the probe once more.
func (w *Worker) bury(ctx context.Context, m jetstream.Msg, why error) {
	w.onErr(why)
	w.deadLetter(ctx, m, why.Error())
	_ = m.TermWithReason("cannot be read")
}

// poison ends a request that was handed out too often: it kills its workers or outlasts its lease each time.
func (w *Worker) poison(ctx context.Context, m jetstream.Msg, req *wireRequest) {
	why := fmt.Sprintf("handed out %d times without a result", req.Delivery-1)
	w.onErr(milepost.E("shadow: probe", milepost.KindUnavailable, "%s: %s", req.ID, why))
	w.deadLetter(ctx, m, why)
	w.deliver(ctx, m, w.names(req.Run), &wireResult{address: req.address, Worker: w.cfg.Name, Status: milepost.ProbeInfra, Reason: why})
}

func (w *Worker) count(res *wireResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info.Served++
	if res.Status == milepost.ProbeInfra {
		w.info.Failed++
	}
	switch {
	case res.own:
		w.info.Failing++
	case res.Status != milepost.ProbeInfra:
		w.info.Failing = 0
	}
}

func (w *Worker) busy(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info.Busy += n
}

// cut shortens s to at most n bytes, its end left out, at the border of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

func bounded(list []string, n int) []string { return list[:min(len(list), n)] }

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

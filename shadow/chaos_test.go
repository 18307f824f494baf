package shadow

import (
	"bytes"
	"context"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

func TestKilledWorkerProcessLosesNoProbe(t *testing.T) {
	t.Parallel()
	r := newRig(t, true)
	p := r.newProber()
	must(t, p.Publish(t.Context(), r.step("e1", 0, 1)))
	doomed := startWorkerProcess(t, r.srv.URL())
	must(t, doomed.Process.Kill())
	w, _ := r.startWorker(&fakeRunner{})
	got := p.Await(t.Context(), []string{"e1/0"}, 20*time.Second)["e1/0"]
	if !got.Trusted || got.Worker != w.Name() || p.Stats().Redelivered != 1 {
		t.Errorf("probe %+v stats %+v", got, p.Stats())
	}
}

func TestLongProbeKeepsItsLease(t *testing.T) {
	t.Parallel()
	r := newRig(t, false)
	r.worker.Streams.AckWait = 300 * time.Millisecond
	r.prober.Streams = r.worker.Streams
	f := &fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		time.Sleep(1200 * time.Millisecond)
		return passed(task, tree), nil
	}}
	p := r.newProber()
	r.startWorker(f)
	if got := one(t, p, r.step("e1", 0, 1)); !got.Trusted || len(f.trees()) != 1 {
		t.Errorf("probe %+v runs %v", got, f.trees())
	}
}

// A worker that was thought dead, and whose probe another has taken, publishes its result: it must not count.
func TestResultOfReplacedDeliveryIsFenced(t *testing.T) {
	t.Parallel()
	r := newRig(t, false)
	p := r.newProber()
	must(t, p.Publish(t.Context(), r.step("e1", 0, 1)))
	js := jetStream(t, r.connect())
	q, err := js.Consumer(t.Context(), p.names.probes(), p.names.queue(milepost.ProbeStep))
	must(t, err)
	m, err := q.Next(jetstream.FetchMaxWait(5 * time.Second)) // delivery 1, held by a worker that hangs
	must(t, err)
	var req wireRequest
	must(t, decode(m.Headers(), m.Data(), &req))
	release := make(chan struct{})
	r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		<-release
		return passed(task, tree), nil
	}})
	eventually(t, "delivery 2 is running", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		f := p.book.flights[req.Key]
		return f != nil && f.delivery == 2
	})
	req.Delivery = 1
	late := &wireResult{address: req.address, Worker: "hung", Status: milepost.ProbeCompleted, Tree: req.Tree,
		Report: milepost.TestReport{milepost.Failed, milepost.Failed, milepost.Failed}}
	send(t, r, p, late)
	eventually(t, "it is fenced", func() bool { return p.Stats().Fenced == 1 })
	close(release)
	got := p.Await(t.Context(), []string{"e1/0"}, 10*time.Second)["e1/0"]
	if !got.Trusted || !got.Report.AllPassed() {
		t.Errorf("probe %+v", got)
	}
	send(t, r, p, late)
	eventually(t, "again, now as a duplicate", func() bool { return p.Stats().Duplicates == 1 })
}

func send(t *testing.T, r *rig, p *Prober, res *wireResult) {
	t.Helper()
	m, err := messages.Encode(p.names.resultSubject(res.Epoch), res)
	must(t, err)
	_, err = jetStream(t, r.connect()).PublishMsg(t.Context(), m)
	must(t, err)
}

func TestOldEpochIsIgnored(t *testing.T) {
	r := newRig(t, false)
	old := r.newProber()
	must(t, old.Publish(t.Context(), r.step("e1", 0, 1)))
	eventually(t, "on the stream", func() bool { return old.Stats().Sent == 1 })
	r.prober.Epoch = 2
	p := r.newProber()
	eventually(t, "the old epoch has stopped", func() bool { return milepost.KindOf(old.Err()) == milepost.KindConflict })
	if err := old.Publish(t.Context(), r.step("e1", 1, 2)); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("publishing in the old epoch: %v", err)
	}
	f := &fakeRunner{}
	r.startWorker(f)
	must(t, p.Publish(t.Context(), r.step("e1", 0, 3)))
	send(t, r, p, &wireResult{address: address{V: wireVersion, Run: "run-1", Epoch: 1, Key: "k", Attempt: 1, Delivery: 1}, Status: milepost.ProbeCompleted})
	if got := p.Await(t.Context(), []string{"e1/0"}, 10*time.Second)["e1/0"]; !got.Trusted {
		t.Errorf("probe %+v", got)
	}
	eventually(t, "the old result is counted", func() bool { return p.Stats().StaleEpoch == 1 })
	if got := f.trees(); len(got) != 1 || got[0] != treeID(3) {
		t.Errorf("requests of the old epoch were served: %v", got)
	}
	r.prober.Epoch = 1
	if _, err := NewProber(t.Context(), r.connect(), r.prober, r.blobs); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("starting an older epoch: %v", err)
	}
}

func TestCorruptMessages(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	nc := r.connect()
	js := jetStream(t, nc)

	// A request whose bytes were damaged on the way: the worker sets it aside, the reconciler publishes the probe again.
	must(t, p.Publish(t.Context(), r.step("e1", 0, 1)))
	eventually(t, "on the stream", func() bool { return p.Stats().Sent == 1 })
	damage(t, js, p)
	_, stop := r.startWorker(&fakeRunner{})
	if got := p.Await(t.Context(), []string{"e1/0"}, 20*time.Second)["e1/0"]; !got.Trusted || got.Attempt != 2 {
		t.Errorf("probe %+v", got)
	}
	dead, err := js.Stream(t.Context(), p.names.deadLetters())
	must(t, err)
	info, err := dead.Info(t.Context())
	must(t, err)
	if info.State.Msgs != 1 || p.Stats().LostMessages != 1 {
		t.Errorf("%d dead letters, stats %+v", info.State.Msgs, p.Stats())
	}
	stop()

	// A result that is valid JSON but not what was signed, and one that is no JSON, and notices that are neither.
	m, err := messages.Encode(p.names.resultSubject(1), &wireResult{address: address{V: wireVersion, Run: "run-1", Epoch: 1}})
	must(t, err)
	m.Data = append([]byte(" "), m.Data...)
	_, err = js.PublishMsg(t.Context(), m)
	must(t, err)
	_, err = js.Publish(t.Context(), p.names.resultSubject(1), []byte("\x00\x01"))
	must(t, err)
	must(t, nc.Publish(p.names.progress(), []byte("{}")))
	must(t, nc.Publish(p.names.prefix+".worker.x", nil))
	eventually(t, "four counted", func() bool { return p.Stats().Corrupt == 4 })
}

// damage replaces the one request on the stream by a copy with a changed byte, as a broken disk or network would.
func damage(t *testing.T, js jetstream.JetStream, p *Prober) {
	t.Helper()
	s, err := js.Stream(t.Context(), p.names.probes())
	must(t, err)
	info, err := s.Info(t.Context())
	must(t, err)
	raw, err := s.GetMsg(t.Context(), info.State.FirstSeq)
	must(t, err)
	bad := &nats.Msg{Subject: raw.Subject, Header: nats.Header{messages.SumHeader: raw.Header[messages.SumHeader]}, Data: append([]byte(nil), raw.Data...)}
	bad.Data[len(bad.Data)/2] ^= 1
	must(t, s.DeleteMsg(t.Context(), raw.Sequence))
	_, err = js.PublishMsg(t.Context(), bad)
	must(t, err)
}

func TestLostResultIsProbedAgain(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	must(t, p.Publish(t.Context(), r.step("e1", 0, 1)))
	q, err := jetStream(t, r.connect()).Consumer(t.Context(), p.names.probes(), p.names.queue(milepost.ProbeStep))
	must(t, err)
	m, err := q.Next(jetstream.FetchMaxWait(5 * time.Second))
	must(t, err)
	must(t, m.DoubleAck(t.Context())) // acknowledged, and no result was ever published
	r.startWorker(&fakeRunner{})
	if got := p.Await(t.Context(), []string{"e1/0"}, 20*time.Second)["e1/0"]; !got.Trusted || got.Attempt != 2 || p.Stats().LostMessages != 1 {
		t.Errorf("probe %+v stats %+v", got, p.Stats())
	}
}

// restart stops the server and starts it again on the same port; keep says whether its store survives.
func (r *rig) restart(keep bool) {
	r.t.Helper()
	u, err := url.Parse(r.srv.URL())
	must(r.t, err)
	r.srv.Close()
	r.cfg.Port, err = strconv.Atoi(u.Port())
	must(r.t, err)
	if !keep {
		r.cfg.Dir = r.t.TempDir()
	}
	time.Sleep(300 * time.Millisecond)
	r.srv, err = StartServer(r.cfg)
	must(r.t, err)
}

func TestServerRestart(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]bool{"store kept": true, "store lost": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, true)
			var running atomic.Int32
			release := make(chan struct{})
			r.prober.MaxAttempts = 5
			p := r.newProber()
			r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
				running.Add(1)
				<-release
				return passed(task, tree), nil
			}})
			var ids []string
			for i := range 6 {
				req := r.step("e1", i, i+1)
				must(t, p.Publish(t.Context(), req))
				ids = append(ids, req.ID)
			}
			eventually(t, "two running, four on the stream", func() bool { return running.Load() == 2 && p.Stats().Sent == 6 })
			r.restart(keep)
			req := r.step("e1", 6, 7)
			must(t, p.Publish(t.Context(), req)) // while the connection may still be down
			close(release)
			for id, got := range p.Await(t.Context(), append(ids, req.ID), 30*time.Second) {
				if !got.Trusted {
					t.Errorf("%s: %+v", id, got)
				}
			}
			if s := p.Stats(); keep && s.LostMessages != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestPoisonRequestIsSetAside(t *testing.T) {
	r := newRig(t, false)
	r.worker.MaxDeliveries = 2
	p := r.newProber()
	must(t, p.Publish(t.Context(), r.step("e1", 0, 1)))
	js := jetStream(t, r.connect())
	q, err := js.Consumer(t.Context(), p.names.probes(), p.names.queue(milepost.ProbeStep))
	must(t, err)
	for range 2 { // two workers took it and were never heard of again
		m, err := q.Next(jetstream.FetchMaxWait(5 * time.Second))
		must(t, err)
		must(t, m.Nak())
	}
	f := &fakeRunner{}
	r.startWorker(f)
	got := p.Await(t.Context(), []string{"e1/0"}, 10*time.Second)["e1/0"]
	if got.Status != milepost.ProbeInfra || got.Trusted || len(f.trees()) != 0 {
		t.Errorf("probe %+v runs %v", got, f.trees())
	}
	dead, err := js.Stream(t.Context(), p.names.deadLetters())
	must(t, err)
	raw, err := dead.GetLastMsgForSubject(t.Context(), p.names.dead(milepost.ProbeStep))
	must(t, err)
	var req wireRequest
	if err := decode(raw.Header, raw.Data, &req); err != nil || req.ID != "e1/0" || raw.Header.Get(reasonHeader) == "" {
		t.Errorf("dead letter %v %+v", err, raw.Header)
	}
}

func TestDrainFinishesOrHandsBack(t *testing.T) {
	r := newRig(t, false)
	r.worker.Slots = 1
	r.worker.Streams.AckWait = 30 * time.Second // handing back must not wait for this
	r.prober.Streams = r.worker.Streams
	p := r.newProber()
	began := make(chan struct{}, 1)
	r.worker.DrainTimeout = 5 * time.Second
	_, stop := r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		began <- struct{}{}
		time.Sleep(100 * time.Millisecond)
		return passed(task, tree), nil
	}})
	must(t, p.Publish(t.Context(), r.step("e1", 0, 1)))
	<-began
	stop()
	if got := p.Await(t.Context(), []string{"e1/0"}, 5*time.Second)["e1/0"]; !got.Trusted {
		t.Errorf("a draining worker did not finish: %+v", got)
	}

	r.worker.DrainTimeout = 50 * time.Millisecond
	_, stop = r.startWorker(&fakeRunner{fn: func(ctx context.Context, _ *milepost.Task, _ string, _ int) (Outcome, error) {
		began <- struct{}{}
		<-ctx.Done()
		return Outcome{}, ctx.Err()
	}})
	must(t, p.Publish(t.Context(), r.step("e1", 1, 2)))
	<-began
	stop()
	w, _ := r.startWorker(&fakeRunner{})
	if got := p.Await(t.Context(), []string{"e1/1"}, 10*time.Second)["e1/1"]; !got.Trusted || got.Worker != w.Name() || got.Attempt != 1 {
		t.Errorf("a stopped worker did not hand back: %+v", got)
	}
}

func TestStatesOfAServer(t *testing.T) {
	r := newRig(t, true)
	cfg := r.cfg
	u, err := url.Parse(r.srv.URL())
	must(t, err)
	cfg.Dir = t.TempDir()
	cfg.Port, err = strconv.Atoi(u.Port())
	must(t, err)
	if _, err := StartServer(cfg); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("port in use: %v", err)
	} else {
		t.Log(err)
	}
	cfg.Port, cfg.Token = 0, "sesame"
	s, err := StartServer(cfg)
	must(t, err)
	defer s.Close()
	c := DefaultConnect()
	c.URL = s.URL()
	if _, err := Connect(c); milepost.KindOf(err) != milepost.KindDenied {
		t.Errorf("no token: %v", err)
	}
	nc, err := s.Connect("in process")
	must(t, err)
	nc.Close()
	c.URL = "nats://sesame@" + u.Hostname() + ":" + portOf(t, s.URL())
	nc, err = Connect(c)
	must(t, err)
	nc.Close()
	c.URL, c.Timeout = "nats://secret@127.0.0.1:1", time.Second
	if _, err := Connect(c); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("nobody there: %v", err)
	} else if s := err.Error(); len(s) == 0 || strings.Contains(s, "secret") {
		t.Errorf("the message gives the token away: %s", s)
	}
}

// A store that is full stops nobody but the publishers, is reported, and empties as workers take what is in it.
func TestFullStore(t *testing.T) {
	t.Parallel()
	r := newRig(t, false)
	r.srv.Close()
	r.cfg.MaxStore = 16 << 20
	var err error
	r.srv, err = StartServer(r.cfg)
	must(t, err)
	r.prober.Streams.MaxRequests, r.prober.Streams.MaxObjects = 6<<20, 6<<20
	r.worker.Streams = r.prober.Streams
	r.prober.InlineLimit = 512 << 10
	var reported atomic.Int32
	p := r.newProber(WithErrors(func(err error) {
		if milepost.KindOf(err) != milepost.KindUnavailable {
			t.Errorf("reported %v", err)
		}
		reported.Add(1)
	}))
	var ids []string
	for i := range 60 {
		data := bytes.Repeat([]byte{byte(i)}, 300<<10)
		id, err := r.blobs.Put(data)
		must(t, err)
		req := r.step("e1", i, i+1)
		req.Delta = []milepost.TreeChange{{Path: "f", Mode: 0o100644, Blob: id}}
		must(t, p.Publish(t.Context(), req))
		ids = append(ids, req.ID)
	}
	eventually(t, "the store is full", func() bool { return p.Stats().PublishErrors > 0 })
	if s := p.Stats(); reported.Load() == 0 || s.Sent >= 60 {
		t.Errorf("stats %+v", s)
	}
	r.startWorker(&fakeRunner{})
	for id, got := range p.Await(t.Context(), ids, 60*time.Second) {
		if !got.Trusted {
			t.Errorf("%s: %+v", id, got)
		}
	}
}

func TestStoreTooSmallForItsStreams(t *testing.T) {
	r := newRig(t, false)
	r.srv.Close()
	r.cfg.Dir, r.cfg.MaxStore = t.TempDir(), 16<<20
	var err error
	r.srv, err = StartServer(r.cfg)
	must(t, err)
	_, err = NewProber(t.Context(), r.connect(), r.prober, r.blobs)
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "max_store") {
		t.Errorf("error %v", err)
	}
}

// The orchestrator's settings hold for streams that a worker made.
func TestOrchestratorsSettingsHold(t *testing.T) {
	r := newRig(t, false)
	w, _ := r.startWorker(&fakeRunner{})
	r.prober.Streams.AckWait, r.prober.Streams.MaxAge, r.prober.Streams.MaxRequests = 2*time.Second, time.Hour, 5<<20
	p := r.newProber()
	if got := one(t, p, r.step("e1", 0, 1)); !got.Trusted {
		t.Errorf("probe %+v", got)
	}
	js := jetStream(t, r.connect())
	s, err := js.Stream(t.Context(), p.names.probes())
	must(t, err)
	c, err := s.Consumer(t.Context(), p.names.queue(milepost.ProbeStep))
	must(t, err)
	o, err := js.Stream(t.Context(), "OBJ_"+p.names.bucket())
	must(t, err)
	if h := s.CachedInfo().Config; h.MaxAge != time.Hour || h.MaxBytes != 5<<20 || c.CachedInfo().Config.AckWait != 2*time.Second || o.CachedInfo().Config.MaxAge != time.Hour {
		t.Errorf("stream %+v consumer %+v", h, c.CachedInfo().Config)
	}
	if other, err := NewWorker(t.Context(), r.connect(), r.worker, &fakeRunner{}, r.blobs); err != nil || other.lease != 2*time.Second || w.lease != time.Second {
		t.Errorf("lease of a later worker %v, of the earlier %v, %v", other.lease, w.lease, err)
	}
}

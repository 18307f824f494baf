package remote

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/shadow"
)

// TestKilledWorker: 64 episodes over two worker processes, one of which is killed in the middle: each episode ends exactly
// once, whole, with its probes.
func TestKilledWorker(t *testing.T) {
	r := newRig(t)
	r.run.Lease = time.Second
	r.testers()
	o := r.orchestrate(1)
	s := script{Turns: 2, Tokens: 3, Delay: 150 * time.Millisecond}
	victim := r.process("victim", s)
	r.process("survivor", s)
	eventually(t, "both are there", 20*time.Second, func() bool { return o.Stats().Workers == 2 })
	got := r.start(t.Context(), o, 0, 64)
	seen := map[string]int{}
	var all []*milepost.Episode
	for n := range 64 {
		a := receive(t, got, 30*time.Second)
		must(t, a.err)
		seen[a.ep.ID]++
		all = append(all, a.ep)
		if a.ep.Status != milepost.EpisodeCompleted || len(a.ep.Steps) != 3 || a.ep.Samples[0].Tokens[0] != int32(r.seed(a.ep.ID))*1000 {
			t.Errorf("%+v", a.ep)
		}
		if n == 15 {
			eventually(t, "the victim has some", 10*time.Second, func() bool { return o.held("victim") > 1 })
			must(t, victim.Process.Signal(syscall.SIGKILL))
		}
	}
	if len(seen) != 64 {
		t.Errorf("%d episodes: %v", len(seen), seen)
	}
	must(t, o.prober.Fill(t.Context(), all, 30*time.Second))
	for _, ep := range all {
		if v := ep.Outcome.Verdict; v == nil || !v.Trusted || v.Tree != ep.FinalTree || !ep.Steps[1].Probe.Trusted || ep.Steps[1].Probe.Tree != ep.Steps[1].Tree {
			t.Errorf("%s: verdict %+v", ep.ID, v)
		}
	}
	st := o.Stats()
	if st.Lost == 0 || st.HandedOut != 64+st.Lost || st.Ended != 64 || st.Held+st.Waiting != 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%+v", st)
}

// held is how many episodes a worker holds.
func (o *orchestrator) held(worker string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, order := range o.ledger.orders {
		if order.worker == worker {
			n++
		}
	}
	return n
}

// seed is the number of an episode of the rig.
func (r *rig) seed(id string) (n int) {
	if _, err := fmt.Sscanf(id, "e%d", &n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// TestSilence: an episode whose workers fall silent too often is an infrastructure failure, which the run retries.
func TestSilence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run.Lease, r.run.MaxLosses = 200*time.Millisecond, 2
	o := r.orchestrate(1)
	got := r.start(t.Context(), o, 0, 1)
	for attempt := 1; attempt <= 2; attempt++ {
		var offer wireOffer
		eventually(t, "it is handed out", 5*time.Second, func() bool { offer = r.ask("mute"); return offer.Episode != "" })
		if offer.Attempt != attempt {
			t.Errorf("attempt %d, want %d", offer.Attempt, attempt)
		}
	}
	if a := receive(t, got, 20*time.Second); a.err != nil || a.ep.Status != milepost.EpisodeInfra || a.ep.Task != "task" || a.ep.Error == "" {
		t.Errorf("%+v", a)
	}
}

// ask plays a worker's free slot.
func (r *rig) ask(name string) (offer wireOffer) {
	r.t.Helper()
	r.say(subjects("milepost").ask("run", 1), wireAsk{V: wireVersion, Worker: name}, &offer)
	return offer
}

func (r *rig) say(subject string, v, reply any) {
	r.t.Helper()
	nc := r.connect()
	defer nc.Close()
	m, err := messages.Encode(subject, v)
	must(r.t, err)
	answer, err := nc.RequestMsg(m, 5*time.Second)
	must(r.t, err)
	must(r.t, messages.Decode(wireVersion, answer.Header, answer.Data, reply))
}

// TestLateAndDoubled: what an attempt that is over says counts for nothing, and nothing counts twice.
func TestLateAndDoubled(t *testing.T) {
	r := newRig(t)
	r.run.Lease = 300 * time.Millisecond
	o := r.orchestrate(1)
	s := subjects("milepost")
	got := r.start(t.Context(), o, 0, 1)
	var first, second wireOffer
	eventually(t, "it is handed out", 5*time.Second, func() bool { first = r.ask("slow"); return first.Episode != "" })
	eventually(t, "and again", 5*time.Second, func() bool { second = r.ask("quick"); return second.Episode != "" })
	result := func(a address, worker string) (reply wireReply) {
		body, err := marshal(&milepost.Episode{ID: "e0", Status: milepost.EpisodeLimit, Endpoint: worker})
		must(t, err)
		r.say(s.result("run", 1), wireResult{V: wireVersion, address: a, Worker: worker, Body: parcel{Body: body}}, &reply)
		return reply
	}
	var reply wireReply
	r.say(s.step("run", 1), wireStep{V: wireVersion, address: first.address, Request: parcel{Body: []byte(`{"id":"e0/0","kind":"step","tree":"x"}`)}}, &reply)
	if !reply.Unwanted || o.prober.Stats().Published != 0 {
		t.Errorf("a step of attempt 1: %+v", reply)
	}
	if reply := result(first.address, "slow"); !reply.Unwanted {
		t.Errorf("the result of attempt 1: %+v", reply)
	}
	if reply := result(second.address, "quick"); reply.Unwanted || reply.Error != "" {
		t.Errorf("the result of attempt 2: %+v", reply)
	}
	if reply := result(second.address, "quick"); !reply.Unwanted {
		t.Errorf("the same again: %+v", reply)
	}
	if a := receive(t, got, 20*time.Second); a.err != nil || a.ep.Endpoint != "quick" || a.ep.Group != "g0" {
		t.Errorf("%+v", a)
	}
	if s := o.Stats(); s.Fenced != 3 || s.Ended != 1 || s.Lost != 1 {
		t.Errorf("%+v", s)
	}
	// what the run does not hold is cancelled at the heartbeat that names it
	heard := make(chan *nats.Msg, 9)
	sub, err := r.connect().ChanSubscribe(s.cancel("run"), heard)
	must(t, err)
	defer func() { must(t, sub.Unsubscribe()) }()
	must(t, o.deps.NC.Flush())
	m, err := messages.Encode(s.worker("slow"), wireWorker{V: wireVersion, WorkerInfo: WorkerInfo{Name: "slow"}, Held: []address{first.address}})
	must(t, err)
	eventually(t, "the slow worker is told", 5*time.Second, func() bool {
		must(t, o.deps.NC.PublishMsg(m))
		select {
		case <-heard:
			return true
		case <-time.After(50 * time.Millisecond):
			return false
		}
	})
}

// TestBadResults: an episode that is not the one asked for, and one whose files are nowhere, are infrastructure failures.
func TestBadResults(t *testing.T) {
	r := newRig(t)
	o := r.orchestrate(1)
	for n, ep := range []*milepost.Episode{
		{ID: "other", Status: milepost.EpisodeCompleted}, {ID: "e1", Status: "strange"},
		{ID: "e2", Status: milepost.EpisodeCompleted, FinalDelta: []milepost.TreeChange{{Path: "a", Mode: 0o100644, Blob: "1111111111111111111111111111111111111111"}}},
	} {
		got := r.start(t.Context(), o, n, 1)
		var offer wireOffer
		eventually(t, "it is handed out", 5*time.Second, func() bool { offer = r.ask("bad"); return offer.Episode != "" })
		body, err := marshal(ep)
		must(t, err)
		var reply wireReply
		r.say(subjects("milepost").result("run", 1), wireResult{V: wireVersion, address: offer.address, Worker: "bad", Body: parcel{Body: body}}, &reply)
		if a := receive(t, got, 20*time.Second); a.err != nil || a.ep.Status != milepost.EpisodeInfra || a.ep.ID != fmt.Sprint("e", n) {
			t.Errorf("%d: %+v %+v", n, a.ep, a.err)
		}
	}
}

// TestRestart: the orchestrator dies and starts again under a new epoch while its workers go on: they let go of the old epoch's
// episodes and run the new one's.
func TestRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run.Lease, r.work.Slots = time.Minute, 2
	first := r.orchestrate(1)
	gate := make(chan struct{})
	p := &fakePolicy{script: script{Turns: 2, Tokens: 1}, gate: gate}
	r.worker(p)
	old := r.start(t.Context(), first, 0, 2)
	eventually(t, "the worker is full", 10*time.Second, func() bool { return first.Stats().Held == 2 })
	first.crash()
	for range 2 {
		if a := receive(t, old, 5*time.Second); a.err == nil {
			t.Errorf("an episode of a dead orchestrator ended: %+v", a.ep)
		}
	}
	second := r.orchestrate(2)
	got := r.start(t.Context(), second, 0, 2)
	eventually(t, "the worker is the new epoch's", 10*time.Second, func() bool { return second.Stats().Held == 2 })
	close(gate)
	for range 2 {
		if a := receive(t, got, 10*time.Second); a.err != nil || a.ep.Status != milepost.EpisodeCompleted {
			t.Errorf("%+v", a)
		}
	}
	if s := second.Stats(); s.HandedOut != 2 || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

// TestOrphans: episodes of a run that never comes back are given up, and the worker serves others.
func TestOrphans(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work.Slots = 1
	first := r.orchestrate(1)
	p := &fakePolicy{script: script{Turns: 2, Tokens: 1}, gate: make(chan struct{})}
	var w *Worker
	r.worker(p, func(got *Worker) { w = got; w.cfg.Orphaned = 2 * time.Second })
	old := r.start(t.Context(), first, 0, 1)
	eventually(t, "the worker is full", 10*time.Second, func() bool { return first.Stats().Held == 1 })
	first.crash()
	<-old
	eventually(t, "the worker lets go", 20*time.Second, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.info.Busy == 0 && len(w.runs) == 0 })
}

// TestServerRestart: the NATS server goes away for longer than a lease, once with its store and once without: nothing is
// lost, nothing runs twice.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]bool{"same store": false, "empty store": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.run.Lease, r.work.Orphaned = 4*time.Second, 5*time.Second
			r.testers()
			o := r.orchestrate(1)
			gate := make(chan struct{})
			r.worker(&fakePolicy{script: script{Turns: 2, Tokens: 4_000, Bytes: 300 << 10}, gate: gate})
			got := r.start(t.Context(), o, 0, 8)
			eventually(t, "the worker is full", 10*time.Second, func() bool { return o.Stats().Held == 4 })
			var port int
			if _, err := fmt.Sscanf(r.srv.URL(), "nats://127.0.0.1:%d", &port); err != nil {
				t.Fatal(err)
			}
			r.srv.Close()
			time.Sleep(5500 * time.Millisecond) // longer than lease and orphaned
			close(gate)                         // the episodes end while nobody can be told
			r.cfg.Port = port
			if lose {
				r.cfg.Dir = t.TempDir()
			}
			var err error
			r.srv, err = shadow.StartServer(r.cfg)
			must(t, err)
			var all []*milepost.Episode
			for range 8 {
				a := receive(t, got, time.Minute)
				if a.err != nil || a.ep.Status != milepost.EpisodeCompleted {
					t.Errorf("%v %+v", a.err, a.ep)
				}
				all = append(all, a.ep)
			}
			must(t, o.prober.Fill(t.Context(), all, 30*time.Second))
			for _, ep := range all {
				if v := ep.Outcome.Verdict; v == nil || !v.Trusted {
					t.Errorf("%s: %+v", ep.ID, v)
				}
			}
			if s := o.Stats(); s.HandedOut != 8 || s.Lost != 0 || s.Ended != 8 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestLedger: whatever the order of asks, heartbeats, silences, results, cancellations and withdrawals, each order ends exactly
// once, is never with two workers that both count, and none is forgotten.
func TestLedger(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cfg := Default()
		cfg.Lease, cfg.MaxLosses = 10*time.Second, 1+rng.IntN(3)
		l := newLedger("run", 1, cfg)
		now := time.Unix(0, 0)
		ends := map[string]int{}
		var orders []*order
		given := map[string][]address{} // what each worker thinks it has
		over := func(o *order) {
			if l.end(o) {
				ends[o.req.Episode]++
			}
		}
		for step := range 400 {
			worker := fmt.Sprint("w", rng.IntN(3))
			switch pick := rng.IntN(9); {
			case pick == 0 && len(orders) < 20:
				o, err := l.add(rollout.Request{Episode: fmt.Sprint("e", len(orders)), Task: &milepost.Task{}}, true)
				must(t, err)
				orders = append(orders, o)
			case pick <= 2:
				if o := l.next(worker, now); o != nil {
					if o.unwanted {
						t.Fatalf("seed %d: an unwanted order was handed out", seed)
					}
					given[worker] = append(given[worker], address{"run", 1, o.req.Episode, o.attempt})
				}
			case pick == 3:
				for _, a := range l.hear(worker, given[worker], now) {
					if o := l.current(a); o != nil && o.worker == worker && !o.unwanted {
						t.Fatalf("seed %d step %d: %v was cancelled at the worker that holds it", seed, step, a)
					}
				}
			case pick == 4 && len(given[worker]) > 0: // a result, perhaps late, perhaps again
				a := given[worker][rng.IntN(len(given[worker]))]
				if o := l.current(a); o != nil {
					over(o)
				}
			case pick == 5 && len(given[worker]) > 0: // handed back
				a := given[worker][rng.IntN(len(given[worker]))]
				if o := l.current(a); o != nil {
					if l.giveBack(o) {
						over(o)
					}
					if l.hear(worker, []address{a}, now); o.worker != "" && l.orders[a.Episode] == o && !o.unwanted {
						t.Fatalf("seed %d: a heartbeat from before took back what was handed back", seed)
					}
				}
			case pick == 6:
				now = now.Add(time.Duration(rng.IntN(8)) * time.Second)
				for _, o := range l.expire(now) {
					over(o)
				}
			case pick == 7 && len(orders) > 0 && rng.IntN(4) == 0:
				if o := orders[rng.IntN(len(orders))]; l.orders[o.req.Episode] == o && !o.unwanted && l.withdraw(o) {
					ends[o.req.Episode]++
				}
			case pick == 8 && rng.IntN(5) == 0:
				given[worker] = nil // it died
			}
			check(t, l, seed)
		}
		for range 200 { // all workers but one are dead; it answers for what it gets
			now = now.Add(11 * time.Second)
			for _, o := range l.expire(now) {
				over(o)
			}
			if o := l.next("last", now); o != nil {
				over(o)
			}
		}
		for _, o := range orders {
			if ends[o.req.Episode] != 1 {
				t.Fatalf("seed %d: %s ended %d times", seed, o.req.Episode, ends[o.req.Episode])
			}
		}
	}
}

// check holds a ledger against its invariants.
func check(t *testing.T, l *ledger, seed uint64) {
	t.Helper()
	queued := map[*order]int{}
	for _, o := range l.queue {
		queued[o]++
		if l.orders[o.req.Episode] != o || o.worker != "" || o.unwanted {
			t.Fatalf("seed %d: %+v is in the queue", seed, o)
		}
	}
	for _, o := range l.orders {
		if want := map[bool]int{true: 1}[o.worker == ""]; queued[o] != want {
			t.Fatalf("seed %d: %+v is %d times in the queue", seed, o, queued[o])
		}
	}
}

// TestClosed: Close ends every Run.
func TestClosed(t *testing.T) {
	r := newRig(t)
	o := r.orchestrate(1)
	got := r.start(context.Background(), o, 0, 2)
	eventually(t, "they wait", 5*time.Second, func() bool { return o.Stats().Waiting == 2 })
	if _, err := o.Run(t.Context(), r.request(0), true); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("the same episode again: %v", err)
	}
	o.Close()
	for range 2 {
		if a := receive(t, got, 20*time.Second); milepost.KindOf(a.err) != milepost.KindCanceled {
			t.Errorf("%+v", a)
		}
	}
	if _, err := o.Run(t.Context(), r.request(9), true); milepost.KindOf(err) != milepost.KindCanceled {
		t.Error(err)
	}
}

// TestFailingWorker: a worker whose episodes cannot begin rests between them and asks whether sandboxes can be had, so that it
// does not take every episode there is.
func TestFailingWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.orchestrate(1)
	var asked atomic.Int32
	r.worker(&fakePolicy{script: script{Turns: 1, Tokens: 1}}, func(w *Worker) {
		w.deps.Policy = func(Settings) (Policy, error) { return nil, milepost.E("test", milepost.KindUnavailable, "no sandbox") }
		w.deps.Ready = func(context.Context) error {
			if asked.Add(1) < 3 {
				return milepost.E("test", milepost.KindUnavailable, "still none")
			}
			return nil
		}
	})
	got := r.start(t.Context(), o, 0, 40)
	for range 4 { // one a slot
		if a := receive(t, got, 20*time.Second); a.err != nil || a.ep.Status != milepost.EpisodeInfra || a.ep.Task != "task" || !strings.Contains(a.ep.Error, "no sandbox") {
			t.Errorf("%+v %+v", a.ep, a.err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	if n := o.Stats().HandedOut; n != 4 {
		t.Errorf("%d episodes were taken before the first rest", n)
	}
	eventually(t, "its means are asked for", 5*time.Second, func() bool { return asked.Load() >= 3 && r.warned("until its sandboxes can be had again") })
}

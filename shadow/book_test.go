package shadow

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/milepost-rl/milepost"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

func testPrint(t testing.TB) *taskPrint {
	p, err := newTaskPrint(&milepost.Task{ID: "t", BaseTree: treeID(0), Tests: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// bookConfig merges nothing and rechecks nothing.
func bookConfig(attempts int) ProberConfig {
	cfg := DefaultProber()
	cfg.MaxAttempts, cfg.RetryDelay, cfg.Merge, cfg.Recheck = attempts, time.Second, 1, 0
	return cfg
}

func request(episode string, kind milepost.ProbeKind, step, tree int) milepost.ProbeRequest {
	return milepost.ProbeRequest{ID: fmt.Sprintf("%s/%s%d", episode, kind, step), Kind: kind, Episode: episode, Step: step, Tree: treeID(tree)}
}

func okResult(f *flight, delivery int, ran time.Duration) *wireResult {
	return &wireResult{address: address{Key: f.key, Attempt: f.attempt, Delivery: delivery}, Status: milepost.ProbeCompleted, Tree: f.req.Tree,
		Report: milepost.TestReport{milepost.Passed, milepost.Failed}, Ran: ran}
}

// The episode publishes at 0 and 10, ends at 12; results come at 8 and 20: 8 of 8 and 2 of 10 seconds were hidden by it.
func TestTimesAreExact(t *testing.T) {
	b, pr := newBook(bookConfig(3), nil), testPrint(t)
	f := b.request(request("e", milepost.ProbeStep, 0, 1), pr, true, at(0))
	b.sent(f, 1, 1)
	b.started(address{Key: f.key, Attempt: 1, Delivery: 1}, at(3))
	b.result(okResult(f, 1, 5*time.Second), at(8))
	g := b.request(request("e", milepost.ProbeStep, 1, 2), pr, true, at(10))
	v := b.request(request("e", milepost.ProbeVerdict, 2, 3), pr, true, at(12))
	b.result(okResult(g, 1, 4*time.Second), at(20)) // the notice of its start was lost: taken at 16
	b.result(okResult(v, 1, time.Second), at(21))
	b.request(request("e2", milepost.ProbeStep, 0, 1), pr, true, at(22)) // from the cache: no time
	s := b.stats
	want := Stats{Published: 4, Cached: 1, Sent: 1, Trusted: 4, QueueTime: (3 + 6 + 8) * time.Second, RunTime: 10 * time.Second,
		StepTime: 18 * time.Second, OverlapTime: 10 * time.Second, VerdictTime: 9 * time.Second}
	if s != want {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
	s.BarrierWait = 9 * time.Second
	if h, o := s.HiddenShare(), s.OverlapShare(); math.Abs(h-18.0/27) > 1e-12 || math.Abs(o-10.0/18) > 1e-12 {
		t.Errorf("hidden %v overlap %v", h, o)
	}
	p := b.entries["e/step0"].probe
	if p.Queued != 3*time.Second || p.Ran != 5*time.Second || p.Total != 8*time.Second {
		t.Errorf("probe %+v", p)
	}
}

func TestStatsSubCoversEveryField(t *testing.T) {
	var a, b Stats
	va, vb := reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem()
	for i := range va.NumField() {
		va.Field(i).SetInt(int64(10 * (i + 2)))
		vb.Field(i).SetInt(int64(i + 1))
	}
	d := reflect.ValueOf(a.Sub(b))
	states := map[string]bool{"Backlog": true, "InFlight": true, "Workers": true}
	for i := range va.NumField() {
		want := int64(10*(i+2) - (i + 1))
		if states[va.Type().Field(i).Name] {
			want = int64(10 * (i + 2))
		}
		if got := d.Field(i).Int(); got != want {
			t.Errorf("%s: %d, want %d", va.Type().Field(i).Name, got, want)
		}
	}
}

func TestRetryDelaysDouble(t *testing.T) {
	b, pr := newBook(bookConfig(4), nil), testPrint(t)
	f := b.request(request("e", milepost.ProbeStep, 0, 1), pr, true, at(0))
	now := at(0)
	for attempt, delay := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		out := b.result(&wireResult{address: address{Key: f.key, Attempt: attempt + 1, Delivery: 1}, Status: milepost.ProbeInfra, Retry: true}, now)
		if out.retry != f || f.due.Sub(now) != delay {
			t.Fatalf("attempt %d: due after %s, want %s", attempt+1, f.due.Sub(now), delay)
		}
		if len(b.due(now)) != 0 {
			t.Fatal("due too early")
		}
		if now = now.Add(delay); len(b.due(now)) != 1 {
			t.Fatal("not due")
		}
	}
	b.result(&wireResult{address: address{Key: f.key, Attempt: 4, Delivery: 1}, Status: milepost.ProbeInfra, Retry: true}, now)
	if p := b.entries["e/step0"].probe; p == nil || p.Status != milepost.ProbeInfra || p.Attempt != 4 || b.stats.Retries != 3 {
		t.Errorf("probe %+v stats %+v", p, b.stats)
	}
}

// Whatever order, copies, losses and failures the messages go through, every request ends once, a trusted probe has the
// report of its own tree, and nothing is left behind.
func TestBookUnderDisorder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pr, err := newTaskPrint(&milepost.Task{ID: "t", BaseTree: treeID(0), Tests: []string{"a", "b"}})
		if err != nil {
			t.Fatal(err)
		}
		cfg := bookConfig(3)
		cfg.Merge, cfg.MergeBehind, cfg.Recheck = 3, 0, .5
		w := &world{t: t, b: newBook(cfg, nil), pr: pr, now: t0}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			w.now = w.now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			w.event()
			w.check()
		}
		w.settle()
	})
}

// world drives a book with the messages of a careless network.
type world struct {
	t       *rapid.T
	b       *book
	pr      *taskPrint
	now     time.Time
	seq     uint64
	backlog []*flight
	stream  []*wireRequest // on the stream, each may be delivered again
	results []*wireResult  // published, each may arrive again
}

func (w *world) event() {
	t := w.t
	switch rapid.IntRange(0, 7).Draw(t, "event") {
	case 0, 1:
		kind := rapid.SampledFrom(kinds[:3]).Draw(t, "kind")
		r := request(fmt.Sprint("e", rapid.IntRange(0, 3).Draw(t, "episode")), kind, rapid.IntRange(0, 3).Draw(t, "step"), rapid.IntRange(0, 5).Draw(t, "tree"))
		if r.Tree != treeID(0) {
			r.Delta = []milepost.TreeChange{{Path: "f", Mode: 0o100644, Blob: r.Tree}}
		}
		if f := w.b.request(r, w.pr, true, w.now); f != nil {
			w.backlog = append(w.backlog, f)
		}
	case 2:
		w.publish()
	case 3:
		w.deliver()
	case 4, 5:
		if len(w.results) > 0 {
			w.take(*w.results[rapid.IntRange(0, len(w.results)-1).Draw(t, "result")])
		}
	case 6:
		w.b.lost(func(seq uint64) bool { return rapid.Bool().Draw(t, "held") }, w.now)
		w.backlog = append(w.backlog, w.b.due(w.now)...)
	case 7:
		w.b.release(fmt.Sprint("e", rapid.IntRange(0, 3).Draw(t, "released")))
	}
}

func (w *world) take(r wireResult) {
	if f := w.b.result(&r, w.now).recheck; f != nil {
		w.backlog = append(w.backlog, f)
	}
}

func (w *world) publish() {
	if len(w.backlog) == 0 {
		return
	}
	f := w.backlog[0]
	w.backlog = w.backlog[1:]
	if !w.b.current(f, f.attempt) {
		return
	}
	w.seq++
	w.stream = append(w.stream, &wireRequest{address: address{Key: f.key, Attempt: f.attempt}, Tree: f.req.Tree})
	w.b.sent(f, f.attempt, w.seq)
}

// deliver hands a request to a worker, again maybe, which may fail.
func (w *world) deliver() {
	if len(w.stream) == 0 {
		return
	}
	q := w.stream[rapid.IntRange(0, len(w.stream)-1).Draw(w.t, "delivery")]
	q.Delivery++
	if rapid.Bool().Draw(w.t, "notice arrives") {
		w.b.started(q.address, w.now)
	}
	r := &wireResult{address: q.address, Status: milepost.ProbeCompleted, Tree: q.Tree, Report: reportOf(q.Tree)}
	switch rapid.IntRange(0, 5).Draw(w.t, "outcome") {
	case 0:
		r.Status, r.Retry = milepost.ProbeInfra, true
	case 1:
		r.Status = milepost.ProbeTimeout
	case 2:
		r.Tree = treeID(99)
	}
	w.results = append(w.results, r)
}

func reportOf(tree string) milepost.TestReport {
	return milepost.TestReport{milepost.TestState(1 + tree[39]%2), milepost.Passed}
}

func (w *world) check() {
	for id, e := range w.b.entries {
		select {
		case <-e.done:
			if e.probe == nil || e.flight != nil {
				w.t.Fatalf("%s is done without a probe, or in flight", id)
			}
		default:
			if e.probe != nil || e.flight == nil || w.b.flights[e.flight.key] != e.flight {
				w.t.Fatalf("%s is open and nothing brings it to an end", id)
			}
		}
		if p := e.probe; p != nil && p.Trusted && (p.Merge == nil && p.Tree != e.tree || !reflect.DeepEqual(p.Report, reportOf(p.Tree))) {
			w.t.Fatalf("%s got the report of another tree: %+v", id, p)
		}
		w.checkMerge(id, e)
	}
	rechecks := 0
	for key, f := range w.b.flights {
		if f.recheck {
			rechecks++
		}
		if _, ok := w.b.results[key]; ok {
			w.t.Fatalf("key %s is cached and in flight", key)
		}
		for _, e := range f.waiters {
			if e.flight != f {
				w.t.Fatalf("%s waits for a flight that is not its own", e.id)
			}
		}
	}
	if rechecks != w.b.rechecks {
		w.t.Fatalf("%d second runs, counted %d", rechecks, w.b.rechecks)
	}
}

// checkMerge expects what credit demands of a merge group: consecutive steps, complete, with one probe.
func (w *world) checkMerge(id string, e *entry) {
	if e.probe == nil || e.probe.Merge == nil {
		return
	}
	m := *e.probe.Merge
	if m.Size < 2 || m.Size > 3 || m.Index < 0 || m.Index >= m.Size {
		w.t.Fatalf("%s: %+v", id, m)
	}
	last := w.b.entries[m.ID]
	if last == nil || last.probe == nil || last.probe.Merge == nil {
		return // asked for again meanwhile, with another tree
	}
	if a, b := *e.probe, *last.probe; a.Tree != b.Tree || a.Status != b.Status || a.Trusted != b.Trusted || b.Merge.Index != m.Size-1 || a.Trusted && b.Tree != last.tree {
		w.t.Fatalf("%s %+v and the last of its group %+v", id, a, b)
	}
	if n, k := id[len(id)-1], m.ID[len(m.ID)-1]; int(k)-int(n) != m.Size-1-m.Index {
		w.t.Fatalf("%s is part %d of %d of %s", id, m.Index, m.Size, m.ID)
	}
}

// settle lets every flight be served well, and checks that all requests end.
func (w *world) settle() {
	for range 10 {
		w.now = w.now.Add(time.Hour)
		w.backlog = append(w.backlog, w.b.due(w.now)...)
		for len(w.backlog) > 0 {
			w.publish()
		}
		for _, f := range w.b.flights {
			w.take(wireResult{address: address{Key: f.key, Attempt: f.attempt, Delivery: f.delivery + 1}, Status: milepost.ProbeCompleted,
				Tree: f.req.Tree, Report: reportOf(f.req.Tree)})
		}
		w.check()
	}
	if len(w.b.flights) != 0 {
		w.t.Fatalf("%d flights never end", len(w.b.flights))
	}
	for e := range 4 {
		w.b.release(fmt.Sprint("e", e))
	}
	if len(w.b.entries) != 0 || len(w.b.episodes) != 0 {
		w.t.Fatalf("left behind: %v %v", w.b.entries, w.b.episodes)
	}
}

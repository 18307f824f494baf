package shadow

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

func ofVersion(v int) (ProberOption, WorkerOption) {
	return func(o *proberOptions) { o.version = v }, func(w *Worker) { w.version = v }
}

// In a rolling upgrade runs and workers of two versions share a server: each run is served by its own workers, nobody sets
// aside what another could do, and each run says once that there are workers it cannot use.
func TestTwoVersionsSideBySide(t *testing.T) {
	r := newRig(t, false)
	newRun, newWorker := ofVersion(wireVersion + 1)
	var mu sync.Mutex
	said := map[string]int{}
	warns := func(run string) ProberOption {
		return WithErrors(func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(err.Error(), "speaks version") {
				said[run]++
			} else {
				t.Errorf("run %s reports %v", run, err)
			}
		})
	}
	before := r.newProber(warns("before"))
	r.prober.Run = "run-2"
	after := r.newProber(newRun, warns("after"))

	// Only workers of the new version are there: the old run's requests wait, untouched.
	f := &fakeRunner{}
	w2, _ := r.startWorker(f, newWorker)
	must(t, before.Publish(t.Context(), r.step("e1", 0, 1)))
	if got := one(t, after, r.step("e1", 0, 2)); !got.Trusted || got.Worker != w2.Name() {
		t.Errorf("the new run: %+v", got)
	}
	eventually(t, "the old run knows", func() bool { mu.Lock(); defer mu.Unlock(); return said["before"] == 1 })
	if s := before.Stats(); s.Workers != 0 || s.Sent != 1 || after.Stats().Workers != 1 {
		t.Errorf("old run %+v, new run %+v", s, after.Stats())
	}
	if got := f.trees(); len(got) != 1 {
		t.Errorf("the new worker ran %v", got)
	}

	w1, _ := r.startWorker(&fakeRunner{})
	if got := before.Await(t.Context(), []string{"e1/0"}, 20*time.Second)["e1/0"]; !got.Trusted || got.Worker != w1.Name() || got.Attempt != 1 {
		t.Errorf("the old run: %+v", got)
	}
	// Both serve at once: no request goes astray, and the warnings do not repeat.
	var ids []string
	for i := range 20 {
		a, b := r.step("e2", i, 100+i), r.step("e2", i, 200+i)
		must(t, before.Publish(t.Context(), a))
		must(t, after.Publish(t.Context(), b))
		ids = append(ids, a.ID)
	}
	for run, p := range map[*Worker]*Prober{w1: before, w2: after} {
		for id, got := range p.Await(t.Context(), ids, 20*time.Second) {
			if !got.Trusted || got.Worker != run.Name() || got.Attempt != 1 {
				t.Errorf("%s: %+v", id, got)
			}
		}
		if s := p.Stats(); s.Corrupt+s.LostMessages+s.Retries != 0 || s.Workers != 1 {
			t.Errorf("stats %+v", s)
		}
	}
	dead, err := jetStream(t, r.connect()).Stream(t.Context(), before.names.deadLetters())
	must(t, err)
	if info := dead.CachedInfo(); info.State.Msgs != 0 {
		t.Errorf("%d requests were set aside", info.State.Msgs)
	}
	mu.Lock()
	defer mu.Unlock()
	if said["before"] != 1 || said["after"] != 1 {
		t.Errorf("warnings %v", said)
	}
	list, err := ListWorkers(t.Context(), r.connect(), r.worker.Streams.Prefix, 500*time.Millisecond)
	if err != nil || len(list) != 2 || list[0].Wire+list[1].Wire != 2*wireVersion+1 {
		t.Errorf("list %+v, %v", list, err)
	}
}

// A run whose probes wait without any worker says so, and says it again.
func TestRunWithoutWorkersSaysSo(t *testing.T) {
	r := newRig(t, false)
	clock := newClock()
	var mu sync.Mutex
	var said []string
	p := r.newProber(WithClock(clock.now), WithErrors(func(err error) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, err.Error())
	}))
	heard := func() int { mu.Lock(); defer mu.Unlock(); return len(said) }
	p.missWorkers()
	clock.add(2 * aloneFor)
	p.missWorkers()
	if heard() != 0 {
		t.Errorf("nothing waits, and it says %v", said)
	}
	must(t, p.Publish(t.Context(), r.step("e1", 0, 1)))
	for n := range 2 {
		eventually(t, "it looked", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return !p.idle.IsZero() })
		clock.add(aloneFor - time.Millisecond)
		p.missWorkers()
		if heard() != n {
			t.Fatalf("too early: %v", said)
		}
		clock.add(time.Millisecond)
		eventually(t, "it says so", func() bool { return heard() == n+1 })
	}
	if !strings.Contains(said[0], "1 probes wait and no worker is there") || !strings.Contains(said[0], "milepost worker shadow") {
		t.Errorf("it said %q", said[0])
	}
	r.startWorker(&fakeRunner{})
	if got := p.Await(t.Context(), []string{"e1/0"}, 20*time.Second)["e1/0"]; !got.Trusted {
		t.Errorf("probe %+v", got)
	}
}

// A worker whose sandboxes are away fails one probe for each slot, then waits until they are back.
func TestWorkerWaitsForItsMeans(t *testing.T) {
	r := newRig(t, false)
	r.worker.Slots, r.prober.MaxAttempts = 2, 2
	var mu sync.Mutex
	away := true
	asked := 0
	var said []string
	p := r.newProber()
	f := &fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		mu.Lock()
		defer mu.Unlock()
		if away {
			return Outcome{}, milepost.E("test", milepost.KindUnavailable, "no engine")
		}
		return passed(task, tree), nil
	}}
	var ids []string
	for i := range 12 {
		req := r.step("e1", i, i+1)
		must(t, p.Publish(t.Context(), req))
		ids = append(ids, req.ID)
	}
	r.startWorker(f, WithReadiness(func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		asked++
		if away {
			return milepost.E("test", milepost.KindUnavailable, "the engine does not answer")
		}
		return nil
	}), WithWorkerErrors(func(err error) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, err.Error())
	}))
	eventually(t, "it looked twice", func() bool { mu.Lock(); defer mu.Unlock(); return asked > 2 })
	if n := len(f.trees()); n < 1 || n > 2 {
		t.Errorf("%d probes were tried without means, want at most one for each slot", n)
	}
	mu.Lock()
	away = false
	mu.Unlock()
	for id, got := range p.Await(t.Context(), ids, 30*time.Second) {
		if !got.Trusted {
			t.Errorf("%s: %+v", id, got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(said) < 1 || len(said) > 2 || !strings.Contains(said[0], "the engine does not answer") {
		t.Errorf("it said %v", said)
	}
}

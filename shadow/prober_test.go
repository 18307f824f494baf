package shadow

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

func TestProbeComesBackTrusted(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	w, _ := r.startWorker(&fakeRunner{})
	got := one(t, p, r.step("e1", 0, 1))
	if !got.Trusted || got.Status != milepost.ProbeCompleted || got.Tree != treeID(1) || !got.Report.AllPassed() || got.Worker != w.Name() || got.ID != "e1/0" {
		t.Errorf("probe %+v", got)
	}
	if got.Continuity != "" || got.Reason != "" || got.Cached || got.Total <= 0 {
		t.Errorf("probe %+v", got)
	}
	eventually(t, "the publisher has the server's word", func() bool { return p.Stats().Sent == 1 })
	if s := p.Stats(); s.Trusted != 1 || s.InFlight != 0 || s.StepTime != s.OverlapTime || s.StepTime <= 0 {
		t.Errorf("stats %+v", s)
	}
	eventually(t, "the worker is heard of", func() bool { ws := p.Workers(); return len(ws) == 1 && ws[0].Slots == 2 })
}

func TestPublishNeverWaits(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber() // no worker at all
	began := time.Now()
	for i := range 2000 {
		must(t, p.Publish(t.Context(), r.step("e1", i, i+1)))
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("2000 requests took %s", d)
	}
	got := p.Await(t.Context(), []string{"e1/0", "unknown"}, 10*time.Millisecond)
	if l := got["e1/0"]; l.Status != milepost.ProbeLate || l.Trusted || l.Continuity != milepost.ContinuityKept || l.Reason == "" {
		t.Errorf("late probe %+v", l)
	}
	if u := got["unknown"]; u.Status != milepost.ProbeInfra || u.Trusted || u.Reason == "" {
		t.Errorf("unknown probe %+v", u)
	}
}

func TestBacklogIsBounded(t *testing.T) {
	r := newRig(t, false)
	r.prober.Backlog = 3
	p := r.newProber()
	p.mu.Lock() // holds the publishers back
	var err error
	for i := 0; i < 10 && err == nil; i++ {
		err = p.publish(r.step("e1", i, i+1), false)
	}
	n := p.queued
	p.mu.Unlock()
	if milepost.KindOf(err) != milepost.KindLimit || n != 3 {
		t.Errorf("error %v with %d queued", err, n)
	}
}

func TestPriorityOrder(t *testing.T) {
	r := newRig(t, false)
	r.worker.Slots = 1
	p := r.newProber()
	for i := range 3 {
		must(t, p.Publish(t.Context(), r.step("e1", i, 10+i)))
	}
	must(t, p.Publish(t.Context(), r.verdict("e2", 20)))
	must(t, p.Publish(t.Context(), milepost.ProbeRequest{ID: "b", Kind: milepost.ProbeBaseline, Task: r.task, Tree: r.task.BaseTree}))
	eventually(t, "all on the stream", func() bool { return p.Stats().Sent == 5 })
	f := &fakeRunner{}
	r.startWorker(f)
	p.Await(t.Context(), []string{"e1/0", "e1/1", "e1/2", "e2/verdict", "b"}, 10*time.Second)
	got := f.trees()
	if len(got) != 5 || got[0] != treeID(0) || got[1] != treeID(20) {
		t.Errorf("order %v", got)
	}
}

func TestSameContentIsProbedOnce(t *testing.T) {
	r := newRig(t, false)
	release := make(chan struct{})
	f := &fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		<-release
		return passed(task, tree), nil
	}}
	p := r.newProber()
	r.startWorker(f)
	for i := range 8 { // in flight together
		must(t, p.Publish(t.Context(), r.step(fmt.Sprint("e", i), 0, 7)))
	}
	close(release)
	for i := range 8 {
		id := fmt.Sprintf("e%d/0", i)
		if got := p.Await(t.Context(), []string{id}, 10*time.Second)[id]; !got.Trusted || got.ID != id {
			t.Errorf("probe %+v", got)
		}
	}
	if got := one(t, p, r.step("e9", 3, 7)); !got.Trusted || !got.Cached { // afterwards
		t.Errorf("probe %+v", got)
	}
	if s := p.Stats(); len(f.trees()) != 1 || s.Coalesced != 7 || s.Cached != 1 || s.Trusted != 9 {
		t.Errorf("runs %v stats %+v", f.trees(), s)
	}
	other := *r.task
	other.Test.Argv = []string{"another", "command"}
	req := r.step("e10", 0, 7)
	req.Task = &other
	if got := one(t, p, req); got.Cached || len(f.trees()) != 2 {
		t.Errorf("another test command was answered from the cache: %+v", got)
	}
}

func TestBaselineServesTheUntouchedTree(t *testing.T) {
	r := newRig(t, false)
	f := &fakeRunner{}
	p := r.newProber()
	r.startWorker(f)
	b, err := p.Baseline(t.Context(), r.task)
	must(t, err)
	again, err := p.Baseline(t.Context(), r.task)
	must(t, err)
	step := one(t, p, r.step("e1", 0, 0)) // an edit that was undone
	if !b.Trusted || !again.Trusted || !step.Trusted || !step.Cached || len(f.trees()) != 1 {
		t.Errorf("baseline %+v again %+v step %+v runs %v", b, again, step, f.trees())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	hang := *r.task
	hang.BaseTree, hang.ID = treeID(99), "hang"
	f.mu.Lock()
	f.fn = func(ctx context.Context, _ *milepost.Task, _ string, _ int) (Outcome, error) {
		<-ctx.Done()
		return Outcome{}, ctx.Err()
	}
	f.mu.Unlock()
	if _, err := p.Baseline(ctx, &hang); milepost.KindOf(err) != milepost.KindTimeout {
		t.Errorf("error %v", err)
	}
}

func TestUntrustedBaselineIsRunAgain(t *testing.T) {
	r := newRig(t, false)
	f := &fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, n int) (Outcome, error) {
		if n == 0 {
			return Outcome{Status: milepost.ProbeTimeout, Tree: tree}, nil
		}
		return passed(task, tree), nil
	}}
	p := r.newProber()
	r.startWorker(f)
	first, err := p.Baseline(t.Context(), r.task)
	must(t, err)
	second, err := p.Baseline(t.Context(), r.task)
	must(t, err)
	if first.Trusted || first.Status != milepost.ProbeTimeout || !second.Trusted {
		t.Errorf("first %+v second %+v", first, second)
	}
}

func TestTimeoutsAreNotCached(t *testing.T) {
	r := newRig(t, false)
	f := &fakeRunner{fn: func(_ context.Context, _ *milepost.Task, tree string, _ int) (Outcome, error) {
		return Outcome{Status: milepost.ProbeTimeout, Tree: tree, Reason: "60 s"}, nil
	}}
	p := r.newProber()
	r.startWorker(f)
	for i := range 2 {
		got := one(t, p, r.step("e1", i, 5))
		if got.Trusted || got.Status != milepost.ProbeTimeout || got.Continuity != milepost.ContinuityKept || got.Report != nil {
			t.Errorf("probe %+v", got)
		}
	}
	if s := p.Stats(); len(f.trees()) != 2 || s.Timeouts != 2 || s.Retries != 0 {
		t.Errorf("runs %v stats %+v", f.trees(), s)
	}
}

func TestInfraFailureIsRetriedThenFinal(t *testing.T) {
	r := newRig(t, false)
	f := &fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, n int) (Outcome, error) {
		switch {
		case tree == treeID(1) && n < 2:
			return Outcome{}, milepost.E("test", milepost.KindUnavailable, "sandbox %d", n)
		case tree == treeID(2):
			return Outcome{}, milepost.E("test", milepost.KindUnavailable, "always")
		case tree == treeID(3):
			return Outcome{}, milepost.E("test", milepost.KindInvalid, "misuse")
		case tree == treeID(4) && n == 0:
			panic("boom")
		}
		return passed(task, tree), nil
	}}
	r.prober.MaxAttempts = 3
	p := r.newProber()
	r.startWorker(f)
	if got := one(t, p, r.step("e1", 0, 1)); !got.Trusted || got.Attempt != 3 {
		t.Errorf("after two failures: %+v", got)
	}
	if got := one(t, p, r.step("e1", 1, 2)); got.Trusted || got.Status != milepost.ProbeInfra || got.Attempt != 3 || got.Reason == "" {
		t.Errorf("always failing: %+v", got)
	}
	if got := one(t, p, r.step("e1", 2, 3)); got.Status != milepost.ProbeInfra || got.Attempt != 1 {
		t.Errorf("misuse is not retried: %+v", got)
	}
	if got := one(t, p, r.step("e1", 3, 4)); !got.Trusted || got.Attempt != 2 {
		t.Errorf("after a panic: %+v", got)
	}
	if got := one(t, p, r.step("e2", 0, 2)); got.Status != milepost.ProbeInfra || got.Attempt != 6 {
		t.Errorf("asked again, attempts go on counting: %+v", got)
	}
}

func TestBlobsTravel(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	small, large := []byte("small"), bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB, above the message limit
	var delta []milepost.TreeChange
	for i, data := range [][]byte{small, large, nil} {
		id, err := r.blobs.Put(data)
		must(t, err)
		delta = append(delta, milepost.TreeChange{Path: fmt.Sprint("f", i), Mode: 0o100644, Blob: id})
	}
	delta = append(delta, milepost.TreeChange{Path: "gone", Deleted: true})
	here := r.blobs
	far, err := repo.NewBlobs(t.TempDir())
	must(t, err)
	r.blobs = far
	r.startWorker(&fakeRunner{})
	r.blobs = here
	req := r.step("e1", 0, 1)
	req.Delta = delta
	if got := one(t, p, req); !got.Trusted {
		t.Fatalf("probe %+v", got)
	}
	for _, c := range delta[:3] {
		if data, err := far.Get(c.Blob); err != nil || repo.HashBlob(data) != c.Blob {
			t.Errorf("%s did not arrive: %v", c.Path, err)
		}
	}
	missing := r.step("e1", 1, 2)
	missing.Delta = []milepost.TreeChange{{Path: "x", Mode: 0o100644, Blob: treeID(77)}}
	if got := one(t, p, missing); got.Trusted || got.Status != milepost.ProbeTreeWrong || got.Continuity != milepost.ContinuityLost {
		t.Errorf("bytes gone: %+v", got)
	}
}

func TestLargeTaskTravelsAsObject(t *testing.T) {
	r := newRig(t, false)
	for i := range 30000 {
		r.task.Tests = append(r.task.Tests, fmt.Sprintf("tests/test_module_%05d.py::TestClass::test_name", i))
	}
	slices.Sort(r.task.Tests)
	p := r.newProber()
	r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		if task.Statement != "" || task.ReferencePatch != "" {
			t.Error("the worker was told what it must not know")
		}
		return passed(task, tree), nil
	}})
	if got := one(t, p, r.step("e1", 0, 1)); !got.Trusted || len(got.Report) != 30003 {
		t.Errorf("probe %v %s", got.Trusted, got.Reason)
	}
}

func TestCachePersists(t *testing.T) {
	r := newRig(t, false)
	r.prober.CacheFile = filepath.Join(t.TempDir(), "cache.jsonl")
	f := &fakeRunner{}
	r.startWorker(f)
	p := r.newProber()
	one(t, p, r.step("e1", 0, 1))
	must(t, p.Close())
	r.prober.Epoch = 2
	p = r.newProber()
	if got := one(t, p, r.step("e1", 0, 1)); !got.Trusted || !got.Cached || len(f.trees()) != 1 {
		t.Errorf("probe %+v runs %v", got, f.trees())
	}
}

func TestSynchronousAndOff(t *testing.T) {
	r := newRig(t, false)
	r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		time.Sleep(50 * time.Millisecond)
		return passed(task, tree), nil
	}})
	r.prober.Mode = ModeSynchronous
	p := r.newProber()
	began := time.Now()
	must(t, NewSync(p, 10*time.Second).Publish(t.Context(), r.step("e1", 0, 1)))
	if d := time.Since(began); d < 50*time.Millisecond || p.Stats().Trusted != 1 {
		t.Errorf("returned after %s", d)
	}
	must(t, p.Close())
	r.prober.Mode, r.prober.Epoch = ModeOff, 2
	p = r.newProber()
	must(t, p.Publish(t.Context(), r.step("e1", 0, 2)))
	ep := &milepost.Episode{ID: "e1", Task: r.task.ID, Status: milepost.EpisodeCompleted, FinalTree: treeID(2),
		Steps: []milepost.Step{{Tree: treeID(2), Changed: []string{"f"}, Probe: &milepost.Probe{ID: "e1/0"}}}}
	must(t, p.Publish(t.Context(), r.verdict("e1", 2)))
	must(t, p.Fill(t.Context(), []*milepost.Episode{ep}, 10*time.Second))
	if ep.Steps[0].Probe != nil || !ep.Outcome.Verdict.Trusted || p.Stats().Published != 1 {
		t.Errorf("episode %+v stats %+v", ep, p.Stats())
	}
}

func TestCancelTakesRequestsOffTheStream(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	must(t, p.Publish(t.Context(), r.step("e1", 0, 1)))
	must(t, p.Publish(t.Context(), r.step("e1", 1, 2)))
	must(t, p.Publish(t.Context(), r.step("e2", 0, 2))) // shares a probe
	js := jetStream(t, r.connect())
	held := func() uint64 {
		s, err := js.Stream(t.Context(), p.names.probes())
		must(t, err)
		info, err := s.Info(t.Context())
		must(t, err)
		return info.State.Msgs
	}
	eventually(t, "both on the stream", func() bool { return p.Stats().Sent == 2 })
	p.Cancel("e1")
	eventually(t, "one left", func() bool { return held() == 1 })
	if s := p.Stats(); s.Cancelled != 2 || s.InFlight != 1 {
		t.Errorf("stats %+v", s)
	}
	r.startWorker(&fakeRunner{})
	if got := p.Await(t.Context(), []string{"e2/0"}, 10*time.Second)["e2/0"]; !got.Trusted {
		t.Errorf("the other episode's probe: %+v", got)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	noTests := *r.task
	noTests.Tests = nil
	for name, change := range map[string]func(*milepost.ProbeRequest){
		"no id":      func(q *milepost.ProbeRequest) { q.ID = "" },
		"kind":       func(q *milepost.ProbeRequest) { q.Kind = "other" },
		"no task":    func(q *milepost.ProbeRequest) { q.Task = nil },
		"no tests":   func(q *milepost.ProbeRequest) { q.Task = &noTests },
		"no tree":    func(q *milepost.ProbeRequest) { q.Tree = "" },
		"no episode": func(q *milepost.ProbeRequest) { q.Episode = "" },
	} {
		q := r.step("e1", 0, 1)
		change(&q)
		if err := p.Publish(t.Context(), q); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, p.Close())
	if err := p.Publish(t.Context(), r.step("e1", 0, 1)); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("after Close: %v", err)
	}
}

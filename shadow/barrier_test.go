package shadow

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

// episode has a step that read, one that changed the tree to a, one that read and one that changed it to b.
func (r *rig) episode(id string, a, b int) *milepost.Episode {
	step := func(i, tree int) milepost.Step {
		return milepost.Step{Index: i, Tree: treeID(tree), Changed: []string{"f"}, Probe: &milepost.Probe{ID: r.step(id, i, tree).ID}}
	}
	return &milepost.Episode{ID: id, Task: r.task.ID, Status: milepost.EpisodeCompleted, FinalTree: treeID(b),
		Steps: []milepost.Step{{Index: 0}, step(1, a), {Index: 2, Tree: treeID(a)}, step(3, b)}}
}

func TestFillInPlace(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		out := passed(task, tree)
		if tree == treeID(1) {
			out.Report[0] = milepost.Failed
		}
		return out, nil
	}})
	ep := r.episode("e1", 1, 2)
	must(t, p.Publish(t.Context(), r.step("e1", 1, 1)))
	must(t, p.Publish(t.Context(), r.step("e1", 3, 2)))
	must(t, p.Publish(t.Context(), r.verdict("e1", 2)))
	must(t, p.Fill(t.Context(), []*milepost.Episode{ep}, 10*time.Second))
	s := ep.Steps
	if s[0].Probe != nil || s[2].Probe != nil || s[1].Probe.Report.Count(milepost.Failed) != 1 || !s[3].Probe.Report.AllPassed() ||
		!s[1].Probe.Trusted || !s[3].Probe.Trusted || !ep.Outcome.Verdict.Trusted || ep.Outcome.Verdict.ID != "e1/verdict" {
		t.Errorf("steps %+v verdict %+v", s, ep.Outcome.Verdict)
	}
	st := p.Stats()
	if st.Republished != 0 || st.Late != 0 || st.Published != 3 || len(p.book.entries) != 0 || len(p.book.episodes) != 0 || len(p.book.ended) != 0 {
		t.Errorf("stats %+v, entries %v", st, p.book.entries)
	}
	before := *s[1].Probe
	must(t, p.Fill(t.Context(), []*milepost.Episode{ep}, 0)) // what is final stays, and nothing is waited for
	if !reflect.DeepEqual(before, *ep.Steps[1].Probe) || p.Stats().Published != 3 {
		t.Errorf("filled twice: %+v", ep.Steps[1].Probe)
	}
}

func TestFillRepublishesOnResume(t *testing.T) {
	r := newRig(t, false)
	blob, err := r.blobs.Put([]byte("x = 1\n"))
	must(t, err)
	ep := r.episode("e1", 1, 2)
	ep.Steps[1].Delta = []milepost.TreeChange{{Path: "f", Mode: 0o100644, Blob: blob}}
	r.prober.Epoch = 2
	p := r.newProber(WithTasks(func(id string) (*milepost.Task, error) { return r.task, nil }))
	f := &fakeRunner{}
	r.startWorker(f)
	must(t, p.Fill(t.Context(), []*milepost.Episode{ep}, 10*time.Second))
	if !ep.Steps[1].Probe.Trusted || !ep.Steps[3].Probe.Trusted || !ep.Outcome.Verdict.Trusted {
		t.Errorf("%+v", ep)
	}
	if s := p.Stats(); s.Republished != 3 || len(f.trees()) != 2 {
		t.Errorf("stats %+v runs %v", s, f.trees())
	}
	ep = r.episode("e2", 3, 4)
	ep.Task = "other"
	q := r.newProberEpoch(3)
	if err := q.Fill(t.Context(), []*milepost.Episode{ep}, time.Second); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("unknown task: %v", err)
	}
}

func (r *rig) newProberEpoch(epoch uint64, opts ...ProberOption) *Prober {
	r.prober.Epoch = epoch
	return r.newProber(opts...)
}

func TestLateAtTheBarrier(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	release := make(chan struct{})
	r.worker.Slots = 1
	f := &fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		if tree == treeID(2) {
			<-release
		}
		return passed(task, tree), nil
	}}
	r.startWorker(f)
	must(t, p.Publish(t.Context(), r.step("e1", 1, 1)))
	p.Await(t.Context(), []string{"e1/1"}, 10*time.Second)
	must(t, p.Publish(t.Context(), r.step("e1", 3, 2)))
	eventually(t, "the slow one is running", func() bool { return len(f.trees()) == 2 })
	must(t, p.Publish(t.Context(), r.step("e2", 1, 3))) // never gets its turn
	ep, other := r.episode("e1", 1, 2), r.episode("e2", 3, 3)
	other.Steps[3].Probe = nil // changed, and never to be probed
	ep.Outcome.Verdict = &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true}
	other.Outcome.Verdict = ep.Outcome.Verdict
	must(t, p.Fill(t.Context(), []*milepost.Episode{ep, other}, 100*time.Millisecond))
	if !ep.Steps[1].Probe.Trusted {
		t.Errorf("the one that was back: %+v", ep.Steps[1].Probe)
	}
	for _, l := range []*milepost.Probe{ep.Steps[3].Probe, other.Steps[1].Probe} {
		if l.Status != milepost.ProbeLate || l.Trusted || l.Continuity != milepost.ContinuityKept {
			t.Errorf("late: %+v", l)
		}
	}
	s := p.Stats()
	if s.Late != 2 || s.Lost != 0 || s.BarrierWait < 100*time.Millisecond || s.InFlight != 1 {
		t.Errorf("stats %+v", s)
	}
	js := jetStream(t, r.connect())
	eventually(t, "only the running one is left on the stream", func() bool {
		s, err := js.Stream(t.Context(), p.names.probes())
		return err == nil && s.CachedInfo().State.Msgs == 1
	})
	close(release)
	eventually(t, "the late result is in the cache", func() bool { return p.Stats().AfterBarrier == 1 })
	if got := one(t, p, r.step("e3", 0, 2)); !got.Cached {
		t.Errorf("probe %+v", got)
	}
	if n := len(f.trees()); n != 2 {
		t.Errorf("what nobody waits for was run: %v", f.trees())
	}
}

func TestFillPassesOverFailedEpisodes(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	ep := r.episode("e1", 1, 2)
	ep.Status = milepost.EpisodeInfra
	ep.Steps[1].Probe = &milepost.Probe{ID: "e1/1", Status: milepost.ProbeCompleted, Trusted: true}
	must(t, p.Publish(t.Context(), r.step("e1", 3, 2)))
	must(t, p.Fill(t.Context(), []*milepost.Episode{ep}, time.Hour))
	if !ep.Steps[1].Probe.Trusted || ep.Steps[3].Probe.Status != milepost.ProbeCancelled || ep.Outcome.Verdict != nil || p.Stats().Cancelled != 1 {
		t.Errorf("%+v %+v", ep, p.Stats())
	}
}

func TestCancelledFillChangesNothing(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	must(t, p.Publish(t.Context(), r.step("e1", 1, 1)))
	ep := r.episode("e1", 1, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Fill(ctx, []*milepost.Episode{ep}, time.Hour); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("error %v", err)
	}
	if ep.Steps[1].Probe.Status != "" || ep.Outcome.Verdict != nil || p.Stats().Late != 0 {
		t.Errorf("%+v %+v", ep, p.Stats())
	}
	go func() { time.Sleep(50 * time.Millisecond); _ = p.Close() }()
	if err := p.Fill(t.Context(), []*milepost.Episode{ep}, time.Hour); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("closed meanwhile: %v", err)
	}
}

// A retried episode keeps its id; its trees differ.
func TestRequestWithAnotherTreeReplaces(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	must(t, p.Publish(t.Context(), r.step("e1", 1, 1)))
	must(t, p.Publish(t.Context(), r.step("e1", 1, 2)))
	must(t, p.Publish(t.Context(), r.step("e1", 1, 2)))
	r.startWorker(&fakeRunner{})
	if got := p.Await(t.Context(), []string{"e1/1"}, 10*time.Second)["e1/1"]; !got.Trusted || got.Tree != treeID(2) {
		t.Errorf("probe %+v", got)
	}
	if n := p.Stats().Published; n != 2 {
		t.Errorf("%d published", n)
	}
}

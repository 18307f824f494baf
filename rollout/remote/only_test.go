package remote

import (
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

// TestOnly: a worker that samples of one run's weights takes no episodes of others, and is none of their workers.
func TestOnly(t *testing.T) {
	r := newRig(t)
	o := r.orchestrate(1)
	only := func(run string) func(*Worker) { return func(w *Worker) { w.deps.Only = run } }
	r.worker(&fakePolicy{script: script{Turns: 1, Tokens: 1}}, only("another"))
	got := r.start(t.Context(), o, 0, 1)
	list, err := ListWorkers(t.Context(), r.connect(), "milepost", 300*time.Millisecond)
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v %v, want the other run's worker", list, err)
	}
	select {
	case a := <-got:
		t.Fatalf("the worker of another run took the episode: %+v", a)
	case <-time.After(2 * noticeEvery):
	}
	if s := o.Stats(); s.HandedOut != 0 || s.Workers != 0 || s.Waiting != 1 {
		t.Errorf("%+v, want nothing handed out and no worker", s)
	}
	r.worker(&fakePolicy{script: script{Turns: 1, Tokens: 1}}, only("run"))
	if a := receive(t, got, 10*time.Second); a.err != nil || a.ep.Status != milepost.EpisodeCompleted {
		t.Errorf("%+v", a)
	}
	if s := o.Stats(); s.Workers != 1 || s.HandedOut != 1 {
		t.Errorf("%+v, want its own worker alone", s)
	}
}

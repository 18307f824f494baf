package remote

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// TestAMirrorCanAskForTheStatesAsTheyAre: what a notice has not told yet, Settings.Fresh does, and it fails once the run is over.
func TestAMirrorCanAskForTheStatesAsTheyAre(t *testing.T) {
	r := newRig(t)
	o := r.orchestrate(1)
	fresh := make(chan func(context.Context) ([]policy.EndpointState, error), 1)
	model := &fakePolicy{script: script{Turns: 0, Tokens: 1}}
	r.worker(model, func(w *Worker) {
		w.deps.Policy = func(s Settings) (Policy, error) { fresh <- s.Fresh; return model, nil }
	})
	got := r.start(t.Context(), o, 1, 1)
	ask := <-fresh
	for i := range 20 {
		want := policy.EndpointState{URL: "http://a", State: policy.StateOpen, Approved: int32(i), Term: uint64(i)}
		o.pool.set(want)
		if have, err := ask(t.Context()); err != nil || !slices.Equal(have, []policy.EndpointState{want}) {
			t.Fatalf("%+v, %v; want %+v", have, err, want)
		}
	}
	if a := receive(t, got, 20*time.Second); a.err != nil {
		t.Fatal(a.err)
	}
	o.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := ask(ctx); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("the run is over: %v, want KindUnavailable", err)
	}
}

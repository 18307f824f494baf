package remote

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
)

// mirrored is a scripted model whose turns pass through the mirror of the run's pool.
type mirrored struct {
	*fakePolicy
	mirror Policy
}

func (m mirrored) Follow(s []policy.EndpointState) error { return m.mirror.Follow(s) }
func (m mirrored) Close()                                { m.mirror.Close() }

// TestTokensWaitForTheCanaryEverywhere: what a worker samples of new weights leaves its pool when the run's canary agreed, and not
// before; where the run quarantines the server, the sample is dropped and made again at another.
func TestTokensWaitForTheCanaryEverywhere(t *testing.T) {
	r := newRig(t)
	o := r.orchestrate(1)
	state := func(url string, s policy.State, approved int32, term uint64) policy.EndpointState {
		return policy.EndpointState{URL: url, State: s, Approved: approved, Since: policy.NoVersion, Term: term}
	}
	o.pool.set(state("http://a", policy.StateOpen, 1, 1))
	pool := policy.DefaultPoolConfig()
	pool.HealthEvery = time.Hour // nobody is there to be asked
	p, err := NewPolicy(Settings{Rollout: rollout.Default(), Pool: pool, Token: policy.DefaultTokenConfig()})
	must(t, err)
	var at atomic.Value
	var sampled atomic.Int32
	model := &fakePolicy{script: script{Turns: 0, Tokens: 1}, before: func(ctx context.Context, session string) error {
		_, url, err := p.(*tokenPolicy).pool.Sample(ctx, session, func(context.Context, *vllm.Client, string) (*vllm.Generation, error) {
			sampled.Add(1)
			return &vllm.Generation{IDs: []int32{1}, Logprobs: []float32{0}, Versions: []int32{2}, Newest: 2}, nil
		})
		at.Store(url)
		return err
	}}
	r.worker(model, func(w *Worker) {
		w.deps.Policy = func(Settings) (Policy, error) { return mirrored{model, p}, nil }
	})
	for n, c := range []struct {
		then []policy.EndpointState
		url  string
	}{
		{[]policy.EndpointState{state("http://a", policy.StateOpen, 2, 1)}, "http://a"},
		{[]policy.EndpointState{state("http://a", policy.StateQuarantined, 1, 2), state("http://b", policy.StateOpen, 2, 1)}, "http://b"},
	} {
		o.pool.set(state("http://a", policy.StateOpen, 1, 1))
		sampled.Store(0)
		got := r.start(t.Context(), o, n, 1)
		eventually(t, "it is sampled", 10*time.Second, func() bool { return sampled.Load() > 0 })
		select {
		case a := <-got:
			t.Fatalf("an episode with a token that nobody approved ended: %+v", a)
		case <-time.After(300 * time.Millisecond):
		}
		o.pool.set(c.then...)
		if a := receive(t, got, 20*time.Second); a.err != nil || a.ep.Status != milepost.EpisodeCompleted || at.Load() != c.url {
			t.Errorf("%d: at %v, %+v", n, at.Load(), a)
		}
	}
}

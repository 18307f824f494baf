package orchestrator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// flakyRollouts loses the first tries of an episode to infrastructure, so many for each attempt as its number says.
type flakyRollouts struct {
	*world
	mu  sync.Mutex
	ids []string
}

func (f *flakyRollouts) Run(ctx context.Context, task *milepost.Task, spec EpisodeSpec) (*milepost.Episode, error) {
	f.mu.Lock()
	f.ids = append(f.ids, spec.ID)
	f.mu.Unlock()
	ep, err := f.world.Run(ctx, task, spec)
	if err == nil && spec.Retry < spec.Attempt {
		ep.Status, ep.Error = milepost.EpisodeInfra, "a sandbox is gone"
	}
	return ep, err
}

// TestCollectRetriesLostEpisodes: what infrastructure lost is run again under a new id, so often as is allowed, and is
// told of once.
func TestCollectRetriesLostEpisodes(t *testing.T) {
	w := &world{started: map[string]int{}}
	f := &flakyRollouts{world: w}
	tasks, specs := Attempts("eval", []*milepost.Task{{ID: "a", Kind: milepost.BugRepair, Tests: []string{"t"}}}, 4, 1)
	told := 0
	eps, err := Collect(context.Background(), f, lostAware{w}, tasks, specs, Bounds{Concurrency: 2, MaxRetries: 2, Barrier: time.Second}, func(*milepost.Episode) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(f.ids)
	want := "eval/a/0 eval/a/1 eval/a/1+r1 eval/a/2 eval/a/2+r1 eval/a/2+r2 eval/a/3 eval/a/3+r1 eval/a/3+r2"
	if got := strings.Join(f.ids, " "); got != want || told != 4 {
		t.Errorf("ran %s and told of %d, want %s and 4", got, told, want)
	}
	for i, want := range []milepost.EpisodeStatus{milepost.EpisodeCompleted, milepost.EpisodeCompleted, milepost.EpisodeCompleted, milepost.EpisodeInfra} {
		if eps[i].Status != want || eps[i].Outcome.Graded != (want == milepost.EpisodeCompleted) {
			t.Errorf("attempt %d: status %s, graded %v", i, eps[i].Status, eps[i].Outcome.Graded)
		}
	}
}

// lostAware fills no probes of lost episodes, as the prober does.
type lostAware struct{ *world }

func (l lostAware) Fill(ctx context.Context, eps []*milepost.Episode, bound time.Duration) error {
	return l.world.Fill(ctx, slices.DeleteFunc(slices.Clone(eps), func(ep *milepost.Episode) bool { return lost(ep.Status) }), bound)
}

// TestCollectStopsRetryingWhenCancelled: an episode that ends because the caller gave up is not begun again.
func TestCollectStopsRetryingWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	f := &flakyRollouts{world: &world{started: map[string]int{}}}
	tasks, specs := Attempts("eval", []*milepost.Task{{ID: "a"}}, 1, 1)
	specs[0].Attempt = 1 << 20 // never ends well
	cancel()
	_, err := Collect(ctx, f, f.world, tasks, specs, Bounds{Concurrency: 1, MaxRetries: 1 << 30, Barrier: time.Second}, nil)
	if milepost.KindOf(err) != milepost.KindCanceled || len(f.ids) > 1 {
		t.Errorf("%v after %d tries", err, len(f.ids))
	}
}

// TestAcceptWaitsForBaselinesWithinTheBarrier: with no worker alive the error says so, instead of waiting without end.
func TestAcceptWaitsForBaselinesWithinTheBarrier(t *testing.T) {
	engine, err := credit.New(credit.Default())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	w := &world{started: map[string]int{}}
	tasks := map[string]*milepost.Task{"a": {ID: "a", Kind: milepost.BugRepair, Tests: []string{"t"}}}
	ep, err := w.Run(ctx, tasks["a"], EpisodeSpec{ID: "demo/a/0", Group: "demo/a", Task: "a"})
	if err := errors.Join(err, w.Fill(ctx, []*milepost.Episode{ep}, 0)); err != nil {
		t.Fatal(err)
	}
	grade(ep, tasks["a"])
	eps := []*milepost.Episode{ep}
	if kept, err := Accept(ctx, AcceptImproved, eps, tasks, w, engine, time.Second); err != nil || len(kept) != 1 {
		t.Errorf("with a baseline: %d kept, %v", len(kept), err)
	}
	_, err = Accept(ctx, AcceptImproved, eps, tasks, deaf{w}, engine, 10*time.Millisecond)
	if milepost.KindOf(err) != milepost.KindTimeout || !strings.Contains(err.Error(), "the baseline of task a did not come within 10ms") {
		t.Errorf("without: %v", err)
	}
}

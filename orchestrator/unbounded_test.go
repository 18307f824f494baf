package orchestrator

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// together lets episodes go on only once so many are under way, or after a second.
type together struct {
	*world
	under, most atomic.Int32
	wanted      int32
	all         chan struct{}
	once        sync.Once
}

func (f *together) Run(ctx context.Context, task *milepost.Task, spec EpisodeSpec) (*milepost.Episode, error) {
	n := f.under.Add(1)
	defer f.under.Add(-1)
	for m := f.most.Load(); n > m && !f.most.CompareAndSwap(m, n); m = f.most.Load() {
	}
	if n == f.wanted {
		f.once.Do(func() { close(f.all) })
	}
	select {
	case <-f.all:
	case <-time.After(time.Second):
	}
	return f.world.Run(ctx, task, spec)
}

// TestRolloutsThatBoundThemselves: schedule.concurrency bounds the episodes under way unless the rollouts do it by themselves;
// totals of their workers are in the metrics of each update, as changes and as states.
func TestRolloutsThatBoundThemselves(t *testing.T) {
	for unbounded, most := range map[bool]int32{false: 1, true: 4} {
		w := &world{started: map[string]int{}}
		r := newTestRun(t, t.TempDir(), w, 1)
		f := &together{world: w, wanted: most, all: make(chan struct{})}
		r.cfg.Concurrency, r.slots = 1, make(chan struct{}, 1)
		r.deps.Rollouts, r.deps.Unbounded = f, unbounded
		ended := 0.
		r.deps.Workers = func() map[string]float64 { ended += 3; return map[string]float64{"ended": ended, "slots": 7} }
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := f.most.Load(); got != most {
			t.Errorf("unbounded %v: %d episodes at once, want %d", unbounded, got, most)
		}
		lines, err := r.folder.Metrics()
		if err != nil || len(lines) == 0 {
			t.Fatal(lines, err)
		}
		found := 0
		for _, l := range lines {
			if n, ok := l["worker_ended"]; ok {
				found++
				if n <= 0 || l["worker_slots"] != 7 {
					t.Errorf("%v", l)
				}
			}
		}
		if found == 0 {
			t.Error("no metrics of workers")
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

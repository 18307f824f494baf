package rollout_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// TestToolWait makes every tool call take longer, an invalid one not, and ends with the episode.
func TestToolWait(t *testing.T) {
	run := func(wait, wall time.Duration) *milepost.Episode {
		t.Helper()
		w := memoryWorld(t, nil)
		w.cfg.ToolWait, w.cfg.Wall = wait, wall
		deps := w.deps(&script{turns: []say{call("search", `{"query":"add"}`), call("nosuch", `{}`), call("search", `{"query":"add"}`)}})
		deps.Clock, deps.Log = rollout.SystemClock{}, slog.New(slog.DiscardHandler)
		r, err := rollout.New(w.cfg, deps)
		if err != nil {
			t.Fatal(err)
		}
		e, err := r.Run(t.Context(), rollout.Request{Episode: "e1", Group: "g", Task: w.task})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	const wait = 300 * time.Millisecond
	e := run(wait, time.Minute)
	if len(e.Steps) != 4 || e.Stop != milepost.StopSubmit {
		t.Fatalf("%d steps, stopped by %s", len(e.Steps), e.Stop)
	}
	for i, s := range e.Steps {
		if waited := s.ToolTime >= wait; waited != s.Valid {
			t.Errorf("step %d, valid %v, took %v", i, s.Valid, s.ToolTime)
		}
	}
	if e := run(time.Hour, wait); e.Stop != milepost.StopWall || len(e.Steps) != 1 || !e.Steps[0].Executed {
		t.Errorf("%d steps, stopped by %s", len(e.Steps), e.Stop)
	}
}

package evaluate

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

// tries counts how often each attempt is made.
type tries struct {
	mu    sync.Mutex
	count map[string]int
}

func (t *tries) add(id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count == nil {
		t.count = map[string]int{}
	}
	t.count[id]++
	return t.count[id]
}

func runnerOf(t *testing.T, path string, tasks []*milepost.Task, n int, try func(Attempt, int) (*Record, *Loss, error)) *Runner {
	j := open(t, path)
	must(t, j.Start(startOf(tasks, n)))
	t.Cleanup(func() { _ = j.Close() })
	return &Runner{Journal: j, Concurrency: 4, Retries: 2, GiveUp: 50, Try: func(ctx context.Context, a Attempt, retry int) (*Record, *Loss, error) {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		return try(a, retry)
	}}
}

// TestRunRepeatsOnlyWhatIsMissing: a run that stops in the middle, and then another, make every attempt to its end once;
// losses are tried again within a run, at most so often.
func TestRunRepeatsOnlyWhatIsMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	tasks := tasksOf(10)
	plan := Plan(tasks, 3, 1)
	var made, lost tries
	stop := errors.New("stop")
	finished := 0
	var mu sync.Mutex
	try := func(a Attempt, retry int) (*Record, *Loss, error) {
		if a.Index == 2 && lost.add(a.ID) <= 2 { // twice lost, then made good
			return nil, NewLoss("sandbox", "unavailable", "disk full"), nil
		}
		if a.ID == "t03/1" { // lost to the end
			lost.add(a.ID)
			return nil, NewLoss("endpoint", "unavailable", "refused"), nil
		}
		mu.Lock()
		defer mu.Unlock()
		if finished++; finished == 14 {
			return nil, nil, stop
		}
		made.add(a.ID)
		r := recordOf(a.Task.ID, a.Index, a.Index == 0)
		return &r, nil, nil
	}
	r := runnerOf(t, path, tasks, 3, try)
	if err := r.Run(t.Context(), plan); !errors.Is(err, stop) {
		t.Fatalf("%v", err)
	}
	must(t, r.Journal.Close())
	before := len(made.count)
	r = runnerOf(t, path, tasks, 3, try)
	must(t, r.Run(t.Context(), plan), r.Journal.Close())
	h, err := ReadJournal(path)
	must(t, err)
	if before < 10 || len(h.Records) != 29 || len(made.count) != 29 {
		t.Errorf("%d attempts before, %d made, %d records", before, len(made.count), len(h.Records))
	}
	for id, n := range made.count {
		if n != 1 {
			t.Errorf("%s was made %d times", id, n)
		}
	}
	if len(h.Losses) != 1 || h.Losses[0].ID != "t03/1" || h.Losses[0].Retry != 2 || !strings.Contains(h.Losses[0].Reason, "refused") {
		t.Errorf("losses %+v", h.Losses)
	}
	result, err := Compute(tasks, h, Prices{})
	must(t, err)
	if result.Graded != 29 || result.Infra != 1 || result.Open != 0 || result.LostBy["endpoint: unavailable"] != 1 || result.Retried < 20 || result.Cost != nil {
		t.Errorf("result: graded %d, infra %d, open %d, %v, retried %d, cost %v", result.Graded, result.Infra, result.Open, result.LostBy, result.Retried, result.Cost)
	}
}

func TestRunGivesUp(t *testing.T) {
	tasks := tasksOf(30)
	var made tries
	r := runnerOf(t, filepath.Join(t.TempDir(), "journal.jsonl"), tasks, 2, func(a Attempt, _ int) (*Record, *Loss, error) {
		made.add(a.ID)
		return nil, NewLoss("endpoint", "unavailable", "connection refused"), nil
	})
	r.GiveUp = 8
	err := r.Run(t.Context(), Plan(tasks, 2, 1))
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "lost the last 8 attempts") || !strings.Contains(err.Error(), "connection refused") || len(made.count) > 12 {
		t.Errorf("%v after %d attempts", err, len(made.count))
	}
}

func TestRunIsCancelled(t *testing.T) {
	tasks := tasksOf(5)
	ctx, cancel := context.WithCancel(t.Context())
	r := runnerOf(t, filepath.Join(t.TempDir(), "journal.jsonl"), tasks, 2, func(a Attempt, _ int) (*Record, *Loss, error) {
		cancel()
		rec := recordOf(a.Task.ID, a.Index, true)
		return &rec, nil, nil
	})
	if err := r.Run(ctx, Plan(tasks, 2, 1)); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("%v", err)
	}
}

// TestSeedsStay: other tasks and more attempts leave an attempt's seed as it is; two attempts have two.
func TestSeedsStay(t *testing.T) {
	tasks := tasksOf(6)
	few, many := map[string]int64{}, map[int64]string{}
	for _, a := range Plan(tasks[3:], 2, 7) {
		few[a.ID] = a.Seed
	}
	for _, a := range Plan(tasks, 5, 7) {
		if other, twice := many[a.Seed]; twice || a.Seed < 0 || a.Seed >= 1<<53 {
			t.Errorf("%s has seed %d, as %q", a.ID, a.Seed, other)
		}
		many[a.Seed] = a.ID
		if s, ok := few[a.ID]; ok && s != a.Seed {
			t.Errorf("%s: seed %d, with other tasks %d", a.ID, a.Seed, s)
		}
	}
}

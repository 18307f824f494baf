package orchestrator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// world stands in for rollouts, probes, trainer and servers; crash makes the n-th call fail like a killed process.
type world struct {
	mu      sync.Mutex
	calls   int
	crash   int
	state   []string // ids of the batches in the trainer's weights
	served  string
	started map[string]int
}

var errCrash = errors.New("crash")

func (w *world) tick() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if w.crash > 0 && w.calls >= w.crash {
		return errCrash
	}
	return nil
}

func (w *world) Run(_ context.Context, task *milepost.Task, spec EpisodeSpec) (*milepost.Episode, error) {
	if err := w.tick(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.started[spec.ID]++
	w.mu.Unlock()
	return &milepost.Episode{
		ID: spec.ID, Group: spec.Group, Task: task.ID, Attempt: spec.Attempt, Status: milepost.EpisodeCompleted, Stop: milepost.StopSubmit,
		Steps:   []milepost.Step{{Valid: true, Executed: true, TokenStart: 1, TokenEnd: 2, Probe: &milepost.Probe{ID: spec.ID + "/0"}}},
		Samples: []milepost.Sample{{Tokens: []int32{1, 2}, Logprobs: []float32{0, -1}, Versions: []int32{-1, 0}, Steps: []int32{-1, 0}}},
		Outcome: milepost.Outcome{Verdict: &milepost.Probe{ID: spec.ID + "/verdict"}},
	}, nil
}

func (w *world) Baseline(context.Context, *milepost.Task) (*milepost.Probe, error) {
	return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: milepost.TestReport{milepost.Failed}}, nil
}

func (w *world) Fill(_ context.Context, eps []*milepost.Episode, _ time.Duration) error {
	if err := w.tick(); err != nil {
		return err
	}
	for _, ep := range eps {
		state := milepost.Failed
		if ep.Attempt%2 == 0 {
			state = milepost.Passed
		}
		p := &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: milepost.TestReport{state}}
		ep.Steps[0].Probe, ep.Outcome.Verdict = p, p
	}
	return nil
}

func (w *world) Stats() map[string]float64 { return map[string]float64{} }

func (w *world) WriteBatch(path string, rows []Row) (string, error) {
	b, err := json.Marshal(rows)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), os.WriteFile(path, b, 0o644)
}

func (w *world) Update(_ context.Context, u int, path, _ string) (map[string]float64, error) {
	if err := w.tick(); err != nil {
		return nil, err
	}
	w.state = append(w.state, filepath.Base(path))
	return map[string]float64{"loss": 1, "update": float64(u)}, nil
}

func (w *world) Save(_ context.Context, dir string) error {
	if err := w.tick(); err != nil {
		return err
	}
	b, _ := json.Marshal(w.state)
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "state"), b, 0o644))
}

func (w *world) Load(_ context.Context, dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	w.state = nil
	return json.Unmarshal(b, &w.state)
}

func (w *world) Export(ctx context.Context, dir string) error { return w.Save(ctx, dir) }

func (w *world) Push(_ context.Context, _ int32, dir string) (map[string]float64, error) {
	if err := w.tick(); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "state"))
	w.served = string(b)
	return map[string]float64{"canary_gap_mean": 0}, err
}

// testFolder is a run folder in dir with a model that the fake trainer can load, and the default engine.
func testFolder(t *testing.T, dir string) (*Folder, *credit.Engine) {
	t.Helper()
	model := filepath.Join(dir, "model")
	if err := errors.Join(os.MkdirAll(model, 0o755), os.WriteFile(filepath.Join(model, "state"), []byte("[]"), 0o644)); err != nil {
		t.Fatal(err)
	}
	folder, err := OpenFolder(filepath.Join(dir, "run"), Header{Name: "t", Seed: 3, Model: model})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := credit.New(credit.Default())
	if err != nil {
		t.Fatal(err)
	}
	return folder, engine
}

func newTestRun(t *testing.T, dir string, w *world, checkpointEvery int) *Runner {
	t.Helper()
	folder, engine := testFolder(t, dir)
	cfg := DefaultConfig()
	cfg.GroupsPerUpdate, cfg.GroupSize, cfg.MaxUpdates, cfg.EvalEvery, cfg.CheckpointEvery = 2, 2, 4, 2, checkpointEvery
	var tasks []*milepost.Task
	for _, id := range []string{"a", "b", "v", "h"} {
		tasks = append(tasks, &milepost.Task{ID: id, Kind: milepost.BugRepair, Tests: []string{"t"}})
	}
	split := Tasks{Train: []string{"a", "b"}, Validation: []string{"v"}, Heldout: []string{"h"}}
	r, err := NewRunner(cfg, folder, 3, split, tasks, engine, Deps{Rollouts: w, Probes: w, Learner: w, Weights: w, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRunResumesFromEveryCrash stops a run at its n-th outside call, for every n, resumes it, and expects the weights'
// lineage to hold each batch once, in order, and the whole run to end.
func TestRunResumesFromEveryCrash(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, every := range []int{1, 3} {
		for crash := 1; ; crash++ {
			w := &world{crash: crash, started: map[string]int{}}
			dir := t.TempDir()
			r := newTestRun(t, dir, w, every)
			err := r.Run(context.Background())
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if err == nil {
				if crash < 20 {
					t.Fatalf("the run ended before the crash at call %d", crash)
				}
				break
			}
			resumed := &world{started: map[string]int{}}
			r = newTestRun(t, dir, resumed, every)
			if err := r.Run(context.Background()); err != nil {
				t.Fatalf("resume after a crash at call %d: %v", crash, err)
			}
			checkLineage(t, r, crash)
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func checkLineage(t *testing.T, r *Runner, crash int) {
	t.Helper()
	l, err := r.lineage()
	if err != nil {
		t.Fatal(err)
	}
	var state []string
	b, err := os.ReadFile(filepath.Join(l.load, "state"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &state); err != nil {
		t.Fatal(err)
	}
	for _, e := range l.replay {
		state = append(state, filepath.Base(e.Batch))
	}
	want := []string{"u0001.arrow", "u0002.arrow", "u0003.arrow", "u0004.arrow"}
	if fmt.Sprint(state) != fmt.Sprint(want) {
		t.Errorf("crash at %d: the weights hold %v, want %v", crash, state, want)
	}
	records, err := journal.Read(r.folder.Path("journal.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	ended := map[string]int{}
	for _, rec := range records {
		var e Event
		if err := json.Unmarshal(rec.Data, &e); err != nil {
			t.Fatal(err)
		}
		if e.Type == EventEpisodeEnded {
			ended[e.Episode]++
		}
	}
	if len(ended) != 4*4+4+4+3 {
		t.Errorf("crash at %d: %d episodes ended, want 27", crash, len(ended))
	}
	for id, n := range ended {
		if n != 1 {
			t.Errorf("crash at %d: episode %s ended %d times", crash, id, n)
		}
	}
}

func TestFolderOfAnotherRunIsRefused(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenFolder(dir, Header{Seed: 1, Model: "m"}); err != nil {
		t.Fatal(err)
	}
	first, err := (&Folder{Dir: dir}).Header()
	if err != nil || first.ID == "" {
		t.Fatalf("header %+v, %v", first, err)
	}
	if _, err := OpenFolder(dir, Header{Seed: 1, Model: "m"}); err != nil {
		t.Fatal(err)
	}
	if again, err := (&Folder{Dir: dir}).Header(); err != nil || again != first {
		t.Errorf("opened again the header is %+v (%v), was %+v", again, err, first)
	}
	other := t.TempDir()
	if _, err := OpenFolder(other, Header{Seed: 1, Model: "m"}); err != nil {
		t.Fatal(err)
	}
	if h, err := (&Folder{Dir: other}).Header(); err != nil || h.ID == first.ID {
		t.Errorf("another run has id %q too (%v)", h.ID, err)
	}
	if _, err := OpenFolder(dir, Header{Seed: 2, Model: "m"}); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("another seed: %v", err)
	}
}

func TestTwoRunsAtOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "j")
	j, _, _, err := journal.Open(path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, _, _, err := journal.Open(path, time.Now); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("second opening: %v", err)
	}
}

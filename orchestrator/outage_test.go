package orchestrator

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// outageWorld loses every training episode to infrastructure while down.
type outageWorld struct {
	*world
	down bool
}

func (w *outageWorld) Run(ctx context.Context, task *milepost.Task, spec EpisodeSpec) (*milepost.Episode, error) {
	ep, err := w.world.Run(ctx, task, spec)
	if err == nil && w.down && spec.Purpose == PurposeTrain {
		ep.Status, ep.Error = milepost.EpisodeInfra, "no endpoint is left"
	}
	return ep, err
}

// TestOutageStopsTheRun: a batch of which nothing is left stops the run, again on a resume while the outage lasts, and
// the run goes on to its end afterwards.
func TestOutageStopsTheRun(t *testing.T) {
	dir := t.TempDir()
	w := &outageWorld{world: &world{started: map[string]int{}}, down: true}
	for range 2 {
		r := newTestRun(t, dir, w.world, 1)
		r.deps.Rollouts = w
		err := errors.Join(r.Run(context.Background()), r.Close())
		if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "every episode of u0001 was lost") || !strings.Contains(err.Error(), "no endpoint is left") {
			t.Fatalf("during the outage: %v", err)
		}
	}
	w.down = false
	r := newTestRun(t, dir, w.world, 1)
	r.deps.Rollouts = w
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatalf("after the outage: %v", err)
	}
	if r.machine.Phase() != PhaseDone || r.machine.Update() != 4 {
		t.Errorf("phase %s, update %d", r.machine.Phase(), r.machine.Update())
	}
}

// deaf has no worker for baselines: they never come.
type deaf struct{ *world }

func (deaf) Baseline(ctx context.Context, _ *milepost.Task) (*milepost.Probe, error) {
	<-ctx.Done()
	return nil, milepost.Wrap("baseline", milepost.KindTimeout, ctx.Err())
}

// TestMissingBaselinesDoNotHoldTheBatch: the barrier bounds baselines too.
func TestMissingBaselinesDoNotHoldTheBatch(t *testing.T) {
	w := &world{started: map[string]int{}}
	r := newTestRun(t, t.TempDir(), w, 1)
	r.cfg.Barrier, r.deps.Probes = 10*time.Millisecond, deaf{w}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := errors.Join(r.Run(ctx), r.Close()); err != nil {
		t.Fatal(err)
	}
	records, err := r.folder.ReadEpisodes("u0001")
	if err != nil || records[0].Baseline == nil || records[0].Baseline.Status != milepost.ProbeLate {
		t.Errorf("the baseline on record: %+v (%v)", records[0].Baseline, err)
	}
}

// TestUngradedValidationSaysNothing: a validation without any verdict is neither the best nor counted by patience.
func TestUngradedValidationSaysNothing(t *testing.T) {
	m, err := NewMachine(DefaultConfig(), Tasks{Train: []string{"a"}, Validation: []string{"v"}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m.phase = PhaseValidating
	m.evaluated(Event{Type: EventEvaluated, Eval: "validation-0"})
	if _, rate := m.Best(); rate != -1 || m.sinceBest != 0 {
		t.Errorf("rate %g, %d since the best; want -1 and 0", rate, m.sinceBest)
	}
	h := History{BestRate: -1}
	if h.take(Event{Type: EventEvaluated, Eval: "validation-0"}); h.BestRate != -1 {
		t.Errorf("the history's best rate is %g, want -1", h.BestRate)
	}
}

// TestRetentionBeyondFourDigits: the newest is kept where the zero padding ends.
func TestRetentionBeyondFourDigits(t *testing.T) {
	f := &Folder{Dir: t.TempDir()}
	for _, u := range []int{9998, 9999, 10000} {
		if err := errors.Join(os.MkdirAll(f.Checkpoint(u), 0o755), os.MkdirAll(f.WeightsDir(int32(u)), 0o755),
			os.MkdirAll(f.Path("batches"), 0o755), os.WriteFile(f.Path("batches", updateBatch(u)+".arrow"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	var gone []string
	for _, p := range f.Surplus(Retention{Checkpoints: 1, Weights: 1, Batches: 1}) {
		gone = append(gone, strings.TrimPrefix(p, f.Dir+"/"))
	}
	const want = "checkpoints/u9998 checkpoints/u9999 weights/v9998 weights/v9999 batches/u9998.arrow batches/u9999.arrow"
	if got := strings.Join(gone, " "); got != want {
		t.Errorf("surplus: %s, want %s", got, want)
	}
}

// TestMetricsAfterATornLine: a line torn by a crash does not take the next one with it.
func TestMetricsAfterATornLine(t *testing.T) {
	f := &Folder{Dir: t.TempDir()}
	path := f.Path("metrics.jsonl")
	if err := os.WriteFile(path, []byte(`{"update":1,"values":{"a":1}}`+"\n"+`{"update":999999999,"values":{}}`+"\n"+`{"update":2,"val`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := AppendLine(path, []byte(`{"update":2,"values":{"a":2}}`)); err != nil {
		t.Fatal(err)
	}
	got, err := f.Metrics()
	if err != nil || len(got) != 3 || got[1]["a"] != 1 || got[2]["a"] != 2 {
		t.Errorf("metrics %v (%v)", got, err)
	}
}

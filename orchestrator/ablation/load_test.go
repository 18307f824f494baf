package ablation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// world is a run's surroundings made of arithmetic: an episode takes one step of three tokens and is resolved where
// its attempt's number, from 0, is at most the version of the weights. The folder is written by the orchestrator itself.
type world struct {
	now     time.Time
	version int32
	updates int // that may be made; the next fails
}

func (w *world) clock() time.Time {
	w.now = w.now.Add(time.Second)
	return w.now
}

func (w *world) Run(_ context.Context, task *milepost.Task, spec orchestrator.EpisodeSpec) (*milepost.Episode, error) {
	report := milepost.TestReport{milepost.Failed}
	if spec.Attempt <= int(w.version) {
		report = milepost.TestReport{milepost.Passed}
	}
	return &milepost.Episode{ID: spec.ID, Group: spec.Group, Task: task.ID, Attempt: spec.Attempt, Status: milepost.EpisodeCompleted, Stop: milepost.StopSubmit,
		Steps:   []milepost.Step{{Valid: true, Executed: true, TokenStart: 1, TokenEnd: 4, Action: milepost.Action{Tool: "edit_file"}, Changed: []string{"a.py"}, Probe: &milepost.Probe{ID: spec.ID, Report: report}}},
		Samples: []milepost.Sample{{Tokens: make([]int32, 4), Logprobs: make([]float32, 4), Versions: make([]int32, 4), Steps: []int32{-1, 0, 0, 0}}},
		Outcome: milepost.Outcome{Verdict: &milepost.Probe{ID: spec.ID + "/verdict", Report: report}},
	}, nil
}

func (w *world) Baseline(context.Context, *milepost.Task) (*milepost.Probe, error) {
	return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: milepost.TestReport{milepost.Failed}}, nil
}

func (w *world) Fill(_ context.Context, eps []*milepost.Episode, _ time.Duration) error {
	for _, ep := range eps {
		for _, p := range []*milepost.Probe{ep.Steps[0].Probe, ep.Outcome.Verdict} {
			p.Status, p.Trusted = milepost.ProbeCompleted, true
		}
	}
	return nil
}

func (w *world) Stats() map[string]float64 { return nil }
func (w *world) WriteBatch(path string, rows []orchestrator.Row) (string, error) {
	return "0", os.WriteFile(path, fmt.Append(nil, len(rows)), 0o644)
}
func (w *world) Update(_ context.Context, u int, _, _ string) (map[string]float64, error) {
	if u > w.updates {
		return nil, errors.New("the trainer is gone")
	}
	return map[string]float64{"entropy": float64(u)}, nil
}
func (w *world) Save(_ context.Context, dir string) error     { return os.MkdirAll(dir, 0o755) }
func (w *world) Load(context.Context, string) error           { return nil }
func (w *world) Export(ctx context.Context, dir string) error { return w.Save(ctx, dir) }
func (w *world) Push(_ context.Context, v int32, _ string) (map[string]float64, error) {
	w.version = v
	return map[string]float64{"canary_gap_mean": 0}, nil
}

// makeRun makes a run as ablations do: 4 updates of 2 groups of 8, validated on the held-out tasks after every second.
// The trainer fails after some updates.
func makeRun(t *testing.T, updates int, change func(*orchestrator.Config)) *orchestrator.Folder {
	t.Helper()
	f, err := orchestrator.OpenFolder(t.TempDir(), orchestrator.Header{Name: "arm", Seed: 5, Model: "cold"})
	if err != nil {
		t.Fatal(err)
	}
	c := orchestrator.DefaultConfig()
	c.GroupsPerUpdate, c.GroupSize, c.MaxUpdates, c.EvalEvery, c.Concurrency, c.EvalSamples, c.ValidationSamples = 2, 8, 4, 2, 1, 8, 4
	c.EvalBefore, c.Final = false, orchestrator.FinalLast
	if change != nil {
		change(&c)
	}
	var tasks []*milepost.Task
	for _, id := range []string{"t0", "t1", "h0", "h1"} {
		tasks = append(tasks, &milepost.Task{ID: id, Kind: milepost.BugRepair, Tests: []string{"t.T.test"}})
	}
	engine, err := credit.New(credit.Default())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), updates: updates}
	heldout := []string{"h0", "h1"}
	split := orchestrator.Tasks{Train: []string{"t0", "t1"}, Validation: heldout, Heldout: heldout}
	r, err := orchestrator.NewRunner(c, f, 5, split, tasks, engine, orchestrator.Deps{Rollouts: w, Probes: w, Learner: w, Weights: w, Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	err = r.Run(context.Background())
	if (err == nil) != (updates >= c.MaxUpdates) {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return f
}

func load(t *testing.T, f *orchestrator.Folder) Run {
	t.Helper()
	r, err := LoadRun(f, 5)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func heldouts(r Run) string {
	var out []string
	for _, p := range r.Points {
		if p.Heldout != nil {
			out = append(out, fmt.Sprintf("%d:%g", p.Update, *p.Heldout))
		}
	}
	return strings.Join(out, " ")
}

func TestLoadFinishedRun(t *testing.T) {
	f := makeRun(t, 4, nil)
	r := load(t, f)
	if !r.Finished || r.Stop != "max_updates: 4 updates are done" || r.Seed != 5 || r.Dir != f.Dir || r.FinalUpdate != 4 || len(r.Points) != 4 {
		t.Errorf("run: %+v", r)
	}
	if r.Cost.Episodes != 64 || r.Cost.Tokens != 192 || r.Cost.Probes != 64 {
		t.Errorf("cost: %+v, want 4 × 2 × 8 episodes of 3 tokens with a probe each", r.Cost)
	}
	active := 0.0
	for i, p := range r.Points {
		u := float64(i + 1) // sampled by version u−1: u of 8 attempts are resolved
		if p.Update != i+1 || p.Episodes != 16*(i+1) || p.Tokens != int64(48*(i+1)) || p.Train != u/8 || p.Reward != u/8 || p.Entropy != u || p.Turns != 1 || p.SubmittedRate != 1 || p.EditedRate == nil || *p.EditedRate != 1 || p.GroupsWithoutSignal != 0 {
			t.Errorf("point %d: %+v", i, p)
		}
		if p.Active <= active || p.Active > r.Cost.Active {
			t.Errorf("point %d is at %v s, behind %v, of %v", i, p.Active, active, r.Cost.Active)
		}
		active = p.Active
	}
	// Version 2 resolves 3 of the validation's 4 attempts; the final evaluation of version 4, 5 of 8, takes the place of
	// the validation after the same update.
	if got := heldouts(r); got != "2:0.75 4:0.625" || r.Points[1].Tasks["h1"] != .75 || len(r.Final.Tasks["h0"]) != 8 {
		t.Errorf("held-out curve %s", got)
	}
	if err := r.validate("run"); err != nil {
		t.Error(err)
	}
}

// TestLoadFinalOfOlderWeights: the best weights are those of update 2 where the later ones lose attempts.
func TestLoadFinalOfOlderWeights(t *testing.T) {
	f := makeRun(t, 4, func(c *orchestrator.Config) { c.Final = orchestrator.FinalBest; c.ValidationSamples = 3 })
	r := load(t, f)
	// Versions 2 and 4 resolve all 3 attempts; the first of equals is the best.
	if r.FinalUpdate != 2 || heldouts(r) != "2:1 4:1" || meanOf(taskRates(*r.Final)) != 3./8 {
		t.Errorf("final of update %d, curve %s, final %v", r.FinalUpdate, heldouts(r), r.Final.Tasks)
	}
}

func TestLoadWithTheStartMeasured(t *testing.T) {
	r := load(t, makeRun(t, 4, func(c *orchestrator.Config) { c.EvalBefore = true }))
	if len(r.Points) != 5 || r.Points[0].Update != 0 || r.Points[0].Episodes != 0 {
		t.Errorf("points: %+v", r.Points)
	}
	// The validation of version 0 comes behind the evaluation of the start and takes its place: 1 of 4 attempts.
	if got := heldouts(r); got != "0:0.25 2:0.75 4:0.625" {
		t.Errorf("held-out curve %s", got)
	}
}

func TestLoadUnfinishedRun(t *testing.T) {
	r := load(t, makeRun(t, 2, nil))
	if r.Finished || r.Stop != "" || r.Final != nil || len(r.Points) != 3 || heldouts(r) != "2:0.75" || r.Cost.Episodes != 48 {
		t.Errorf("a run whose third batch was never trained: %+v", r)
	}
	if err := r.validate("run"); err != nil {
		t.Error(err)
	}
	empty := load(t, &orchestrator.Folder{Dir: t.TempDir()})
	if empty.Finished || len(empty.Points) != 0 || empty.Seed != 5 {
		t.Errorf("a run that has not begun: %+v", empty)
	}
}

func TestLoadDamagedRun(t *testing.T) {
	whole := makeRun(t, 4, nil)
	for want, c := range map[string]struct {
		kind   milepost.Kind
		damage func(f *orchestrator.Folder) error
	}{
		"metrics.jsonl lacks the batch of update 1": {milepost.KindCorrupt, func(f *orchestrator.Folder) error { return os.Remove(f.Path("metrics.jsonl")) }},
		"evals/validation-2.json": {milepost.KindCorrupt, func(f *orchestrator.Folder) error {
			return os.WriteFile(f.Path("evals", "validation-2.json"), []byte("{"), 0o644)
		}},
		"validation-2.json: no such file": {milepost.KindNotFound, func(f *orchestrator.Folder) error { return os.Remove(f.Path("evals", "validation-2.json")) }},
		"result.json":                     {milepost.KindCorrupt, func(f *orchestrator.Folder) error { return os.WriteFile(f.Path("result.json"), nil, 0o644) }},
		"made by an older program": {milepost.KindInvalid, func(f *orchestrator.Folder) error {
			return rewriteJournal(f.Path("journal.jsonl"), func(e *orchestrator.Event) { e.Tokens = 0 })
		}},
	} {
		f := &orchestrator.Folder{Dir: t.TempDir()}
		if err := errors.Join(os.CopyFS(f.Dir, os.DirFS(whole.Dir)), c.damage(f)); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadRun(f, 5); milepost.KindOf(err) != c.kind || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s of kind %s", err, want, c.kind)
		}
	}
}

// rewriteJournal changes every event of a journal.
func rewriteJournal(path string, change func(*orchestrator.Event)) error {
	records, err := journal.Read(path)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	j, _, _, err := journal.Open(path, time.Now)
	if err != nil {
		return err
	}
	for _, rec := range records {
		var e orchestrator.Event
		if err := json.Unmarshal(rec.Data, &e); err != nil {
			return err
		}
		change(&e)
		if _, err := j.Append(rec.Type, e); err != nil {
			return err
		}
	}
	return j.Close()
}

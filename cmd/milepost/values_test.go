package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// puppet stands in for all that samples and tests, so that a whole run needs no server: episodes of two steps whose
// prefix breaks between them, with tokens drawn by the episode's id and the trainer's own logprobs. failAt is the version
// whose push fails once.
type puppet struct {
	trainer *trainer
	failAt  int32
}

func (p *puppet) Run(ctx context.Context, task *milepost.Task, spec orchestrator.EpisodeSpec) (*milepost.Episode, error) {
	h := fnv.New64a()
	fmt.Fprint(h, spec.ID)
	draw := rand.New(rand.NewPCG(h.Sum64(), 1))
	ep := &milepost.Episode{ID: spec.ID, Group: spec.Group, Task: task.ID, Attempt: spec.Attempt, Status: milepost.EpisodeCompleted, Stop: milepost.StopSubmit,
		Outcome: milepost.Outcome{Verdict: &milepost.Probe{ID: spec.ID}}}
	for step := range 2 {
		s := milepost.Sample{}
		for t := range 24 {
			s.Tokens, s.Steps, s.Versions = append(s.Tokens, draw.Int32N(256)), append(s.Steps, -1), append(s.Versions, -1)
			if t >= 16 {
				s.Steps[t], s.Versions[t] = int32(step), int32(spec.Update-1)
			}
		}
		scored, err := p.trainer.Score(ctx, [][]int32{s.Tokens})
		if err != nil {
			return nil, err
		}
		s.Logprobs = make([]float32, 24)
		copy(s.Logprobs[16:], scored[0][16:])
		ep.Samples = append(ep.Samples, s)
		ep.Steps = append(ep.Steps, milepost.Step{Index: step, Valid: step == 0, Executed: true, Sample: step, TokenStart: 16, TokenEnd: 24})
	}
	return ep, nil
}

func (p *puppet) Baseline(context.Context, *milepost.Task) (*milepost.Probe, error) {
	return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: milepost.TestReport{milepost.Failed}}, nil
}

func (p *puppet) Fill(_ context.Context, eps []*milepost.Episode, _ time.Duration) error {
	for _, ep := range eps {
		report := milepost.TestReport{milepost.Failed}
		if ep.Attempt%2 == 0 {
			report[0] = milepost.Passed
		}
		ep.Outcome.Verdict = &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: report}
	}
	return nil
}

func (p *puppet) Stats() map[string]float64 { return map[string]float64{} }

var errPush = errors.New("the server is gone")

func (p *puppet) Push(_ context.Context, version int32, _ string) (map[string]float64, error) {
	if version > 0 && version == p.failAt {
		p.failAt = 0
		return nil, errPush
	}
	return map[string]float64{}, nil
}

// valueRun is a run in dir, up to the push that fails or to the end.
func valueRun(t *testing.T, cfg configs.Run, tr *trainer, p *puppet) error {
	t.Helper()
	folder, err := orchestrator.OpenFolder(cfg.Run.Dir, orchestrator.Header{Name: "v", Seed: 1, Model: cfg.Model})
	if err != nil {
		t.Fatal(err)
	}
	var tasks []*milepost.Task
	for _, id := range []string{"a", "b"} {
		tasks = append(tasks, &milepost.Task{ID: id, Kind: milepost.BugRepair, Tests: []string{"t"}})
	}
	owned := *tr
	owned.cfg = cfg
	p.trainer = &owned
	r, err := newRunner(cfg, folder, orchestrator.Tasks{Train: []string{"a", "b"}}, tasks,
		orchestrator.Deps{Rollouts: p, Probes: p, Learner: &owned, Weights: p, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return errors.Join(r.Run(t.Context()), r.Close())
}

// TestTrainingWithAValueHead runs ppo_gae from the configuration to the weights with the real trainer, once through and
// once broken off before a checkpoint: the resumed run has to replay an update, and its later values, batches and weights
// are then the same bytes. The credit of the run can be derived again.
func TestTrainingWithAValueHead(t *testing.T) {
	dir := t.TempDir()
	cfg, err := configs.Load("quickstart", []string{
		"credit.estimator=ppo_gae", "schedule.groups_per_update=2", "schedule.group_size=2", "schedule.concurrency=1",
		"schedule.max_updates=3", "schedule.checkpoint_every=3", "schedule.eval_every=0", "update.value.lr=.2", "update.optimizer.lr=.003",
		"update.epochs=2", "update.warmup=0", "credit.gae_lambda=.9", "rft.model.layers=1", "rft.model.width=32", "rft.model.heads=1", "rft.model.key_value_heads=1",
	})
	if err != nil {
		t.Fatal(err)
	}
	demos := filepath.Join(dir, "demos.txt")
	if err := os.WriteFile(demos, []byte(strings.Repeat("def add(a, b): return a + b\n", 200)), 0o644); err != nil {
		t.Fatal(err)
	}
	tr, err := startTrainer(t.Context(), cfg, filepath.Join(dir, "logs"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.close(); err != nil {
			t.Error(err)
		}
	}()
	cfg.Model = filepath.Join(dir, "model")
	if err := createModel(t.Context(), cfg, tr, demos, cfg.Model, newProgress(io.Discard)); err != nil {
		t.Fatal(err)
	}
	through, broken := cfg, cfg
	through.Run.Dir, broken.Run.Dir = filepath.Join(dir, "through"), filepath.Join(dir, "broken")
	if err := valueRun(t, through, tr, &puppet{}); err != nil {
		t.Fatal(err)
	}
	p := &puppet{failAt: 2}
	if err := valueRun(t, broken, tr, p); !errors.Is(err, errPush) {
		t.Fatalf("the push that fails: %v", err)
	}
	if err := valueRun(t, broken, tr, p); err != nil {
		t.Fatal(err)
	}
	want, got := batchHashes(t, through.Run.Dir), batchHashes(t, broken.Run.Dir)
	if len(want) != 3 || fmt.Sprint(want) != fmt.Sprint(got) {
		t.Errorf("batches %v, resumed %v", want, got)
	}
	checkRunWithValues(t, through.Run.Dir, broken.Run.Dir)
	engine, err := credit.New(cfg.Credit)
	if err != nil {
		t.Fatal(err)
	}
	folder := &orchestrator.Folder{Dir: through.Run.Dir}
	err = folder.Recompute(engine, func(batch string, got credit.Result) error {
		records, err := folder.ReadEpisodes(batch)
		for i, rec := range records {
			if !reflect.DeepEqual(*rec.Credit, got.Episodes[i]) {
				t.Errorf("%s: recorded %+v, recomputed %+v", rec.Episode.ID, *rec.Credit, got.Episodes[i])
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDemonstrationsAreAcceptedByEveryEstimator: the cold start of a run does not ask for what only training has.
func TestDemonstrationsAreAcceptedByEveryEstimator(t *testing.T) {
	task := &milepost.Task{ID: "a", Kind: milepost.BugRepair, Tests: []string{"t"}}
	eps := []*milepost.Episode{{ID: "e", Group: "g", Task: "a"}}
	p := &puppet{}
	if err := p.Fill(t.Context(), eps, 0); err != nil {
		t.Fatal(err)
	}
	eps[0].Status, eps[0].Outcome.Graded, eps[0].Outcome.Resolved = milepost.EpisodeCompleted, true, true
	for _, name := range credit.Estimators() {
		rules := credit.Default()
		rules.Estimator = name
		engine, err := acceptanceEngine(rules)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range []orchestrator.Acceptance{orchestrator.AcceptResolved, orchestrator.AcceptImproved} {
			kept, err := orchestrator.Accept(t.Context(), rule, eps, map[string]*milepost.Task{"a": task}, p, engine, time.Second)
			if err != nil || len(kept) != 1 {
				t.Errorf("%s, %s: %d kept, error %v", name, rule, len(kept), err)
			}
		}
	}
}

// batchHashes are the hashes of a run's batches by update.
func batchHashes(t *testing.T, dir string) map[int]string {
	t.Helper()
	records, err := journal.Read(filepath.Join(dir, "journal.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	for _, r := range records {
		var e orchestrator.Event
		if err := json.Unmarshal(r.Data, &e); err != nil {
			t.Fatal(err)
		}
		if e.Type == orchestrator.EventFinalised {
			out[e.Update] = e.SHA256
		}
	}
	return out
}

func checkRunWithValues(t *testing.T, through, broken string) {
	t.Helper()
	for _, file := range []string{"checkpoints/u0003/state/__0_0.distcp", "checkpoints/u0003/trainer.json", "weights/v0003/model.safetensors"} {
		a, err := os.ReadFile(filepath.Join(through, file))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(broken, file))
		if err != nil || string(a) != string(b) {
			t.Errorf("%s differs in the resumed run (%v)", file, err)
		}
	}
	values := 0
	records, err := (&orchestrator.Folder{Dir: through}).ReadEpisodes("u0003")
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range records {
		for _, v := range rec.Values {
			if v != 0 {
				values++
			}
		}
	}
	if values != 4*16 {
		t.Errorf("%d values of the last update are not 0, want those of %d tokens", values, 4*16)
	}
	metrics, err := os.ReadFile(filepath.Join(through, "metrics.jsonl"))
	for _, name := range []string{"value_loss", "value_clipfrac", "explained_variance", "time_values_s"} {
		if err != nil || strings.Count(string(metrics), `"`+name+`"`) != 3 {
			t.Errorf("metrics.jsonl does not have %s three times (%v)", name, err)
		}
	}
}

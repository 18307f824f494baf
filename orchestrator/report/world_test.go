package report

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
)

// world is a run's surroundings made of arithmetic: a policy that gets better with each update. The folder it leaves is
// written by the orchestrator itself.
type world struct {
	mu      sync.Mutex
	now     time.Time
	version int32
	stats   map[string]float64
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(17 * time.Millisecond)
	return w.now
}

func (w *world) sleep(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

const evil = `<script>alert("x")</script>`

func (w *world) Run(_ context.Context, task *milepost.Task, spec orchestrator.EpisodeSpec) (*milepost.Episode, error) {
	w.sleep(60 * time.Millisecond)
	w.mu.Lock()
	skill := .2 + .05*float64(w.version)
	version := w.version
	w.mu.Unlock()
	r := rand.New(rand.NewPCG(uint64(spec.Seed), uint64(version)))
	ep := &milepost.Episode{ID: spec.ID, Group: spec.Group, Task: task.ID, Attempt: spec.Attempt, Status: milepost.EpisodeCompleted, Stop: milepost.StopSubmit}
	report := milepost.TestReport{milepost.Failed, milepost.Failed, milepost.Passed, milepost.Passed}
	add := func(s milepost.Step) {
		s.Index, s.Executed, s.TokenStart, s.TokenEnd = len(ep.Steps), true, 1, 2
		if s.Action.Text == "" {
			s.Action.Text = fmt.Sprintf("<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>", s.Action.Tool, s.Action.Arguments)
		}
		ep.Steps = append(ep.Steps, s)
	}
	add(milepost.Step{Valid: true, Action: milepost.Action{Tool: "search", Arguments: json.RawMessage(`{"kind": "text", "query": "def total"}`)},
		Observed: "shop/cart.py:12: def total(items, rate):\nshop/tax.py:4: def total_tax(amount):", Exposures: []milepost.Exposure{{Path: "shop/cart.py", Level: milepost.ExposureSearch, Confidence: "high"}}})
	add(milepost.Step{Valid: true, Action: milepost.Action{Tool: "read_file", Arguments: json.RawMessage(`{"path": "shop/cart.py", "start": 1, "end": 40}`)},
		Observed: strings.Repeat("def total(items, rate):\n    return sum(i.price for i in items) - rate\n", 8), Exposures: []milepost.Exposure{{Path: "shop/cart.py", Level: milepost.ExposureRead, Confidence: "high"}}})
	if r.Float64() < .3 {
		add(milepost.Step{Violation: milepost.ViolationParse, Action: milepost.Action{Text: "<tool_call>" + evil}, Observed: "The call is not valid JSON: " + evil})
	}
	for t := range 2 {
		if r.Float64() < skill {
			report[t] = milepost.Passed
		} else if r.Float64() < .2 {
			report[3] = milepost.Failed
		}
		got := append(milepost.TestReport{}, report...)
		add(milepost.Step{Valid: true, Changed: []string{"shop/cart.py"}, Observed: "edited shop/cart.py",
			Action: milepost.Action{Tool: "edit_file", Arguments: json.RawMessage(`{"path": "shop/cart.py", "command": "replace", "old": "- rate", "new": "+ rate"}`)},
			Probe:  &milepost.Probe{ID: fmt.Sprintf("%s/%d", spec.ID, t), Report: got}})
	}
	add(milepost.Step{Valid: true, Action: milepost.Action{Tool: "submit", Arguments: json.RawMessage(`{}`)}, Observed: ""})
	n := len(ep.Steps)
	s := milepost.Sample{Tokens: make([]int32, n+1), Logprobs: make([]float32, n+1), Versions: make([]int32, n+1), Steps: make([]int32, n+1)}
	s.Steps[0] = -1
	for i := range n {
		s.Steps[i+1] = int32(i)
	}
	ep.Samples = []milepost.Sample{s}
	ep.Patch = "diff --git a/shop/cart.py b/shop/cart.py\nindex 1111111..2222222 100644\n--- a/shop/cart.py\n+++ b/shop/cart.py\n@@ -12,2 +12,2 @@ def total(items, rate):\n def total(items, rate):\n-    return sum(i.price for i in items) - rate\n+    return sum(i.price for i in items) + rate\n"
	ep.Outcome.Verdict = &milepost.Probe{ID: spec.ID + "/verdict", Report: append(milepost.TestReport{}, report...)}
	return ep, nil
}

func (w *world) Baseline(context.Context, *milepost.Task) (*milepost.Probe, error) {
	return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: milepost.TestReport{milepost.Failed, milepost.Failed, milepost.Passed, milepost.Passed}}, nil
}

func (w *world) Fill(_ context.Context, eps []*milepost.Episode, _ time.Duration) error {
	w.sleep(900 * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, ep := range eps {
		for k := range ep.Steps {
			p := ep.Steps[k].Probe
			if p == nil {
				continue
			}
			p.Status, p.Trusted, p.Cached = milepost.ProbeCompleted, true, k%4 == 3
			if (i+k)%13 == 0 {
				p.Status, p.Trusted, p.Report, p.Reason = milepost.ProbeLate, false, nil, "not back within the barrier"
			}
			w.stats["step_time_s"] += 3
		}
		v := ep.Outcome.Verdict
		v.Status, v.Trusted = milepost.ProbeCompleted, true
	}
	w.stats["barrier_wait_s"] += .9
	w.stats["overlap_time_s"] = .8 * w.stats["step_time_s"]
	w.stats["workers"] = 2
	return nil
}

func (w *world) Stats() map[string]float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]float64{}
	for k, v := range w.stats {
		out[k] = v
	}
	return out
}

func (w *world) WriteBatch(path string, rows []orchestrator.Row) (string, error) {
	b, err := json.Marshal(len(rows))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), os.WriteFile(path, b, 0o644)
}

func (w *world) Update(_ context.Context, u int, _, _ string) (map[string]float64, error) {
	w.sleep(4 * time.Second)
	x := float64(u)
	return map[string]float64{
		"entropy": 1.4*math.Exp(-x/14) + .05*math.Sin(3*x), "kl_sampler": 2e-8 * (1 + math.Sin(x)), "logprob_gap_mean": 1e-7 * (2 + math.Sin(2*x)),
		"logprob_gap_max": 4e-6 * (2 + math.Cos(x)), "clip_fraction": .02 + .4/(1+math.Exp(6-x)), "grad_norm": 2 + math.Sin(x), "loss": -.01,
	}, nil
}

func (w *world) Save(_ context.Context, dir string) error {
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "state"), make([]byte, 4096), 0o644))
}
func (w *world) Load(context.Context, string) error           { return nil }
func (w *world) Export(ctx context.Context, dir string) error { return w.Save(ctx, dir) }
func (w *world) Push(_ context.Context, v int32, _ string) (map[string]float64, error) {
	w.sleep(1300 * time.Millisecond)
	w.mu.Lock()
	w.version = v
	w.mu.Unlock()
	return map[string]float64{"canary_gap_mean": 1.2e-7 + 1e-9*float64(v), "canary_gap_max": 9e-7, "canary_tokens": 128, "push_pause_seconds": .4, "push_seconds": 1.3, "push_version": float64(v)}, nil
}

const savedConfig = "run:\n  name: tiny\nschedule:\n  max_updates: 12\n  retention:\n    checkpoints: 2\n    weights: 2\n    batches: 0\n"

// newRun makes a run of some updates, carried to its end, and returns its folder. To look at a page with a browser, set
// MILEPOST_REPORT_DIR and run TestReportOfAWholeRun alone: the folder is then made there and stays.
func newRun(t *testing.T, updates int) *orchestrator.Folder {
	t.Helper()
	dir := t.TempDir()
	if out := os.Getenv("MILEPOST_REPORT_DIR"); out != "" {
		dir = out
	}
	f, err := orchestrator.OpenFolder(dir, orchestrator.Header{Name: "tiny micro policy", Seed: 7, Model: filepath.Join(dir, "models", "cold-start")})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Path("config.yaml"), []byte(savedConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := orchestrator.DefaultConfig()
	cfg.GroupsPerUpdate, cfg.GroupSize, cfg.MaxUpdates, cfg.EvalEvery, cfg.Concurrency = 4, 6, updates, 3, 1
	split := orchestrator.Tasks{}
	var tasks []*milepost.Task
	for i := range 90 {
		id := fmt.Sprintf("micro-%03d", i)
		tasks = append(tasks, &milepost.Task{ID: id, Kind: milepost.BugRepair, Statement: "The total of a cart is wrong. " + evil, RelevantFiles: []string{"shop/cart.py"},
			Tests: []string{"tests.test_cart.Total.test_rate", "tests.test_cart.Total.test_sum", "tests.test_tax.Tax.test_low", "tests.test_tax.Tax.test_zero"}})
		switch {
		case i < 40:
			split.Train = append(split.Train, id)
		case i < 60:
			split.Validation = append(split.Validation, id)
		default:
			split.Heldout = append(split.Heldout, id)
		}
	}
	engine, err := credit.New(credit.Default())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), stats: map[string]float64{}}
	r, err := orchestrator.NewRunner(cfg, f, 7, split, tasks, engine, orchestrator.Deps{Rollouts: w, Probes: w, Learner: w, Weights: w, Now: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	return f
}

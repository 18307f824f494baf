package grade

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/grade/internal/referee"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/repo"
)

func text(s string) *string { return &s }

// fiveTasks are tasks over one repository.
func fiveTasks(t *testing.T) (tasks []*milepost.Task) {
	t.Helper()
	first := smallTask(t)
	for _, id := range []string{"a-1", "b-2", "c-3", "d-4", "e-5"} {
		c := *first
		c.ID, c.Origin = id, &milepost.Origin{ID: strings.ReplaceAll(id, "-", "__repo-"), Dataset: "test"}
		tasks = append(tasks, &c)
	}
	return tasks
}

var fivePredictions = []predictions.Prediction{
	{InstanceID: "a__repo-1", Model: "org/model", Patch: text(fix)},
	{InstanceID: "b__repo-2", Model: "org/model", Patch: text(benchmarks.Diff("calc.py", calc, calc+"\n"))},
	{InstanceID: "c__repo-3", Model: "org/model", Patch: text("nonsense")},
	{InstanceID: "d__repo-4", Model: "org/model"},
	{InstanceID: "of-another-set", Model: "org/model", Patch: text(fix)},
}

// calcWith is a patch that puts a statement into add.
func calcWith(statement string) string {
	return benchmarks.Diff("calc.py", calc, strings.Replace(calc, "return a - b", statement, 1))
}

func TestGradeAndResume(t *testing.T) {
	x, tasks, out := executor(t), fiveTasks(t), filepath.Join(t.TempDir(), "out")
	var kept, made []string
	want := 4
	g := &Grader{Executor: x, Out: out, Workers: 1, Attempts: 1, Progress: func(v *Verdict, was bool, _, total int) {
		if total != want {
			t.Errorf("%d gradings in all", total)
		}
		if was {
			kept = append(kept, v.InstanceID)
		} else {
			made = append(made, v.InstanceID)
		}
	}}
	reports, err := g.Grade(t.Context(), tasks, fivePredictions)
	if err != nil {
		t.Fatal(err)
	}
	r := reports["org/model"]
	if r.Total != 5 || r.Submitted != 5 || r.Completed != 2 || r.Resolved != 1 || r.Empty != 1 || r.Errors != 1 || len(made) != 4 || len(kept) != 0 {
		t.Errorf("report %+v; made %q, kept %q", r, made, kept)
	}
	if !reflect.DeepEqual(r.IncompleteIDs, []string{"e__repo-5"}) || !reflect.DeepEqual(r.Milepost.Outcomes[PatchFailed], []string{"c__repo-3"}) {
		t.Errorf("incomplete %q, outcomes %v", r.IncompleteIDs, r.Milepost.Outcomes)
	}
	for name, want := range map[string]bool{"a-1/report.json": true, "a-1/test_output.txt": true, "a-1/patch.diff": true, "a-1/eval.sh": true, "c-3/report.json": false, "c-3/verdict.json": true} {
		if _, err := os.Stat(filepath.Join(out, "org__model", name)); (err == nil) != want {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	again, err := g.Grade(t.Context(), tasks, fivePredictions)
	if err != nil || !reflect.DeepEqual(again, reports) || len(made) != 4 || len(kept) != 4 {
		t.Errorf("second grading: %v; made %q, kept %q", err, made, kept)
	}
	changed := append([]predictions.Prediction{{InstanceID: "b__repo-2", Model: "org/model", Patch: text(fix)}}, fivePredictions[0], fivePredictions[2],
		predictions.Prediction{InstanceID: "d__repo-4", Model: "org/model", Patch: text(calcWith("while True: pass"))},
		predictions.Prediction{InstanceID: "e__repo-5", Model: "org/model", Patch: text(calcWith("import nowhere"))})
	tasks[3].Test.Timeout = 3 * time.Second
	if err := os.WriteFile(filepath.Join(out, "org__model", "c-3", verdictFile), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	made, want = nil, 5
	reports, err = g.Grade(t.Context(), tasks, changed)
	if err != nil || reports["org/model"].Resolved != 2 || !reflect.DeepEqual(made, []string{"b__repo-2", "c__repo-3", "d__repo-4", "e__repo-5"}) {
		t.Errorf("changed patch and damaged verdict: %v, made %q", err, made)
	}
	if why := reports["org/model"].FailureReasons; !reflect.DeepEqual(why, map[string]string{"d__repo-4": "tests_timed_out", "e__repo-5": "missing_module"}) {
		t.Errorf("failure reasons %v", why)
	}
	compareRunReport(t, out, tasks, changed, reports["org/model"])
}

// compareRunReport has the referee make its report of our folder and compares.
func compareRunReport(t *testing.T, out string, tasks []*milepost.Task, preds []predictions.Prediction, ours *RunReport) {
	t.Helper()
	python := referee.Python(t)
	dir := t.TempDir()
	logs := filepath.Join(dir, "logs", "run_evaluation", "r", "org__model")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	var ids []map[string]string
	for _, task := range tasks {
		ids = append(ids, map[string]string{"instance_id": InstanceID(task)})
		if err := os.Symlink(filepath.Join(out, "org__model", task.ID), filepath.Join(logs, InstanceID(task))); err != nil {
			t.Fatal(err)
		}
	}
	byID := map[string]json.RawMessage{}
	for _, p := range preds {
		b, err := json.Marshal(map[string]any{"instance_id": p.InstanceID, "model_name_or_path": p.Model, "model_patch": p.Patch})
		if err != nil {
			t.Fatal(err)
		}
		byID[p.InstanceID] = b
	}
	in, err := json.Marshal([]any{byID, ids})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", "import json, sys\nfrom swebench.harness.reporting import make_run_report\np, d = json.load(sys.stdin)\nprint(make_run_report(p, d, 'r'))")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(string(in))
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	theirs, err := os.ReadFile(filepath.Join(dir, "org__model.r.json"))
	if err != nil {
		t.Fatal(err)
	}
	mine, err := json.Marshal(ours)
	if err != nil {
		t.Fatal(err)
	}
	got, want := decodeMap(t, mine), decodeMap(t, theirs)
	delete(got, "milepost")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("run report\n ours    %v\n referee %v", got, want)
	}
}

// failing is a driver that has no sandboxes, n times; then it hands on.
type failing struct {
	driver.Driver
	n int
}

func (f *failing) Create(context.Context, *driver.Spec) (driver.Sandbox, error) {
	f.n++
	return nil, errors.New("no space left for sandboxes")
}
func (f *failing) Close() error { return nil }

func TestInfrastructureIsNoVerdict(t *testing.T) {
	bases, err := repo.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &failing{}
	g := &Grader{Executor: &Executor{Env: env.New(d), Bases: bases}, Out: t.TempDir(), Workers: 1, Attempts: 3}
	reports, err := g.Grade(t.Context(), fiveTasks(t)[:1], fivePredictions[:1])
	if err != nil {
		t.Fatal(err)
	}
	r := reports["org/model"]
	if d.n != 3 || r.Errors != 1 || r.Completed != 0 || r.Milepost.Graded != 0 || !reflect.DeepEqual(r.Milepost.Infrastructure, []string{"a__repo-1"}) {
		t.Errorf("%d attempts, report %+v", d.n, r)
	}
	if _, err := os.Stat(filepath.Join(g.Out, "org__model", "a-1", verdictFile)); err == nil {
		t.Error("an infrastructure failure left a verdict")
	}
	if _, err := g.Grade(t.Context(), fiveTasks(t)[:1], fivePredictions[:1]); err != nil || d.n != 6 {
		t.Errorf("the next start made %d attempts in all, %v", d.n, err)
	}
}

func TestRefusals(t *testing.T) {
	g := &Grader{Executor: &Executor{}, Out: t.TempDir()}
	bad := smallTask(t)
	bad.Grading = &milepost.Grading{Rule: milepost.GradeStates, LogParser: "parse_log_fortran"}
	if _, err := g.Grade(t.Context(), []*milepost.Task{bad}, nil); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "parse_log_fortran") {
		t.Errorf("unknown parser: %v", err)
	}
	unlock, err := g.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := g.Grade(t.Context(), nil, nil); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("two graders: %v", err)
	}
}

func TestAmbiguousNames(t *testing.T) {
	g := &Grader{Executor: &Executor{}, Out: t.TempDir()}
	two := fiveTasks(t)[:2]
	two[1].Origin = two[0].Origin
	if _, err := g.Grade(t.Context(), two, nil); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "b-2") {
		t.Errorf("one instance twice: %v", err)
	}
	preds := []predictions.Prediction{{InstanceID: "x", Model: "a/b"}, {InstanceID: "x", Model: "a__b"}}
	if _, err := g.Grade(t.Context(), nil, preds); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "a__b") {
		t.Errorf("one folder for two models: %v", err)
	}
	for model, want := range map[string]string{"a/b": "a__b", "..": "_..", "": "_", "../../x": "_..__..__x"} {
		if got := ModelFolder(model); got != want {
			t.Errorf("folder of %q is %q, want %q", model, got, want)
		}
	}
}

// TestInterrupted: what was finished before an interruption is kept.
func TestInterrupted(t *testing.T) {
	x, tasks := executor(t), fiveTasks(t)
	ctx, cancel := context.WithCancel(t.Context())
	var made []string
	g := &Grader{Executor: x, Out: t.TempDir(), Workers: 1, Attempts: 1, Progress: func(v *Verdict, kept bool, _, _ int) {
		if !kept {
			made = append(made, v.InstanceID)
		}
		cancel()
	}}
	if _, err := g.Grade(ctx, tasks, fivePredictions); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("error %v", err)
	}
	reports, err := g.Grade(t.Context(), tasks, fivePredictions)
	if err != nil || reports["org/model"].Resolved != 1 || !reflect.DeepEqual(made, []string{"a__repo-1", "b__repo-2", "c__repo-3", "d__repo-4"}) {
		t.Errorf("%v; made %q", err, made)
	}
}

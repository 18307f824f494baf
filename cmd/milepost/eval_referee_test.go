package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// refereeReport reads predictions as swebench does and makes its report of a run from the folders of attempts.
const refereeReport = `import json, sys
from swebench.harness.reporting import make_run_report
from swebench.harness.utils import get_predictions_from_file
preds = get_predictions_from_file(sys.argv[1], "none", "test")
print(make_run_report({p["instance_id"]: p for p in preds}, json.loads(sys.argv[2]), "r"))`

// refereeSet is a data set's tasks, of which an attempt that writes m.py resolves the first, fails the second, never ends
// in the third and stumbles over a missing module in the fourth.
func refereeSet(t *testing.T) (set string, ids []map[string]string) {
	t.Helper()
	set = filepath.Join(t.TempDir(), "tasks")
	var tasks []*milepost.Task
	for i, body := range []string{"pass", "self.fail()", "__import__('time').sleep(3600)", "import nowhere"} {
		task := repairTask(t, fmt.Sprintf("t%d", i), "pass")
		text := "import unittest\n\nclass T(unittest.TestCase):\n    def test_one(self):\n        " + body + "\n"
		task.Origin = &milepost.Origin{Dataset: "swe-bench", ID: fmt.Sprintf("a__b-%d", i), Row: i + 1, Repo: "a/b"}
		task.Tests, task.FailToPass, task.Test.Timeout = []string{"test_one (test_m.T.test_one)"}, []string{"test_one (test_m.T.test_one)"}, 5*time.Second
		task.Grading = &milepost.Grading{Rule: milepost.GradeStates, LogParser: "parse_log_django", Files: map[string]string{"test_m.py": text},
			Commands: []string{"python3 -m unittest -v"}}
		tasks, ids = append(tasks, task), append(ids, map[string]string{"instance_id": task.Origin.ID})
	}
	if err := benchmarks.Save(set, tasks); err != nil {
		t.Fatal(err)
	}
	return set, ids
}

// TestEvalFilesAndTheReferee: swebench reads the predictions of an evaluation and makes the same report of a run from the
// folders of its attempts; what it writes is read back, and grading the predictions gives that report, too.
func TestEvalFilesAndTheReferee(t *testing.T) {
	needSandbox(t)
	env, err := trainerbridge.Environment("referee")
	if err != nil {
		t.Skip(err)
	}
	set, ids := refereeSet(t)
	dir, out := filepath.Join(t.TempDir(), "e"), filepath.Join(t.TempDir(), "g")
	if code, said := command(t, evalArgs(newStubEndpoint(t, 0, nil).URL, set, dir, "--samples", "1")...); code != exitDone {
		t.Fatalf("exit code %d: %s", code, said)
	}
	home := t.TempDir()
	logs := filepath.Join(home, "logs", "run_evaluation", "r", "stub")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		attempt := filepath.Dir(evaluate.PatchFile(dir, fmt.Sprintf("t%d", i), 0))
		if err := os.Symlink(attempt, filepath.Join(logs, id["instance_id"])); err != nil {
			t.Fatal(err)
		}
	}
	set0, file := asText(t, ids), filepath.Join(dir, "predictions-attempt-0.jsonl")
	c := exec.Command(filepath.Join(env, "bin", "python"), "-c", refereeReport, file, set0)
	c.Dir, c.Env = home, append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1")
	if b, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	theirs := runReport(t, filepath.Join(home, "stub.r.json"))
	if theirs.Resolved != 1 || theirs.Completed != 2 && theirs.Completed != 3 || theirs.Total != 4 {
		t.Errorf("the referee's report %+v", theirs)
	}
	if ours := runReport(t, filepath.Join(dir, "report-attempt-0.json")); !reflect.DeepEqual(ours, theirs) {
		t.Errorf("reports of a run\n ours    %+v\n referee %+v", ours, theirs)
	}
	if code, said := command(t, "grade", "--predictions", file, "--tasks", set, "--out", out); code != exitDone {
		t.Fatalf("exit code %d: %s", code, said)
	}
	if graded := runReport(t, filepath.Join(out, "stub.milepost.json")); !reflect.DeepEqual(graded, theirs) {
		t.Errorf("reports of a run\n graded  %+v\n referee %+v", graded, theirs)
	}
}

func asText(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func runReport(t *testing.T, path string) predictions.Run {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := predictions.ReadRun(bytes.NewReader(b), path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/internal/plan"
)

// TestPlanRecipes: every recipe that names its GPUs fits them.
func TestPlanRecipes(t *testing.T) {
	for _, name := range []string{"swe_mile_bug_repair_9b", "swe_mile_bug_repair_9b_async", "swe_mile_bug_repair_27b", "swe_mile_bug_repair_35b_a3b",
		"swe_mile_repo_generation_9b", "swe_mile_repo_generation_27b", "swe_mile_repo_generation_35b_a3b", "nebius_rft", "nebius_stage1", "nebius_stage2"} {
		code, out, errs := milepostRun(t, "plan", "-c", name, "--json")
		var r plan.Result
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitDone || len(r.Problems) > 0 || r.Seconds <= 0 {
			t.Errorf("%s: code %d, %v\n%s%s", name, code, err, out, errs)
		}
	}
}

func TestPlanSaysWhatDoesNotFit(t *testing.T) {
	code, out, errs := milepostRun(t, "plan", "-c", "nebius_stage2", "--set", "yarn.factor=1", "--set", "trainer.context_parallel=0")
	if code != exitFailed || !strings.Contains(errs, "things do not fit") {
		t.Errorf("code %d: %s", code, errs)
	}
	for _, want := range []string{"does not fit: the trainer needs", "try trainer.context_parallel", "the model's context 32768", "try yarn: {factor: 4, original: 32768}"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, wrong := range [][]string{{"-c", "nebius_stage1", "--gpu", "tpu"}, {"-c", "quickstart", "--gpu-memory", "8"}, {"-c", "quickstart"}} {
		if code, _, errs := milepostRun(t, append([]string{"plan"}, wrong...)...); code != exitUsage {
			t.Errorf("%v: code %d, %s", wrong, code, errs)
		}
	}
}

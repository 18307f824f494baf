package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/internal/plan"
	"github.com/milepost-rl/milepost/orchestrator"
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
		if said := strings.Contains(strings.Join(r.Warnings, "\n"), "launch.command is rft"); said != (name == "nebius_rft") {
			t.Errorf("%s: warnings %q", name, r.Warnings)
		}
	}
}

// TestPlanOneNode: what docs/launch.md says of one node of 8 GPUs fits it, and says so with its checkpoints.
func TestPlanOneNode(t *testing.T) {
	for _, name := range []string{"swe_mile_bug_repair_9b", "swe_mile_bug_repair_9b_async", "swe_mile_repo_generation_9b"} {
		set := []string{"-c", name, "--set", "launch.replicas=2", "--set", "trainer.ranks=4", "--set", "trainer.context_parallel=4"}
		code, out, errs := milepostRun(t, append([]string{"plan"}, set...)...)
		if code != exitDone || !strings.Contains(out, " GiB a checkpoint; ") || !strings.Contains(out, " written, and read for their hash, by 1 nodes, every 1 updates") {
			t.Errorf("%s: code %d: %s%s", name, code, out, errs)
		}
		set = append(set, "--set", "model=/m", "--set", "tasks.train=/t", "--target", "local", "--out", t.TempDir())
		if code, _, errs := milepostRun(t, append([]string{"launch"}, set...)...); code != exitDone {
			t.Errorf("%s: code %d: %s", name, code, errs)
		}
	}
}

// TestPlanHeaderOfRFT: the commands at the top of nebius_rft are ones that the program and its configuration take.
func TestPlanReckonsWithSlotsOfRolloutWorkers(t *testing.T) {
	for want, change := range map[int]func(*configs.Run){
		300: func(c *configs.Run) { c.Launch.RolloutWorkers = 0 },
		128: func(c *configs.Run) { c.Launch.RolloutWorkers = 4 },
		640: func(c *configs.Run) { c.Launch.RolloutWorkers = 20 },
		299: func(c *configs.Run) {
			c.Launch.RolloutWorkers, c.Schedule.Concurrency, c.Schedule.Mode = 20, 299, orchestrator.ModeAsync
		},
	} {
		cfg := configs.Default()
		cfg.Schedule.Concurrency, cfg.Workers.Worker.Slots = 300, 32
		change(&cfg)
		if got := atOnce(cfg); got != want {
			t.Errorf("%d episodes at once, want %d", got, want)
		}
	}
}

func TestPlanHeaderOfRFT(t *testing.T) {
	text, err := os.ReadFile("../../configs/nebius_rft.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(text)) {
		if command, ok := strings.CutPrefix(line, "#   milepost "); ok {
			found++
			understood(t, strings.Fields(strings.ReplaceAll(command, " --node I ", " --node 15 ")))
		}
	}
	if found != 2 {
		t.Errorf("%d commands", found)
	}
	if _, err := configs.Load("nebius_rft", []string{"trainer.address=h:29600", "trainer.ranks=1"}); err != nil {
		t.Error(err)
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
	for _, wrong := range [][]string{{"-c", "nebius_stage1", "--gpu", "tpu"}, {"-c", "quickstart", "--gpu-memory", "8"}, {"-c", "quickstart"},
		{"-c", "nebius_stage1", "--context", "-1"}, {"-c", "nebius_stage1", "--sampled", "-1"}, {"-c", "nebius_stage1", "--turns", "NaN"},
		{"-c", "nebius_stage1", "--probes", "-1"}, {"-c", "nebius_stage1", "--tool", "-1s"}, {"-c", "nebius_stage1", "--test", "-1s"}} {
		if code, _, errs := milepostRun(t, append([]string{"plan"}, wrong...)...); code != exitUsage {
			t.Errorf("%v: code %d, %s", wrong, code, errs)
		}
	}
}

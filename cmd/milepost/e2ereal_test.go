package main

import (
	"math"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/configs"
)

// goodE2E is a run that meets every requirement.
func goodE2E() *e2eFound {
	return &e2eFound{
		tasks: 2, updates: 1, gap: 1e-6, bound: 1e-5, canary: 1e-6, canaryBound: 1e-4, episodes: 8, edited: 5, steps: 20, valid: 18, probes: 6, trusted: 6,
		groups: 2, withR: 1, verR: 1, report: true,
		reference: evaluate.Result{Rate: 1, Graded: 2, Tasks: map[string][]float64{"a": {1}, "b": {1}}},
		idle:      evaluate.Result{Rate: 0, Graded: 2, Tasks: map[string][]float64{"a": {0}, "b": {0}}},
	}
}

func TestJudgeOfARealRunMissesEachRequirement(t *testing.T) {
	var out strings.Builder
	if err := goodE2E().judge(&requirements{out: &out}); err != nil || strings.Contains(out.String(), "MISS") {
		t.Fatalf("a good run: %v\n%s", err, out.String())
	}
	for want, spoil := range map[string]func(*e2eFound){
		"1 shared with the demonstrations":       func(f *e2eFound) { f.shared = 1 },
		"resolves 50 % of 2 tasks (wanted: all)": func(f *e2eFound) { f.reference.Rate = .5 },
		"resolves 50 % of 2 tasks (wanted: none": func(f *e2eFound) { f.idle.Rate = .5 },
		"resolves 0 % of 1 tasks":                func(f *e2eFound) { f.idle.Tasks = map[string][]float64{"a": {0}} },
		"0 full updates":                         func(f *e2eFound) { f.updates = 0 },
		"fresh samples 2e-05":                    func(f *e2eFound) { f.gap = 2e-5 },
		"fresh samples NaN":                      func(f *e2eFound) { f.gap = math.NaN() },
		"canaries NaN":                           func(f *e2eFound) { f.canary = math.NaN() },
		"0 of 20 calls":                          func(f *e2eFound) { f.valid = 0 },
		"0 of 8 episodes edited":                 func(f *e2eFound) { f.edited = 0 },
		"0 of 6 probes":                          func(f *e2eFound) { f.trusted = 0 },
		"0 of 2 groups":                          func(f *e2eFound) { f.withR = 0 },
		"report.html":                            func(f *e2eFound) { f.report = false },
	} {
		f := goodE2E()
		spoil(f)
		var out strings.Builder
		err := f.judge(&requirements{out: &out})
		if milepost.KindOf(err) != milepost.KindConflict || strings.Count(out.String(), "MISS") != 1 {
			t.Errorf("%s: error %v\n%s", want, err, out.String())
			continue
		}
		_, line, _ := strings.Cut(out.String(), "MISS")
		line, _, _ = strings.Cut(line, "\n")
		if !strings.Contains(line, want) {
			t.Errorf("the miss reads %q, want %q", line, want)
		}
	}
}

func TestEvalScriptIsChecked(t *testing.T) {
	for want, o := range map[string]evalOptions{
		`--script "perfect" is not one of reference, idle, expert`: {Tasks: "x", Script: "perfect"},
		"--script excludes --model and --chat":                     {Tasks: "x", Script: "idle", Model: "m"},
		"--samples is 10001; allowed are 0 to 10000":               {Tasks: "x", Script: "idle", Samples: 10001},
		"--chat and --chat-model go together":                      {Tasks: "x", Script: "idle", ChatModel: "m"},
	} {
		if err := o.check(configs.Default()); err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

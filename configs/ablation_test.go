package configs_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
)

// TestShippedAblations: every shipped study loads, and what it says of every arm reaches the arm's configuration.
func TestShippedAblations(t *testing.T) {
	if got, want := configs.AblationNames(), []string{"async", "estimators", "smoke", "study", "weak_start"}; !slices.Equal(got, want) {
		t.Fatalf("shipped are %v, want %v", got, want)
	}
	for _, name := range configs.AblationNames() {
		a, err := configs.LoadAblation(name, configs.AblationOverride{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, arm := range a.Arms {
			c, err := a.Run(arm)
			if err != nil {
				t.Errorf("%s, %s: %v", name, arm.Name, err)
			}
			if s := c.Schedule; s.MaxUpdates != a.Budget.Updates || s.EvalBefore || s.Final != "last" || s.EvalSeed != a.Heldout.Seed || s.MaxWall != 0 {
				t.Errorf("%s, %s: the schedule is not the study's: %+v", name, arm.Name, s)
			}
		}
	}
}

// TestStudyArms: the six arms of the study differ in just what they are named for.
func TestStudyArms(t *testing.T) {
	a, err := configs.LoadAblation("study", configs.AblationOverride{})
	if err != nil {
		t.Fatal(err)
	}
	check := map[string]func(configs.Run) bool{
		"full":            func(c configs.Run) bool { return c.Credit.Milestone.Enabled && c.Rollout.ProbeSteps },
		"no_verification": func(c configs.Run) bool { return !c.Credit.Milestone.Verification && c.Credit.Milestone.Navigation },
		"no_navigation":   func(c configs.Run) bool { return !c.Credit.Milestone.Navigation && c.Credit.Milestone.Verification },
		"no_backward":     func(c configs.Run) bool { return c.Credit.Milestone.BackwardLambda == 0 && c.Credit.Milestone.Enabled },
		"outcome_only":    func(c configs.Run) bool { return !c.Credit.Milestone.Enabled && c.Credit.Outcome == "resolved" },
		"final_potential": func(c configs.Run) bool {
			return !c.Credit.Milestone.Enabled && c.Credit.Outcome == "potential" && !c.Rollout.ProbeSteps
		},
	}
	if len(a.Arms) != len(check) || a.Reference != "full" || len(a.Seeds) != 3 || a.Budget.Updates < 40 {
		t.Fatalf("%d arms, reference %s, seeds %v, %d updates", len(a.Arms), a.Reference, a.Seeds, a.Budget.Updates)
	}
	for _, arm := range a.Arms {
		c, err := a.Run(arm)
		if err != nil {
			t.Fatal(err)
		}
		if !check[arm.Name](c) {
			t.Errorf("arm %s is not what its name says: %+v", arm.Name, c.Credit)
		}
	}
}

const twoArms = "arms:\n  - name: a\n  - name: b\n    set: [credit.estimator=rloo]\nreference: a\n"

// TestAblationOverrides: the command line goes on top of the file, and a base lies relative to the study's file.
func TestAblationOverrides(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"base.yaml": "schedule:\n  group_size: 5\n", "s.yaml": "name: s\nbase: base.yaml\nset: [schedule.group_size=7]\n" + twoArms} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	a, err := configs.LoadAblation(filepath.Join(dir, "s.yaml"), configs.AblationOverride{
		Set: []string{"schedule.group_size=9"}, Study: []string{"budget.updates=3", "seeds=[4, 5]"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.Run(a.Arms[1])
	if err != nil {
		t.Fatal(err)
	}
	if c.Schedule.GroupSize != 9 || c.Schedule.MaxUpdates != 3 || c.Credit.Estimator != "rloo" || !slices.Equal(a.Seeds, []int64{4, 5}) {
		t.Errorf("got group size %d, %d updates, %s, seeds %v", c.Schedule.GroupSize, c.Schedule.MaxUpdates, c.Credit.Estimator, a.Seeds)
	}
}

// TestRateOfAnArm: without a search every arm has the rate of its configuration, so that rates can be arms.
func TestRateOfAnArm(t *testing.T) {
	a, err := configs.LoadAblation(write(t, "arms: [{name: a}, {name: b, set: [update.optimizer.lr=.1]}]\nreference: a\n"), configs.AblationOverride{})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := a.Run(a.Arms[1]); err != nil || c.Update.Optimizer.LR != .1 {
		t.Errorf("rate %v, %v", c.Update.Optimizer.LR, err)
	}
	if _, err = configs.LoadAblation("study", configs.AblationOverride{Set: []string{"run.seed=5"}}); err != nil { // of tasks and cold start
		t.Error(err)
	}
	_, err = configs.LoadAblation("study", configs.AblationOverride{Study: []string{"seeds"}})
	if err == nil || !strings.Contains(err.Error(), "--study seeds: want") {
		t.Errorf("got %v", err)
	}
}

// TestGrid: a grid is every combination, in the order of the file, beside the arms that are named.
func TestGrid(t *testing.T) {
	a, err := configs.LoadAblation(write(t, "arms: [{name: base}]\nreference: base\ngrid:\n"+
		"- {name: estimator, levels: [{name: rloo, about: R, set: [credit.estimator=rloo]}, {name: gigpo, set: [credit.estimator=gigpo]}]}\n"+
		"- {name: credit, levels: [{name: full}, {name: none, about: N, set: [credit.milestone.enabled=false]}]}\n"), configs.AblationOverride{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, arm := range a.Arms {
		names = append(names, arm.Name)
	}
	if want := []string{"base", "rloo_full", "rloo_none", "gigpo_full", "gigpo_none"}; !slices.Equal(names, want) {
		t.Errorf("arms are %v, want %v", names, want)
	}
	if got := a.Arms[2]; got.About != "R; N" || !slices.Equal(got.Set, []string{"credit.estimator=rloo", "credit.milestone.enabled=false"}) {
		t.Errorf("rloo_none is %+v", got)
	}
}

// TestBadAblations: each fault is of kind invalid and named with its place and what is allowed.
func TestBadAblations(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown field", "name: s\n" + twoArms + "seed: [1]\n", "f.yaml:7: seed: unknown field; allowed: name"},
		{"unknown field of an arm", "arms:\n  - name: a\n    sets: []\nreference: a\n", "f.yaml:3: arms[0].sets: unknown field; allowed: name, about, set"},
		{"type", twoArms + "seeds: 3\n", "f.yaml:6: seeds is 3; allowed: a list"},
		{"one arm", "arms: [{name: a}]\nreference: a\n", "arms is 1; allowed: two arms or more"},
		{"no arms", "name: s\n", "arms is 0"},
		{"twin arms", "arms: [{name: a}, {name: a}]\nreference: a\n", "arms.name is a; allowed: each name once"},
		{"arm's name", "arms: [{name: a}, {name: ../b}]\nreference: a\n", "arms.name is ../b; allowed: 1 to 40 lower-case"},
		{"reference", "arms: [{name: a}, {name: b}]\nreference: c\n", "reference is c; allowed: the name of an arm: a, b"},
		{"twin seeds", twoArms + "seeds: [1, 1]\n", "seeds is 1; allowed: each seed once"},
		{"seed of the search", twoArms + "seeds: [1]\nsearch: {rates: [.1, .2], seeds: [1]}\n", "search.seeds is 1"},
		{"rate", twoArms + "search: {rates: [0]}\n", "search.rates is 0; allowed: numbers above 0"},
		{"rate that is no number", twoArms + "search: {rates: [.nan, .1]}\n", "search.rates is NaN; allowed: numbers above 0, each once"},
		{"infinite rate", twoArms + "search: {rates: [.inf, .1]}\n", "search.rates is +Inf; allowed: numbers above 0"},
		{"twin rates", twoArms + "search: {rates: [.1, .1]}\n", "search.rates is 0.1; allowed: numbers above 0, each once"},
		{"twin seeds of the search", twoArms + "search: {rates: [.1, .2], seeds: [1, 1]}\n", "search.seeds is 1; allowed: each seed once"},
		{"name that leaves the folder", "name: ../x\n" + twoArms, `name is "../x"; allowed: 1 to 80 letters`},
		{"setting that the budget makes", twoArms + "set: [schedule.max_updates=3]\n", "set: schedule.max_updates is set; allowed: settings that the study does not make itself; here budget.updates says"},
		{"evaluations of an arm", "arms: [{name: a}, {name: b, set: [schedule.eval_samples=3]}]\nreference: a\n", "arm b: schedule.eval_samples is set; allowed: settings that the study does not make itself; here heldout.final says"},
		{"rate of an arm beside those of the search", "arms: [{name: a}, {name: b, set: [update.optimizer.lr=.1]}]\nreference: a\nsearch: {rates: [.1]}\n", "here search.rates says"},
		{"correction", twoArms + "compare: {correction: sidak}\n", "compare.correction is sidak; allowed: holm, bh, none"},
		{"confidence", twoArms + "compare: {confidence: .nan}\n", "compare.confidence"},
		{"setting of an arm", "arms: [{name: a}, {name: b, set: [credit.estimator=grp]}]\nreference: a\n", "arm b: "},
		{"axis without levels", twoArms + "grid: [{name: x}]\n", "grid[0] is \"x\" with 0 levels; allowed: a name and one level or more"},
		{"level's name", twoArms + "grid: [{name: x, levels: [{name: A}]}]\n", "grid[0].levels.name is \"A\""},
		{"twin of the grid", twoArms + "grid: [{name: x, levels: [{name: a}]}]\n", "arms.name is a; allowed: each name once"},
		{"base", "base: nowhere.yaml\n" + twoArms, "nowhere.yaml is neither a file nor one of the shipped configurations"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := configs.LoadAblation(write(t, tt.text), configs.AblationOverride{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want it to hold %q", err, tt.want)
			}
			if kind := milepost.KindOf(err); kind != milepost.KindInvalid {
				t.Errorf("kind is %v", kind)
			}
		})
	}
}

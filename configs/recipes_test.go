package configs_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
)

func load(t *testing.T, name string, set ...string) configs.Run {
	t.Helper()
	c, err := configs.Load(name, set)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestSWEMile: every SWE-MILE recipe has the paper's values, as fixed by the credit rules, whatever the model.
func TestSWEMile(t *testing.T) {
	for _, of := range []struct {
		domain         string
		kind           milepost.TaskKind
		groups, size   int
		mode           string
		ver, nav       float64
		episodesAtOnce float64
	}{
		{"bug_repair", milepost.BugRepair, 12, 16, credit.ModeNormalized, .2, .05, 1.5},
		{"repo_generation", milepost.RepoGeneration, 24, 8, credit.ModePassCount, .1, 0, 2},
	} {
		want := credit.Default()
		want.Milestone.Mode, want.Milestone.WVer, want.Milestone.WNav = of.mode, &of.ver, &of.nav
		for _, model := range []string{"9b", "27b", "35b_a3b"} {
			name := "swe_mile_" + of.domain + "_" + model
			c := load(t, name)
			if !reflect.DeepEqual(c.Credit, want) {
				t.Errorf("%s: credit is %+v, want %+v", name, c.Credit, want)
			}
			s := c.Schedule
			if s.GroupSize != of.size || s.GroupsPerUpdate != of.groups || s.Sampling != credit.DefaultSampling(of.kind) {
				t.Errorf("%s: sampling is %d x %d, %+v", name, s.GroupSize, s.GroupsPerUpdate, s.Sampling)
			}
			if want := int(of.episodesAtOnce * float64(of.groups*of.size)); s.Concurrency != want {
				t.Errorf("%s: concurrency is %d, want %d", name, s.Concurrency, want)
			}
		}
	}
}

// TestNebius: arXiv 2508.03501 v2, table 3 and appendix C.
func TestNebius(t *testing.T) {
	for name, want := range map[string]struct {
		groups, batch, turns, context int
		clip                          float64
	}{
		"nebius_stage1": {300, 128, 40, 65536, .3},
		"nebius_stage2": {100, 256, 80, 131072, .26},
	} {
		c := load(t, name)
		if c.Schedule.GroupsPerUpdate != want.groups || c.Schedule.GroupSize != 10 || c.Update.MinibatchSequences != want.batch {
			t.Errorf("%s: %d x %d, %d a step", name, c.Schedule.GroupsPerUpdate, c.Schedule.GroupSize, c.Update.MinibatchSequences)
		}
		if c.Rollout.MaxTurns != want.turns || c.Rollout.MaxContext != want.context || c.Server.MaxModelLen != want.context {
			t.Errorf("%s: %d turns, %d tokens, server %d", name, c.Rollout.MaxTurns, c.Rollout.MaxContext, c.Server.MaxModelLen)
		}
		if l := c.Update.Loss; l.ClipLow != .2 || l.ClipHigh != want.clip || l.Aggregate != "token-mean" || l.KL != "none" {
			t.Errorf("%s: loss %+v", name, l)
		}
		if o := c.Update.Optimizer; o.LR != 1e-6 || o.Beta1 != .9 || o.Beta2 != .999 || o.Eps != 1e-8 || o.WeightDecay != .1 || o.ClipNorm != 1 {
			t.Errorf("%s: optimizer %+v", name, o)
		}
		if o := c.Credit.Overlong; o.MaxTurns != want.turns || o.TurnsBefore != 10 || c.Credit.Outcome != credit.OutcomePassed || c.Credit.Milestone.Enabled {
			t.Errorf("%s: credit %+v", name, c.Credit)
		}
		if s := c.Schedule.Sampling; s.Criterion != credit.CriterionAdvantage || s.Dynamic() {
			t.Errorf("%s: sampling %+v", name, s)
		}
		if c.Yarn.Factor != 4 || c.Yarn.Context() != 131072 {
			t.Errorf("%s: yarn %+v", name, c.Yarn)
		}
	}
	c := load(t, "nebius_rft")
	if r := c.RFT; r.Attempts != 10 || r.Accept != orchestrator.AcceptResolved || r.SFT.Steps != 0 || r.SFT.Epochs != 1 || r.SFT.BatchEpisodes != 64 ||
		r.SFT.Optimizer.LR != 5e-6 || r.SFT.Optimizer.WeightDecay != .1 || r.SFT.Warmup != 10 || r.SFT.Schedule != "cosine" || r.SFT.FinalLR != 0 || r.SFT.MaxTokens != 65536 {
		t.Errorf("rft %+v", r)
	}
}

// TestExtends: a file begins where another ends; that one may be shipped or lie beside it, and faults name their file.
func TestExtends(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	put("base.yaml", "extends: quickstart\nrun:\n  seed: 7\nschedule:\n  group_size: 4\n")
	top := put("top.yaml", "extends: base.yaml\nschedule:\n  group_size: 5\n")
	c := load(t, top, "schedule.max_updates=9")
	if c.Run.Name != "quickstart" || c.Run.Seed != 7 || c.Schedule.GroupSize != 5 || c.Schedule.MaxUpdates != 9 || c.Extends != "" {
		t.Errorf("%+v %+v, extends %q", c.Run, c.Schedule, c.Extends)
	}
	for text, want := range map[string]string{
		"extends: nowhere.yaml\n":                        "nowhere.yaml is neither a file nor",
		"extends: bad.yaml\n":                            "bad.yaml: extends: " + filepath.Join(dir, "bad.yaml") + " extends itself",
		"extends: base.yaml\nrollout:\n  max_turns: 0\n": "bad.yaml:3: rollout.max_turns",
		"extends: [base.yaml]\n":                         "bad.yaml:1: extends is a list; allowed: text",
	} {
		if _, err := configs.Load(put("bad.yaml", text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	put("a.yaml", "extends: b.yaml\n")
	if _, err := configs.Load(put("b.yaml", "extends: a.yaml\n"), nil); err == nil || !strings.Contains(err.Error(), "extends itself") {
		t.Errorf("a circle: %v", err)
	}
	put("base.yaml", "extends: quickstart\nrollout:\n  max_turns: 0\n")
	if _, err := configs.Load(top, nil); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "base.yaml")+":3: rollout.max_turns") {
		t.Errorf("a fault of the base: %v", err)
	}
	if _, err := configs.Load("quickstart", []string{"extends=reference"}); err == nil || !strings.Contains(err.Error(), "extends belongs in a file") {
		t.Errorf("extends as an override: %v", err)
	}
}

// TestYarnBoundsTheServer: a context beyond the stretched one is refused before a model is there.
func TestYarnBoundsTheServer(t *testing.T) {
	_, err := configs.Load("nebius_stage2", []string{"server.max_model_len=131073"})
	if err == nil || !strings.Contains(err.Error(), "yarn stretches 32768 tokens by 4, which allows 131072") {
		t.Error(err)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/configs"
)

const twoArmStudy = `
name: s
base: quickstart
arms:
  - name: a
  - name: b
    set: [credit.estimator=rloo]
reference: a
seeds: [11, 12]
search:
  rates: [1.0e-3, 2.0e-3]
  seeds: [1, 2]
  updates: 4
`

// newTestStudy lays a study out below a folder of its own.
func newTestStudy(t *testing.T, dir, text string) *study {
	t.Helper()
	file := filepath.Join(t.TempDir(), "s.yaml")
	write(t, file, text)
	spec, err := configs.LoadAblation(file, configs.AblationOverride{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := newStudy(spec, "milepost ablate", dir, dir, newProgress(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// finished writes what a search run of the given resolved shares leaves.
func finished(t *testing.T, dir string, shares ...float64) {
	t.Helper()
	var b strings.Builder
	for u, v := range shares {
		line, err := json.Marshal(map[string]any{"update": u + 1, "active_s": 1, "values": map[string]float64{"resolved_rate": v}})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", line)
	}
	write(t, filepath.Join(dir, "metrics.jsonl"), b.String())
	write(t, filepath.Join(dir, "result.json"), `{"stop":"max_updates"}`)
}

// TestChooseRate: the rate with the highest mean over seeds of the last half of the updates wins; while a trial is missing
// none is chosen; of equals the smaller is taken.
func TestChooseRate(t *testing.T) {
	s := newTestStudy(t, t.TempDir(), twoArmStudy)
	arm := s.arms[0]
	planned, err := s.trials(arm)
	if err != nil || len(planned) != 4 {
		t.Fatalf("%d trials, %v", len(planned), err)
	}
	shares := [][]float64{
		{.9, .9, .2, .4}, // 1e-3, seed 1: .3, since the first half does not count
		{.9, .9, .4, .4}, // 1e-3, seed 2: .4, mean .35
		{.1, .1, .1, .3}, // 2e-3, seed 1: .2
		{.1, .1, .6, .6}, // 2e-3, seed 2: .6, mean .4
	}
	for i, p := range planned[:3] {
		finished(t, p.cfg.Run.Dir, shares[i]...)
	}
	if rate, trials, err := s.choose(arm); rate != 0 || len(trials) != 4 || trials[3].Finished || err != nil {
		t.Errorf("with a trial missing: rate %v, %+v, %v", rate, trials, err)
	}
	finished(t, planned[3].cfg.Run.Dir, shares[3]...)
	rate, trials, err := s.choose(arm)
	if rate != 2e-3 || err != nil {
		t.Errorf("rate %v, %v; want .002", rate, err)
	}
	if got := trials[1]; got.Rate != 1e-3 || got.Seed != 2 || got.Score != .4 || got.Updates != 4 {
		t.Errorf("second trial is %+v", got)
	}
	finished(t, planned[3].cfg.Run.Dir, .1, .1, .5, .5) // .35 too
	if rate, _, err := s.choose(arm); rate != 1e-3 || err != nil {
		t.Errorf("of equals: rate %v, %v; want .001", rate, err)
	}
	write(t, filepath.Join(planned[0].cfg.Run.Dir, "metrics.jsonl"), "")
	if _, _, err := s.choose(arm); err == nil || !strings.Contains(err.Error(), "holds no update") {
		t.Errorf("an empty trial: %v", err)
	}
}

// TestStudyPaths: no two runs share a folder, what an arm is called is in its name, and a study that was moved or laid out
// again has the same names; another budget has others.
func TestStudyPaths(t *testing.T) {
	names := func(dir, text string) map[string]string {
		s, out := newTestStudy(t, dir, text), map[string]string{}
		for _, arm := range s.arms {
			runs, err := s.trials(arm)
			if err != nil {
				t.Fatal(err)
			}
			for _, seed := range s.spec.Seeds {
				r, err := s.training(arm, 1e-3, seed)
				if err != nil {
					t.Fatal(err)
				}
				runs = append(runs, r)
			}
			for _, r := range runs {
				rel, err := filepath.Rel(dir, r.cfg.Run.Dir)
				if err != nil || !strings.HasPrefix(filepath.Base(rel), arm.Name+"-lr") {
					t.Errorf("%s: %v", rel, err)
				}
				if other, ok := out[rel]; ok {
					t.Errorf("%s and %s share %s", r.label, other, rel)
				}
				out[rel] = r.label
			}
		}
		return out
	}
	first := names(t.TempDir(), twoArmStudy)
	if len(first) != 2*(4+2) {
		t.Errorf("%d runs", len(first))
	}
	for name := range names(t.TempDir(), twoArmStudy) {
		if first[name] == "" {
			t.Errorf("%s depends on where the study lies", name)
		}
	}
	for name := range names(t.TempDir(), twoArmStudy+"budget:\n  updates: 41\n") {
		if strings.HasPrefix(name, "runs") && first[name] != "" {
			t.Errorf("%s does not depend on the budget", name)
		}
	}
}

// TestArmsShareTheColdStart: an arm that would need another cold start is refused by name.
func TestArmsShareTheColdStart(t *testing.T) {
	for _, setting := range []string{"rft.sft.steps=7", "micro.train=5", "rollout.max_turns=3"} {
		file := filepath.Join(t.TempDir(), "s.yaml")
		write(t, file, strings.Replace(twoArmStudy, "credit.estimator=rloo", setting, 1))
		code, _, errs := milepostRun(t, "ablate", "-c", file, "--plan", "--dir", t.TempDir())
		if code != exitUsage || !strings.Contains(errs, "arm b: its settings change the cold start") || !strings.Contains(errs, setting) {
			t.Errorf("%s: exit code %d, %s", setting, code, errs)
		}
	}
	newTestStudy(t, t.TempDir(), strings.Replace(twoArmStudy, "credit.estimator=rloo", "rollout.probe_steps=false", 1)) // made without step probes anyway
}

// TestAblateNamesWhatIsWrong: wrong use ends with exit code 2 before anything is made.
func TestAblateNamesWhatIsWrong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"ablate"}, "no study; give -c FILE or the name of a shipped one: [async estimators smoke study weak_start]"},
		{[]string{"ablate", "-c", "study", "--study", "budget.updates=0"}, "budget.updates is 0; allowed: 1 or more"},
		{[]string{"ablate", "-c", "study", "--study", "budget.update=1"}, "budget.update: unknown field; allowed: updates, tokens"},
		{[]string{"ablate", "-c", "study", "--set", "credit.estimator=grp"}, "arm full: "},
		{[]string{"ablate", "-c", "study", "--set", "micro.heldout=0"}, "a study needs held-out tasks"},
		{[]string{"ablate", "-c", "study", "--plan", "--report"}, "--report and --plan exclude each other"},
		{[]string{"ablate", "-c", "study", "extra"}, "unknown command"},
	} {
		code, _, errs := milepostRun(t, append(tt.args, "--dir", dir)...)
		if code != exitUsage || !strings.Contains(errs, tt.says) {
			t.Errorf("%v: exit code %d, %s; want %q", tt.args, code, errs, tt.says)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("something was made: %v", err)
	}
}

// TestStrangersAreTold: runs that the study as it is now does not plan are named, its own are not.
func TestStrangersAreTold(t *testing.T) {
	dir := t.TempDir()
	before := newTestStudy(t, dir, twoArmStudy)
	for i, rate := range []float64{1e-3, 2e-3} {
		r, err := before.training(before.arms[i], rate, 11)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(r.cfg.Run.Dir, "journal.jsonl"), "")
	}
	if found, err := before.strangers(); err != nil || len(found) != 0 {
		t.Errorf("its own runs are strange to it: %v, %v", found, err)
	}
	after := newTestStudy(t, dir, twoArmStudy+"budget:\n  updates: 41\n")
	found, err := after.strangers()
	if err != nil || len(found) != 2 || !strings.HasPrefix(found[0], "runs/a-lr0.001-s11-") {
		t.Errorf("strangers are %v, %v", found, err)
	}
}

// TestReportOfNoStudy: a mistyped folder is named and not made.
func TestReportOfNoStudy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nowhere")
	code, _, errs := milepostRun(t, "ablate", "-c", "study", "--report", "--dir", dir)
	if code == 0 || !strings.Contains(errs, "there is no study in "+dir) {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

// TestQuoted: the command that a result names can be given to a shell as it stands.
func TestQuoted(t *testing.T) {
	for in, want := range map[string]string{
		"budget.updates=60": "budget.updates=60", "seeds=[11, 12]": "'seeds=[11, 12]'", "name=it's": `'name=it'\''s'`, "": "''", "a=$HOME": "'a=$HOME'",
	} {
		if got := quoted(in); got != want {
			t.Errorf("%q is written %s, want %s", in, got, want)
		}
	}
}

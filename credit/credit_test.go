package credit

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/milepost-rl/milepost"
)

func TestConfigRefusals(t *testing.T) {
	nan := math.NaN()
	for words, change := range map[string]func(*Config){
		`field estimator is "vibes"; allowed: one of dapo, dr_grpo, gigpo,`:         func(c *Config) { c.Estimator = "vibes" },
		`field eps is -1; allowed: a finite number from 0`:                          func(c *Config) { c.Eps = -1 },
		`field step_gamma is 1.5; allowed: a number from 0 to 1`:                    func(c *Config) { c.StepGamma = 1.5 },
		`field hgpo_k is -1; allowed: a whole number from 0 to 100`:                 func(c *Config) { c.HGPOK = -1 },
		`field group_norm is "std"; allowed: one of mean_std, mean`:                 func(c *Config) { c.GroupNorm = "std" },
		`field process_baseline is ""; allowed: one of none, group_mean`:            func(c *Config) { c.ProcessBaseline = "" },
		`field milestone.mode is "x"; allowed: one of auto, normalized, pass_count`: func(c *Config) { c.Milestone.Mode = "x" },
		`field milestone.w_ver is NaN; allowed: a finite number`:                    func(c *Config) { c.Milestone.WVer = &nan },
		`field milestone.w_nav is NaN; allowed: a finite number`:                    func(c *Config) { c.Milestone.WNav = &nan },
		`field milestone.backward_gamma is 2; allowed: a number from 0 to 1`:        func(c *Config) { c.Milestone.BackwardGamma = 2 },
		`field milestone.clip_low is 4; allowed: a number up to clip_high (3)`:      func(c *Config) { c.Milestone.ClipLow = 4 },
		`field outcome_weight is +Inf; allowed: a finite number`:                    func(c *Config) { c.OutcomeWeight = math.Inf(1) },
	} {
		c := Default()
		change(&c)
		_, err := New(c)
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
}

func TestNullKeepsTheDefault(t *testing.T) {
	text := `{"estimator": null, "eps": null, "hgpo_k": null, "milestone": {"enabled": null, "w_ver": null, "search": null}}`
	fromJSON, fromYAML, null := Default(), Default(), Default()
	if err := json.Unmarshal([]byte(text), &fromJSON); err != nil || !reflect.DeepEqual(fromJSON, Default()) {
		t.Errorf("JSON: %+v (error %v)", fromJSON, err)
	}
	if err := yaml.Unmarshal([]byte(text), &fromYAML); err != nil || !reflect.DeepEqual(fromYAML, Default()) {
		t.Errorf("YAML: %+v (error %v)", fromYAML, err)
	}
	if err := yaml.Unmarshal([]byte("milestone: null"), &null); err != nil || !reflect.DeepEqual(null, Default()) {
		t.Errorf("YAML: %+v (error %v)", null, err)
	}
}

func TestWeightsFollowTheResolvedMode(t *testing.T) {
	own := .5
	for name, c := range map[string]struct {
		mode string
		kind milepost.TaskKind
		wVer *float64
		want weights
	}{
		"repair":                {ModeAuto, milepost.BugRepair, nil, weights{.2, .05}},
		"generation":            {ModeAuto, milepost.RepoGeneration, nil, weights{.1, 0}},
		"repair as pass_count":  {ModePassCount, milepost.BugRepair, nil, weights{.1, 0}},
		"generation normalized": {ModeNormalized, milepost.RepoGeneration, nil, weights{.2, .05}},
		"own weight":            {ModeAuto, milepost.RepoGeneration, &own, weights{.5, 0}},
	} {
		m := Default().Milestone
		m.Mode, m.WVer = c.mode, c.wVer
		if got := m.weights(m.mode(c.kind)); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestAssignRefusals(t *testing.T) {
	merged := func(id string, size, index int) *milepost.Probe {
		p := seen(t, "PP")
		p.Merge = &milepost.Merge{ID: id, Size: size, Index: index}
		return p
	}
	other := merged("m", 2, 1)
	other.Report[0] = milepost.Failed
	for words, c := range map[string]struct {
		probes []*milepost.Probe
		change func(in *Input, c *Config)
	}{
		`episode e step 1: merge group "m" is not contiguous: part 1 of 2 is expected here, not a step without one`: {
			probes: []*milepost.Probe{merged("m", 2, 0), nil, merged("m", 2, 1)}},
		`episode e step 1: merge group "m" is not contiguous: part 1 of 2 is expected here, not part 0 of 1 of "n"`: {
			probes: []*milepost.Probe{merged("m", 2, 0), merged("n", 1, 0)}},
		`episode e step 0: merge group "m" is not contiguous: part 0 of 2 is expected here, not part 1 of 2 of "m"`: {
			probes: []*milepost.Probe{merged("m", 2, 1)}},
		`episode e step 0: merge group "m" is not contiguous: the episode ends before part 1 of 2`: {
			probes: []*milepost.Probe{merged("m", 2, 0)}},
		`episode e step 0: merge group "m" has size 0`: {probes: []*milepost.Probe{merged("m", 0, 0)}},
		`episode e step 1: merge group "m": part 1 carries another probe than part 0`: {
			probes: []*milepost.Probe{merged("m", 2, 0), other}},
		`episode e: the reward, earned at its last step 0, is NaN`: {
			probes: []*milepost.Probe{nil}, change: func(in *Input, _ *Config) { in.Episode.Outcome.Reward = math.NaN() }},
		`episode e: the reward, earned at its last step 0, is -Inf`: {
			probes: []*milepost.Probe{nil}, change: func(in *Input, _ *Config) { in.Episode.Outcome.Reward = math.Inf(-1) }},
		`episode e step 0: its index is 3; allowed: steps numbered from 0`: {
			probes: []*milepost.Probe{nil}, change: func(in *Input, _ *Config) { in.Episode.Steps[0].Index = 3 }},
		`episode e: estimator ppo_gae needs per-token values`: {
			probes: []*milepost.Probe{nil}, change: func(_ *Input, c *Config) { c.Estimator = "ppo_gae" }},
		`episode e: mo_grpo needs the same objectives in every episode`: {
			probes: []*milepost.Probe{nil}, change: func(_ *Input, c *Config) { c.Estimator = "mo_grpo" }},
		`episode e: objective "speed" is NaN`: {
			probes: []*milepost.Probe{nil}, change: func(in *Input, c *Config) {
				c.Estimator, in.Episode.Outcome.Objectives = "mo_grpo", map[string]float64{"speed": math.NaN()}
			}},
		`episode e step 0: the credit is not finite`: {
			probes: []*milepost.Probe{seen(t, "PF")}, change: func(_ *Input, c *Config) {
				big := math.MaxFloat64
				c.Milestone.WVer, c.Milestone.BetaAny = &big, big
			}},
		`input 0 has no episode or no task`: {change: func(in *Input, _ *Config) { in.Task = nil }},
	} {
		cfg, in := Default(), oneEpisode(1, 1, c.probes...)
		if c.change != nil {
			c.change(&in, &cfg)
		}
		engine, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = engine.Assign([]Input{in}); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
}

func TestGroupsAreChecked(t *testing.T) {
	engine, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	a, b := oneEpisode(1, 1), oneEpisode(1, 1)
	if _, err := engine.Assign([]Input{a, b}); err == nil || !strings.Contains(err.Error(), "episode e is given twice") {
		t.Errorf("got %v", err)
	}
	b.Episode.ID, b.Task.ID = "f", "u"
	if _, err := engine.Assign([]Input{a, b}); err == nil || !strings.Contains(err.Error(), "episode f: group g mixes tasks t and u") {
		t.Errorf("got %v", err)
	}
}

// Excluded episodes may hold anything: they are in no statistic.
func TestExcludedEpisodes(t *testing.T) {
	for _, status := range []milepost.EpisodeStatus{milepost.EpisodeInfra, milepost.EpisodeCancelled} {
		in := oneEpisode(1, 1, nil, nil)
		in.Episode.Status, in.Episode.Outcome.Reward = status, math.NaN()
		r := mustAssign(t, Default(), []Input{in})
		if c := r.Episodes[0]; !c.Excluded || c.Steps != nil || r.Summary.Excluded != 1 || r.Summary.Episodes != 0 || r.Summary.Groups != 0 {
			t.Errorf("%s: %+v, %+v", status, c, r.Summary)
		}
	}
}

func TestUntrustedProbesAreWarnedAbout(t *testing.T) {
	claims := func(change func(*milepost.Probe)) *milepost.Probe {
		p := seen(t, "PPP")
		change(p)
		return p
	}
	for words, p := range map[string]*milepost.Probe{
		"report has 2 tests, the task has 3":                claims(func(p *milepost.Probe) { p.Report = p.Report[:2] }),
		"report has 4 tests, the task has 3":                seen(t, "PPPP"),
		"neither a report over the task's tests nor counts": claims(func(p *milepost.Probe) { p.Report = nil }),
		`its status is "timeout", not completed`:            claims(func(p *milepost.Probe) { p.Status = milepost.ProbeTimeout }),
		"partition expects 2 f2p and 2 p2p tests, the baseline has 1": claims(func(p *milepost.Probe) {
			p.Report, p.Partition = nil, &milepost.Partition{F2P: milepost.PartitionCounts{Expected: 2}, P2P: milepost.PartitionCounts{Expected: 2}}
		}),
		"partition has a negative count": claims(func(p *milepost.Probe) {
			p.Report, p.Partition = nil, &milepost.Partition{F2P: milepost.PartitionCounts{Expected: 1, Passed: -1}, P2P: milepost.PartitionCounts{Expected: 2}}
		}),
	} {
		r := mustAssign(t, Default(), []Input{oneEpisode(1, 2, nil, p)})
		if len(r.Warnings) != 1 || !strings.HasPrefix(r.Warnings[0], "episode e step 1: ") || !strings.Contains(r.Warnings[0], words) {
			t.Errorf("got %q, want %q", r.Warnings, words)
		}
		if c := r.Episodes[0].Steps[1]; c.PhiVer != 0 || c.R != 0 {
			t.Errorf("%s: earns %+v", words, c)
		}
		if r.Summary.Probes != 1 || r.Summary.ProbesTrusted != 0 {
			t.Errorf("%s: %+v", words, r.Summary)
		}
	}
}

func TestUntrustedBaselinesAreWarnedAbout(t *testing.T) {
	for words, change := range map[string]func(*Input){
		"there is no baseline":                     func(in *Input) { in.Baseline = nil },
		"the baseline is not trusted: image moved": func(in *Input) { in.Baseline.Trusted, in.Baseline.Reason = false, "image moved" },
		`did not complete (status "timeout")`:      func(in *Input) { in.Baseline.Status = milepost.ProbeTimeout },
		"has no report over the task's tests":      func(in *Input) { in.Baseline.Report = nil },
		"report has 2 tests, the task has 3":       func(in *Input) { in.Baseline.Report = in.Baseline.Report[:2] },
	} {
		in := oneEpisode(1, 2, seen(t, "PPP"))
		change(&in)
		in.Episode.Steps[0].Valid = false
		r := mustAssign(t, Default(), []Input{in})
		if len(r.Warnings) != 1 || !strings.HasPrefix(r.Warnings[0], "task t: no verification credit: ") || !strings.Contains(r.Warnings[0], words) {
			t.Errorf("got %q, want %q", r.Warnings, words)
		}
		if c := r.Episodes[0].Steps[0]; c.PhiVer != 0 || c.P != -.25 { // the rest still trains
			t.Errorf("%s: %+v", words, c)
		}
	}
}

// A probe of trusted states, step by step, worked by hand: |F2P| = 2, |P2P| = 4.
func TestNormalizedByHand(t *testing.T) {
	counts := seen(t, "")
	counts.Report, counts.Partition = nil, &milepost.Partition{
		F2P: milepost.PartitionCounts{Expected: 2, Passed: 1, Failed: 1}, P2P: milepost.PartitionCounts{Expected: 4, Passed: 4}}
	in := oneEpisode(2, 4,
		seen(t, "PFPPPP"), // 1/2
		seen(t, "PPFEPP"), // 1 - .1 - .5*2/4
		seen(t, "PPNSPP"), // neutral: as before
		seen(t, "PPPNPP"), // one cleared: 1 - .1 - .5*1/4
		counts,            // all seen and none fails: 1/2, and the evidence is gone
		seen(t, "PPNNNN")) // 1
	want := []float64{.5, .65, .65, .775, .5, 1}
	r := mustAssign(t, Default(), []Input{in})
	for k, w := range want {
		if got := r.Episodes[0].Steps[k].PhiVer; !near(got, w) {
			t.Errorf("step %d: phi_ver %v, want %v", k, got, w)
		}
	}
}

func TestProcessBaselineGroupMean(t *testing.T) {
	c := Default()
	c.ProcessBaseline = BaselineGroupMean
	a, b, none := oneEpisode(1, 1, nil, nil), oneEpisode(1, 1, nil), oneEpisode(1, 1)
	b.Episode.ID, none.Episode.ID = "f", "n"
	a.Episode.Steps[0].Valid = false // p = -.25, 0: mean -.125; b: 0; none counts for nothing
	r := mustAssign(t, c, []Input{a, b, none})
	for i, want := range [][]float64{{-.25 + .0625, .0625}, {.0625}} {
		for k, w := range want {
			if s := r.Episodes[i].Steps[k]; !near(s.P, w) || !near(s.Advantage, w) {
				t.Errorf("episode %d step %d: %+v, want p %v", i, k, s, w)
			}
		}
	}
	c.Milestone.Enabled = false
	if s := mustAssign(t, c, []Input{a, b}).Episodes[1].Steps[0]; s.P != 0 {
		t.Errorf("milestone off: p is %v", s.P)
	}
}

// The parts of a merged probe are clipped each by itself; the potential is not clipped. A re-anchored one earns nothing.
func TestPassCountByHand(t *testing.T) {
	part := func(k int, letters string, reanchored bool) *milepost.Probe {
		p := seen(t, letters)
		p.Merge, p.Reanchored = &milepost.Merge{ID: "m", Size: 2, Index: k}, reanchored
		return p
	}
	lost := &milepost.Probe{Status: milepost.ProbeTimeout, Continuity: milepost.ContinuityLost}
	c, one := Default(), 1.0
	c.Milestone.Mode, c.Milestone.WVer, c.Milestone.ClipHigh = ModePassCount, &one, 1.5
	in := oneEpisode(8, 0, part(0, "PPPPPPFF", false), part(1, "PPPPPPFF", false), // 6: 3 a part, clipped to 1.5
		seen(t, "FFFFFFFF"),       // -6
		lost, seen(t, "PPPPPPPP"), // frozen
		part(0, "PPFFFFFF", true), part(1, "PPFFFFFF", true), // 2 at once, earning nothing
		seen(t, "PPPFFFFF")) // the freeze is over
	r := mustAssign(t, c, []Input{in})
	for k, want := range [][2]float64{{3, 1.5}, {6, 1.5}, {0, -6}, {0, 0}, {0, 0}, {2, 0}, {2, 0}, {3, 1}} {
		if s := r.Episodes[0].Steps[k]; !near(s.PhiVer, want[0]) || !near(s.R, want[1]) {
			t.Errorf("step %d: phi_ver %v r %v, want %v", k, s.PhiVer, s.R, want)
		}
	}
}

package credit

import (
	"maps"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
)

// graded is an episode of two F2P and four P2P tests with a verdict, resolved where it passes everything.
func graded(t *testing.T, verdict string, probes ...*milepost.Probe) Input {
	t.Helper()
	in := oneEpisode(2, 4, probes...)
	v := seen(t, verdict)
	in.Episode.Outcome = milepost.Outcome{Graded: true, Verdict: v, Resolved: v.Report.AllPassed()}
	return in
}

func mustNew(t *testing.T, c Config) *Engine {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestOutcomeRewardByHand(t *testing.T) {
	limited := func(in Input) Input { in.Episode.Status = milepost.EpisodeLimit; return in }
	changed := func(in Input, change func(*Input)) Input { change(&in); return in }
	untrusted := func(in *Input) { in.Episode.Outcome.Verdict.Trusted = false }
	tokens := func(in *Input) { in.Episode.Steps[0].TokenStart, in.Episode.Steps[0].TokenEnd = 7, 97 } // 90 sampled
	potential := func(c *Config) { c.Outcome = OutcomePotential }
	generation := func(in *Input) { in.Task.Kind = milepost.RepoGeneration }
	counts := func(in *Input) {
		in.Episode.Outcome.Verdict.Report, in.Episode.Outcome.Verdict.Partition = nil, &milepost.Partition{
			F2P: milepost.PartitionCounts{Expected: 2, Passed: 1, Failed: 1}, P2P: milepost.PartitionCounts{Expected: 4, Passed: 3, Errors: 1}}
	}
	length := func(c *Config) {
		c.Overlong = Overlong{MaxTokens: 100, Buffer: 20, Penalty: .5, MaxTurns: 5, TurnsBefore: 1}
	}
	three := []*milepost.Probe{nil, nil, nil}
	for name, c := range map[string]struct {
		in     Input
		config func(*Config)
		want   float64
	}{
		"resolved":                     {graded(t, "PPPPPP"), nil, 1},
		"not resolved":                 {graded(t, "PPPPPF"), nil, 0},
		"limit, second of four":        {limited(graded(t, "PPPPPP", seen(t, "PFPPPP"), seen(t, "PPPPPP"), nil, nil)), nil, .5},
		"limit, no step known":         {limited(graded(t, "PPPPPP", nil, nil)), nil, .6},
		"passed at a limit":            {limited(graded(t, "PPPPPP", nil, seen(t, "PPPPPP"))), func(c *Config) { c.Outcome = OutcomePassed }, 1},
		"limit, not resolved":          {limited(graded(t, "PFPPPP", seen(t, "PPPPPP"))), nil, 0},
		"potential: one of two fixed":  {graded(t, "PFPPPP"), potential, .5},
		"potential: fixed and broken":  {graded(t, "PPFEPP"), potential, 1 - .1 - .5*2/4},
		"potential: all":               {graded(t, "PPPPPP"), potential, 1},
		"potential: skipped is no sin": {graded(t, "PPSNPP"), potential, 1},
		"potential: counts":            {changed(graded(t, "PPPPPP"), counts), potential, .5 - .1 - .5*1/4},
		"potential: untrusted verdict": {changed(graded(t, "PPPPPP"), untrusted), potential, 0},
		"potential: no verdict":        {changed(graded(t, "PPPPPP"), func(in *Input) { in.Episode.Outcome.Verdict = nil }), potential, 0},
		"potential: no baseline":       {changed(graded(t, "PPPPPP"), func(in *Input) { in.Baseline = nil }), potential, 0},
		"potential: other tests":       {graded(t, "PPPPP"), potential, 0},
		"potential: limit is not read": {limited(graded(t, "PFPPPP", seen(t, "PPPPPP"))), potential, .5},
		"potential: pass_count":        {changed(graded(t, "PPFFFF"), generation), potential, 2 - 4},
		"potential: pass_count gains":  {changed(graded(t, "PPPPPF"), generation), potential, 5 - 4},
		"tokens 10 into the buffer":    {changed(graded(t, "PPPPPP", nil), tokens), length, 1 - .25},
		"two turns too many of four":   {graded(t, "PPPPPP", three...), length, 1 - .5},
		"both terms, nothing resolved": {changed(graded(t, "PFPPPP", three...), tokens), length, -.25 - .5},
		"potential and length":         {graded(t, "PFPPPP", three...), func(c *Config) { length(c); potential(c) }, 0}, // .5 - .5
	} {
		cfg := Default()
		if c.config != nil {
			c.config(&cfg)
		}
		if got := mustNew(t, cfg).OutcomeReward(c.in); !near(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// The prices of regression and the mode are those of the milestone section, also where its terms are switched off.
func TestOutcomePotentialReadsTheMilestoneNumbers(t *testing.T) {
	c := Default()
	c.Outcome, c.Milestone.Enabled, c.Milestone.BetaAny, c.Milestone.BetaFrac = OutcomePotential, false, .3, .4
	if got := mustNew(t, c).OutcomeReward(graded(t, "PPFEPP")); !near(got, 1-.3-.4*2/4) {
		t.Errorf("got %v", got)
	}
	c.Milestone.Mode = ModePassCount
	if got := mustNew(t, c).OutcomeReward(graded(t, "PPFEPP")); got != 0 { // 4 - 4
		t.Errorf("pass_count: got %v", got)
	}
}

func TestObjectivesByHand(t *testing.T) {
	in := graded(t, "PFPPPF", seen(t, "PPPPPP"), nil, nil, nil)
	in.Task.RelevantFiles = []string{"a.py", "b.py"}
	show := func(step int, path string, level milepost.ExposureLevel) {
		in.Episode.Steps[step].Exposures = append(in.Episode.Steps[step].Exposures, milepost.Exposure{Path: path, Level: level, Confidence: "high"})
	}
	show(0, "a.py", milepost.ExposureSearch)
	show(1, "a.py", milepost.ExposureRead)
	show(2, "b.py", milepost.ExposureSearch)
	in.Episode.Steps[3].Valid = false
	c := Default()
	c.Estimator = "mo_grpo"
	want := map[string]float64{"resolved": 0, "verification": .5 - .1 - .5*1/4, "navigation": (1 + .2) / 2, "format": 3. / 4}
	for name, change := range map[string]func(*Config){
		"default": func(*Config) {}, "null": func(c *Config) { c.Objectives = nil }, "switches off": func(c *Config) { c.Milestone.Enabled = false },
	} {
		cfg := c
		change(&cfg)
		got := mustNew(t, cfg).Objectives(in)
		if len(got) != len(want) {
			t.Errorf("%s: %v", name, got)
		}
		for k, w := range want {
			if !near(got[k], w) {
				t.Errorf("%s: %s is %v, want %v", name, k, got[k], w)
			}
		}
	}
	c.Objectives, c.Overlong = []string{"reward", "format"}, Overlong{MaxTurns: 4, TurnsBefore: 2}
	if got := mustNew(t, c).Objectives(in); !maps.Equal(got, map[string]float64{"reward": -1, "format": .75}) {
		t.Errorf("reward: %v", got)
	}
	none := graded(t, "PPPPPP")
	if got := mustNew(t, c).Objectives(none); got["format"] != 1 || got["reward"] != 1 {
		t.Errorf("without steps: %v", got)
	}
	for _, name := range Estimators() {
		c := Default()
		c.Estimator = name
		if got := mustNew(t, c).Objectives(in); (got != nil) != (name == "mo_grpo") || NeedsObjectives(name) != (got != nil) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A group as a run sets it, worked by hand: resolved and navigation tell the two apart, the others do not.
func TestMOGRPOFromObjectives(t *testing.T) {
	good, bad := graded(t, "PPPPPP", nil), graded(t, "PFPPPP", nil)
	bad.Episode.ID = "f"
	bad.Task, bad.Baseline = good.Task, good.Baseline
	good.Task.RelevantFiles = []string{"a.py"}
	good.Episode.Steps[0].Exposures = []milepost.Exposure{{Path: "a.py", Level: milepost.ExposureRead, Confidence: "high"}}
	c := outcomeOnly("mo_grpo")
	e := mustNew(t, c)
	for _, in := range []Input{good, bad} {
		in.Episode.Outcome.Objectives = e.Objectives(in)
	}
	std := func(gap float64) float64 { return gap / 1.4142135623730951 } // of two numbers that differ by gap
	// resolved 1, 0; verification 1, .5; navigation 1, 0; format 1, 1
	want := .5/(std(1)+1e-6) + .25/(std(.5)+1e-6) + .5/(std(1)+1e-6)
	wantAOut(t, mustAssign(t, c, []Input{good, bad}), []float64{want}, []float64{-want})
}

func TestObjectiveRefusals(t *testing.T) {
	for words, change := range map[string]func(*Config){
		`field objectives is [speed]; allowed: one or more of resolved, reward, verification, navigation, format`: func(c *Config) { c.Objectives = []string{"speed"} },
		`field objectives is []; allowed: one or more of`:                                                         func(c *Config) { c.Objectives = []string{} },
		`field objectives is [format format]; allowed: `:                                                          func(c *Config) { c.Objectives = []string{"format", "format"} },
		`allowed: a list with reward, since mo_grpo reads nothing else and outcome or overlong`:                   func(c *Config) { c.Estimator, c.Outcome = "mo_grpo", OutcomePotential },
		`verification navigation format]; allowed: a list with reward`:                                            func(c *Config) { c.Estimator, c.Overlong.MaxTurns = "mo_grpo", 3 },
	} {
		c := Default()
		change(&c)
		_, err := New(c)
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
	c := Default()
	c.Outcome = OutcomePotential // grpo reads the reward itself
	mustNew(t, c)
}

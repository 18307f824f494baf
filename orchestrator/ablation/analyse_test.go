package ablation

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// handRun is a run of two updates over tasks a and b, measured after both.
func handRun(seed int64, tokens int64, first, last map[string][]float64) Run {
	r := Run{Seed: seed, Finished: true, FinalUpdate: 2, Final: evaluationOf(last), Cost: Cost{Episodes: 16, Tokens: 2 * tokens, Probes: int(seed), Active: 60 * float64(seed)}}
	r.Points = []Point{{Update: 1, Episodes: 8, Tokens: tokens, Train: .25}, {Update: 2, Episodes: 16, Tokens: 2 * tokens, Train: .75}}
	r.Points[0].measure(evaluationOf(first))
	r.Points[1].measure(r.Final)
	return r
}

// hand is a study whose every number can be worked out on paper. Arm b samples twice as many tokens an update.
func hand() Study {
	none, half, all := []float64{0, 0}, []float64{0, 1}, []float64{1, 1}
	tasks := func(a, b []float64) map[string][]float64 { return map[string][]float64{"a": a, "b": b} }
	s := Study{Name: "hand", Reference: "a", Start: evaluationOf(tasks(none, half)), Options: DefaultOptions()}
	s.Options.Smooth = 1
	s.Arms = []Arm{
		{Name: "a", Runs: []Run{handRun(1, 100, tasks(none, half), tasks(half, half)), handRun(2, 100, tasks(half, half), tasks(half, all))}},
		{Name: "b", Search: []Trial{{Rate: 1, Updates: 3}, {Rate: 2, Updates: 4}}, Runs: []Run{handRun(1, 200, tasks(half, half), tasks(all, half)), handRun(2, 200, tasks(half, all), tasks(all, all))}},
	}
	return s
}

func analyse(t *testing.T, s Study) Result {
	t.Helper()
	r, err := Analyse(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAnalyseByHand(t *testing.T) {
	r := analyse(t, hand())
	if r.Episodes != 16 || r.Tokens != 200 || r.Tasks != 2 || r.Runs != 4 || r.Finished != 4 || len(r.Warnings) != 0 {
		t.Errorf("counts: %+v", r)
	}
	a, b := r.Arms[0], r.Arms[1]
	near(t, "cold start", r.Start.Value, .25, 1e-15)
	for _, c := range []struct {
		what string
		got  *Estimate
		want []float64 // by seed
	}{
		{"final of a", a.Final, []float64{.5, .75}}, {"final of b", b.Final, []float64{.75, 1}},
		{"gain of a", a.Gain, []float64{.25, .5}}, {"gain of b", b.Gain, []float64{.5, .75}},
		{"a at equal episodes", a.AtEpisodes, []float64{.5, .75}}, {"b at equal episodes", b.AtEpisodes, []float64{.75, 1}},
		{"a at equal tokens", a.AtTokens, []float64{.5, .75}}, {"b at equal tokens", b.AtTokens, []float64{.5, .75}}, // b's first measurement
		{"area of a over episodes", a.AreaEpisodes, []float64{(.25 + .375) / 2, (.375 + .625) / 2}},
		{"area of b over tokens", b.AreaTokens, []float64{.375, .5}}, // from the cold start to the first measurement
		{"difference at equal episodes", &r.Compare("b", AtEpisodes).Difference, []float64{.25, .25}},
		{"difference at equal tokens", &r.Compare("b", AtTokens).Difference, []float64{0, 0}},
	} {
		if !slices.Equal(c.got.Seeds, []int64{1, 2}) || c.got.Tasks != 2 {
			t.Errorf("%s is over seeds %v and %d tasks", c.what, c.got.Seeds, c.got.Tasks)
		}
		near(t, c.what, c.got.Value, (c.want[0]+c.want[1])/2, 1e-12)
		for i := range c.want {
			near(t, c.what, c.got.PerSeed[i], c.want[i], 1e-12)
		}
	}
	if want := (MeanCost{Episodes: 16, Tokens: 400, Probes: 1.5, Active: 90, Trials: 2, TrialUpdates: 7}); b.Cost != want {
		t.Errorf("cost of b: %+v, want %+v", b.Cost, want)
	}
	if want := []BandPoint{{0, 0, 0, .25, .25, .25, 2}, {1, 8, 100, .375, .25, .5, 2}, {2, 16, 200, .625, .5, .75, 2}}; !reflect.DeepEqual(a.Heldout, want) {
		t.Errorf("held-out band of a: %v, want %v", a.Heldout, want)
	}
	if want := []BandPoint{{1, 8, 200, .25, .25, .25, 2}, {2, 16, 400, .75, .75, .75, 2}}; !reflect.DeepEqual(b.Train, want) {
		t.Errorf("training band of b: %v, want %v", b.Train, want)
	}
	// By task the difference at equal episodes is .5 and 0 in both seeds: a quarter of the draws is 0 and none is below.
	c := r.Compare("b", AtEpisodes)
	near(t, "p", c.P, .5, .02)
	if c.Corrected != c.P || c.PT != nil || c.Difference.T != nil || c.Verdict != Same || c.Difference.Bootstrap != (Interval{0, .5}) {
		t.Errorf("comparison: %+v", c)
	}
	if c := r.Compare("b", AtTokens); c.Difference.Value != 0 || c.Verdict != Same {
		t.Errorf("at equal tokens: %+v", c)
	}
}

func TestSwappingArmsFlipsTheSign(t *testing.T) {
	for seed := range uint64(4) {
		s := synthetic([]armSpec{{"a", .3, 40000, 0}, {"b", .2, 50000, 0}}, 3, 20, 8, .05, seed)
		s.Options.Resamples = 500
		there := analyse(t, s)
		s.Reference = "b"
		back := analyse(t, s)
		for _, basis := range Bases {
			x, y := there.Compare("b", basis), back.Compare("a", basis)
			d, e := x.Difference, y.Difference
			if x.P != y.P || x.Corrected != y.Corrected || math.Abs(*x.PT-*y.PT) > 1e-12 {
				t.Errorf("%s: p %v and %v", basis, x, y)
			}
			near(t, "value", d.Value, -e.Value, 1e-12)
			near(t, "low", d.Bootstrap.Low, -e.Bootstrap.High, 1e-12)
			near(t, "high", d.Bootstrap.High, -e.Bootstrap.Low, 1e-12)
			near(t, "low of t", d.T.Low, -e.T.High, 1e-12)
			for i := range d.PerSeed {
				near(t, "seed", d.PerSeed[i], -e.PerSeed[i], 1e-12)
			}
		}
	}
}

func TestIdenticalArmsDoNotDiffer(t *testing.T) {
	s := usual()
	twin := s.Arms[0]
	twin.Name = "twin"
	s.Arms = append(s.Arms, twin)
	r := analyse(t, s)
	for _, b := range Bases {
		c := r.Compare("twin", b)
		if c.Difference.Value != 0 || c.Difference.Bootstrap != (Interval{}) || c.Difference.T != nil || c.P != 1 || c.Corrected != 1 || c.Verdict != Same {
			t.Errorf("%s: %+v", b, c)
		}
	}
}

// TestOrderOfRunsDoesNotMatter: seeds are paired by number, not by place.
func TestOrderOfRunsDoesNotMatter(t *testing.T) {
	s := usual()
	want := analyse(t, s)
	for i := range s.Arms {
		if i%2 == 0 {
			slices.Reverse(s.Arms[i].Runs)
		}
	}
	got := analyse(t, s)
	for i, c := range got.Comparisons {
		if !reflect.DeepEqual(c, want.Comparisons[i]) {
			t.Errorf("%+v, want %+v", c, want.Comparisons[i])
		}
	}
}

func TestEqualStudiesGiveEqualBytes(t *testing.T) {
	write := func() string {
		s := usual()
		r := analyse(t, s)
		var b bytes.Buffer
		if err := WriteMarkdown(&b, s, r); err != nil {
			t.Fatal(err)
		}
		if err := WriteHTML(&b, s, r); err != nil {
			t.Fatal(err)
		}
		for _, sh := range sheets(s, r) {
			x, err := sh.bytes()
			if err != nil {
				t.Fatal(err)
			}
			b.Write(x)
		}
		return b.String()
	}
	first := write()
	for range 3 {
		if write() != first {
			t.Fatal("the same study came out otherwise")
		}
	}
	s := usual()
	s.Options.Seed++
	if reflect.DeepEqual(analyse(t, s).Comparisons, analyse(t, usual()).Comparisons) {
		t.Error("options.seed changes nothing")
	}
}

func TestVerdicts(t *testing.T) {
	p := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		d, p float64
		pt   *float64
		want Verdict
	}{
		{.1, .01, p(.04), Better}, {.1, .01, p(.06), LeansBetter}, {.1, .01, nil, LeansBetter},
		{-.1, .05, p(.01), Worse}, {-.1, .01, p(.051), LeansWorse}, {-.1, .01, nil, LeansWorse},
		{.1, .051, p(.01), Same},
	} {
		if got := verdict(Comparison{Difference: Estimate{Value: c.d}, Corrected: c.p, CorrectedT: c.pt}, 1-.95); got != c.want {
			t.Errorf("%+v: %s, want %s", c, got, c.want)
		}
	}
}

// TestWhatIsMissingIsTold: nothing that does not enter a number goes without a warning.
func TestWhatIsMissingIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Study)
		want   string
	}{
		"unfinished run":    {func(s *Study) { s.Arms[1].Runs[1].Finished = false }, "b is unfinished: 1 of 2 runs"},
		"seed not shared":   {func(s *Study) { s.Arms[1].Runs[1].Seed = 9 }, "b against a (equal episodes): seeds that both have: 1, of 2 and 2"},
		"no seed shared":    {func(s *Study) { s.Arms[1].Runs[0].Seed, s.Arms[1].Runs[1].Seed = 8, 9 }, "b cannot be compared with a at equal tokens: they share no seed and task"},
		"reference not run": {func(s *Study) { s.Arms[0].Runs[0].Finished, s.Arms[0].Runs[1].Finished = false, false }, "the reference has no finished run there"},
		"arm not run":       {func(s *Study) { s.Arms[1].Runs = nil }, "b has no runs"},
		"task lost": {func(s *Study) {
			r := &s.Arms[1].Runs[0]
			r.Final = evaluationOf(map[string][]float64{"a": {1, 1}})
			r.Points[1].measure(r.Final)
		}, "b against a (equal episodes): held-out tasks that every run of both has: 1, of 2"},
		"older weights":      {func(s *Study) { s.Arms[1].Runs[0].FinalUpdate = 1 }, "the final evaluation is of the weights of update 1, not of the last, 2"},
		"curve without zero": {func(s *Study) { s.Start = nil }, "a, seed 1: no area under the curve over tokens: it does not begin at 0"},
		"curve too late": {func(s *Study) {
			s.Start = nil
			s.Arms[1].Runs[0].Points[0].Tokens = 201
		}, "b, seed 1: its held-out curve does not span the point of equal tokens"},
	} {
		s := hand()
		c.change(&s)
		r := analyse(t, s)
		if !strings.Contains(strings.Join(r.Warnings, "\n"), c.want) {
			t.Errorf("%s: warnings %q lack %q", name, r.Warnings, c.want)
		}
		var b bytes.Buffer
		if err := WriteMarkdown(&b, s, r); err != nil || !strings.Contains(b.String(), c.want) {
			t.Errorf("%s: the tables do not tell (%v)", name, err)
		}
		if err := WriteHTML(&b, s, r); err != nil || strings.Contains(b.String(), "NaN") {
			t.Errorf("%s: %v, or a number that is none", name, err)
		}
	}
}

func TestUnpairedSeedsStayInTheirArm(t *testing.T) {
	s := hand()
	s.Arms[1].Runs[1].Seed = 9
	r := analyse(t, s)
	if got := r.Arms[1].Final.Seeds; !slices.Equal(got, []int64{1, 9}) {
		t.Errorf("the arm's own mean is over seeds %v", got)
	}
	c := r.Compare("b", AtEpisodes)
	if !slices.Equal(c.Difference.Seeds, []int64{1}) || c.PT != nil || c.Difference.T != nil {
		t.Errorf("comparison: %+v", c)
	}
}

func TestStudyThatHasNotBegun(t *testing.T) {
	s := hand()
	s.Start = nil
	for i := range s.Arms {
		s.Arms[i].Runs = []Run{{Seed: 1}, {Seed: 2}}
	}
	r := analyse(t, s)
	if r.unfinished() != "unfinished: 0 of 4 runs have ended" || len(r.Comparisons) != 0 || r.Arms[0].Final != nil {
		t.Errorf("%+v", r)
	}
	if err := Write(t.TempDir(), s, r); err != nil {
		t.Error(err)
	}
}

func TestBadStudies(t *testing.T) {
	nan := math.NaN()
	for want, change := range map[string]func(*Study){
		`reference: "c" is no arm; allowed: a, b`:                                func(s *Study) { s.Reference = "c" },
		`arm "a": occurs twice`:                                                  func(s *Study) { s.Arms[1].Name = "a" },
		`arm 2: has no name`:                                                     func(s *Study) { s.Arms[1].Name = " " },
		`arm "b", seed 1: occurs twice`:                                          func(s *Study) { s.Arms[1].Runs[1].Seed = 1 },
		`arm "b", seed 2, update 1: train is NaN; allowed: 0 to 1`:               func(s *Study) { s.Arms[1].Runs[1].Points[0].Train = nan },
		`arm "b", seed 2, update 1: entropy is +Inf`:                             func(s *Study) { s.Arms[1].Runs[1].Points[0].Entropy = math.Inf(1) },
		`arm "a", seed 1, update 2: has a held-out rate of NaN`:                  func(s *Study) { s.Arms[0].Runs[0].Points[1].Heldout = &nan },
		`arm "a", seed 1, update 2: has a held-out rate or held-out tasks with`:  func(s *Study) { s.Arms[0].Runs[0].Points[1].Tasks = nil },
		`arm "a", seed 1, update 2: held-out task a is 2; allowed: 0 to 1`:       func(s *Study) { s.Arms[0].Runs[0].Points[1].Tasks = map[string]float64{"a": 2} },
		`arm "a", seed 1, update 1: follows update 1; updates must ascend`:       func(s *Study) { s.Arms[0].Runs[0].Points[1].Update = 1 },
		`arm "a", seed 1, update 2: has 3 episodes and 200 tokens after 8 and 1`: func(s *Study) { s.Arms[0].Runs[0].Points[1].Episodes = 3 },
		`arm "a", seed 1: has finished without an evaluation`:                    func(s *Study) { s.Arms[0].Runs[0].Final = nil },
		`arm "a", seed 1, final evaluation: task a is -1; allowed: 0 to 1`:       func(s *Study) { s.Arms[0].Runs[0].Final.Tasks["a"][0] = -1 },
		`arm "a", seed 1, final evaluation: task "a" has no attempts`:            func(s *Study) { s.Arms[0].Runs[0].Final.Tasks["a"] = nil },
		`start: has no graded attempt`:                                           func(s *Study) { s.Start = &orchestrator.Evaluation{} },
		`arm "b", trial 2: score is NaN`:                                         func(s *Study) { s.Arms[1].Search[1].Score = nan },
		`arm "b": learning rate is NaN`:                                          func(s *Study) { s.Arms[1].Rate = nan },
		`arm "b", seed 1: cost is NaN`:                                           func(s *Study) { s.Arms[1].Runs[0].Cost.Active = nan },
		`resamples is 0; allowed: 100 to 1000000`:                                func(s *Study) { s.Options.Resamples = 0 },
		`confidence is NaN; allowed: above 0.5 and below 1`:                      func(s *Study) { s.Options.Confidence = nan },
		`correction is "bonferroni"; allowed: holm, bh, none`:                    func(s *Study) { s.Options.Correction = "bonferroni" },
		`smooth is 4; allowed: 1 (no smoothing) or a larger odd number`:          func(s *Study) { s.Options.Smooth = 4 },
	} {
		s := hand()
		change(&s)
		_, err := Analyse(s)
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	var b bytes.Buffer
	if err := WriteMarkdown(&b, usual(), analyse(t, hand())); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("a result of another study: %v", err)
	}
}

package credit

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"pgregory.net/rapid"
)

func mustExplain(t fataler, c Config, in Input) Explanation {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	x, err := e.Explain(in)
	if err != nil {
		t.Fatalf("explain: %v", err)
	}
	return x
}

// Two F2P tests (0, 1) and two P2P tests (2, 3), step by step by hand.
func TestExplainByHand(t *testing.T) {
	late := &milepost.Probe{Status: milepost.ProbeLate, Reason: "the barrier closed", Continuity: milepost.ContinuityKept}
	lost := &milepost.Probe{Status: milepost.ProbeTimeout, Continuity: milepost.ContinuityLost}
	part := func(k int) *milepost.Probe {
		p := seen(t, "PPPP")
		p.Merge = &milepost.Merge{ID: "m", Size: 2, Index: k}
		return p
	}
	in := oneEpisode(2, 2,
		nil,
		seen(t, "PFNF"),  // fixes 0, breaks 3; 2 was not run: still good
		late,             // carried
		part(0), part(1), // fixes 1 and 3, earns the change since the late one
		seen(t, "FPPSP"),                 // five tests: refused
		lost,                             // freezes
		seen(t, "FPPP"), seen(t, "FSPP")) // frozen: 0 breaks, then 1
	x := mustExplain(t, Default(), in)
	want := []StepNote{
		{},
		{Probed: true, Trusted: true, Change: .5 - .1 - .25, Fixed: []int{0}, Broken: []int{3}},
		{Probed: true, Reason: "late: the barrier closed", Carried: true},
		{Probed: true, Trusted: true, Since: 1, Part: 1, Parts: 2, Change: (1 - .15) / 2},
		{Probed: true, Trusted: true, Part: 2, Parts: 2, Change: (1 - .15) / 2, Fixed: []int{1, 3}},
		{Probed: true, Reason: "report has 5 tests, the task has 4", Carried: true},
		{Probed: true, Reason: "timeout", Freezes: true},
		{Probed: true, Trusted: true, Since: 2, Frozen: true, Broken: []int{0}},
		{Probed: true, Trusted: true, Frozen: true, Broken: []int{1}},
	}
	for k := range want {
		got := x.Steps[k]
		if !near(got.Change, want[k].Change) {
			t.Errorf("step %d: change %v, want %v", k, got.Change, want[k].Change)
		}
		got.Change = want[k].Change
		if !reflect.DeepEqual(got, want[k]) {
			t.Errorf("step %d: %+v, want %+v", k, got, want[k])
		}
	}
	if x.Mode != ModeNormalized || x.WVer != .2 || x.WNav != .05 || x.Baseline != (BaselineNote{Trusted: true, F2P: 2, P2P: 2}) {
		t.Errorf("%+v", x)
	}
}

func TestExplainPassCount(t *testing.T) {
	anchored := seen(t, "PPFFFF")
	anchored.Reanchored = true
	in := oneEpisode(5, 1, seen(t, "PPPPPF"), anchored)
	in.Task.Kind = milepost.RepoGeneration
	x := mustExplain(t, Default(), in)
	want := []StepNote{
		{Probed: true, Trusted: true, Change: 3, Clipped: 1, Fixed: []int{0, 1, 2, 3, 4}, Broken: []int{5}}, // 4, clipped to 3
		{Probed: true, Trusted: true, Anchored: true, Broken: []int{2, 3, 4}},
	}
	if !reflect.DeepEqual(x.Steps, want) || x.Mode != ModePassCount || x.WVer != .1 || x.WNav != 0 {
		t.Errorf("%+v", x)
	}
}

// Counts name no tests: the next report has nothing to be compared with, the one after it has.
func TestExplainCounts(t *testing.T) {
	counts := seen(t, "")
	counts.Report, counts.Partition = nil, &milepost.Partition{
		F2P: milepost.PartitionCounts{Expected: 1, Passed: 1}, P2P: milepost.PartitionCounts{Expected: 1, Passed: 1}}
	x := mustExplain(t, Default(), oneEpisode(1, 1, counts, seen(t, "PF"), seen(t, "PP")))
	for k, want := range [][2]int{{0, 0}, {0, 0}, {1, 0}} {
		if s := x.Steps[k]; !s.Trusted || len(s.Fixed) != want[0] || len(s.Broken) != want[1] {
			t.Errorf("step %d: %+v", k, s)
		}
	}
}

func TestExplainBaselineAndExcluded(t *testing.T) {
	in := oneEpisode(1, 1, seen(t, "PP"))
	in.Baseline.Trusted, in.Baseline.Reason = false, "image moved"
	x := mustExplain(t, Default(), in)
	if x.Baseline != (BaselineNote{Reason: "the baseline is not trusted: image moved"}) || x.Steps[0].Change != 0 || !x.Steps[0].Trusted {
		t.Errorf("%+v", x)
	}
	in.Episode.Status = milepost.EpisodeInfra
	if x := mustExplain(t, Default(), in); x.Steps != nil {
		t.Errorf("excluded: %+v", x.Steps)
	}
	e := mustNew(t, Default())
	if _, err := e.Explain(Input{}); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("no episode: %v", err)
	}
	broken := oneEpisode(1, 1, nil)
	broken.Episode.Steps[0].Index = 4
	if _, err := e.Explain(broken); err == nil || !strings.Contains(err.Error(), "episode e step 0: its index is 4") {
		t.Errorf("got %v", err)
	}
}

// The notes say what Assign did: the changes are those that r is made of, and a note of no effect means no reward.
func TestExplainAgreesWithAssign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Default()
		c.Milestone.Navigation = false
		c.Milestone.Mode = rapid.SampledFrom([]string{ModeNormalized, ModePassCount}).Draw(t, "mode")
		inputs := drawInputs(t, everything)
		for i, e := range mustAssign(t, c, inputs).Episodes {
			x := mustExplain(t, c, inputs[i])
			if len(x.Steps) != len(e.Steps) {
				t.Fatalf("episode %s: %d notes, %d steps", e.ID, len(x.Steps), len(e.Steps))
			}
			phi := 0.0
			for k, n := range x.Steps {
				if s := e.Steps[k]; !near(s.R, x.WVer*n.Change) {
					t.Fatalf("episode %s step %d: r %v, note %+v", e.ID, k, s.R, n)
				}
				moved := math.Abs(e.Steps[k].PhiVer-phi) > 1e-9
				if moved && !n.Anchored && !near(e.Steps[k].PhiVer-phi, n.Change+n.Clipped) {
					t.Fatalf("episode %s step %d: phi moves by %v, note %+v", e.ID, k, e.Steps[k].PhiVer-phi, n)
				}
				if still := n.Frozen || n.Carried || n.Freezes || !n.Probed; still && (moved || n.Change != 0) {
					t.Fatalf("episode %s step %d: phi moves although %+v", e.ID, k, n)
				}
				if x.Baseline.Trusted && n.Probed && !n.Trusted != (n.Carried || n.Freezes) || n.Trusted != (n.Reason == "") && n.Probed {
					t.Fatalf("episode %s step %d: %+v", e.ID, k, n)
				}
				phi = e.Steps[k].PhiVer
			}
		}
	})
}

func TestExplainRewardByHand(t *testing.T) {
	in := graded(t, "PPPPPP", seen(t, "PFPPPP"), seen(t, "PPPPPP"), nil, nil)
	in.Episode.Status, in.Episode.Steps[0].TokenEnd = milepost.EpisodeLimit, 90
	c := Default()
	c.Overlong = Overlong{MaxTokens: 100, Buffer: 20, Penalty: .5, MaxTurns: 5, TurnsBefore: 3}
	want := RewardNote{Source: OutcomeResolved, Outcome: .5, Limit: &LimitNote{Step: 1, Steps: 4}, Tokens: 90, Turns: 4,
		TokenTerm: -.25, TurnTerm: -.5, Total: -.25}
	if got := mustNew(t, c).ExplainReward(in); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestExplainGroup(t *testing.T) {
	inputs := outcomes([]float64{1, 0, 0, 1})
	inputs[3].Episode.Status = milepost.EpisodeInfra
	c := outcomeOnly("grpo")
	r := mustAssign(t, c, inputs)
	n := mustNew(t, c).ExplainGroup(inputs, r.Episodes)
	if n.ID != "g" || n.Excluded != 1 || !reflect.DeepEqual(n.Rewards, []float64{1, 0, 0}) || !near(n.Mean, 1./3) || !near(n.Std, .5773502691896258) || n.Objectives != nil {
		t.Errorf("%+v", n)
	}
	if !n.Kept[0].Kept || !n.Kept[1].Kept || n.Kept[0].Why != "outcome rewards differ" || !strings.HasPrefix(n.Kept[1].Why, "the largest |A| of the group is 1.155") {
		t.Errorf("%+v", n.Kept)
	}
	equal := outcomes([]float64{.1, .1})
	n = mustNew(t, c).ExplainGroup(equal, mustAssign(t, c, equal).Episodes)
	if n.Mean != .1 || n.Std != 0 || n.Kept[0].Kept || n.Kept[1].Kept || n.Kept[0].Why != "every outcome reward is 0.1" {
		t.Errorf("%+v", n)
	}
	for i, in := range equal {
		in.Episode.Outcome.Objectives = map[string]float64{"format": float64(i), "resolved": 1}
	}
	n = mustNew(t, outcomeOnly("mo_grpo")).ExplainGroup(equal, nil)
	want := []TermNote{{"format", []float64{0, 1}, .5, .7071067811865476}, {"resolved", []float64{1, 1}, 1, 0}}
	if !reflect.DeepEqual(n.Objectives, want) {
		t.Errorf("%+v", n.Objectives)
	}
	if n := mustNew(t, c).ExplainGroup(nil, nil); n.Std != 0 || n.Kept[0].Why != "no episode is in the statistics" {
		t.Errorf("%+v", n)
	}
}

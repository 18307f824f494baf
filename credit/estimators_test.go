package credit

import (
	"testing"

	"github.com/milepost-rl/milepost"
)

// outcomes is a group of episodes without milestone credit, one a reward; each has the given states and a final "end".
func outcomes(rewards []float64, states ...[]string) []Input {
	task := &milepost.Task{ID: "t"}
	var out []Input
	for i, r := range rewards {
		e := &milepost.Episode{ID: string(rune('a' + i)), Group: "g", Status: milepost.EpisodeCompleted,
			FinalState: "end", Outcome: milepost.Outcome{Reward: r}}
		path := []string{"start"}
		if len(states) > 0 {
			path = states[i]
		}
		for t, s := range path {
			e.Steps = append(e.Steps, milepost.Step{Index: t, State: s, Valid: true, TokenEnd: 1})
		}
		out = append(out, Input{Episode: e, Task: task})
	}
	return out
}

func outcomeOnly(estimator string) Config {
	c := Default()
	c.Estimator, c.Milestone.Enabled = estimator, false
	return c
}

func wantAOut(t *testing.T, r Result, want ...[]float64) {
	t.Helper()
	for i := range want {
		for k, w := range want[i] {
			if got := r.Episodes[i].Steps[k].AOut; !near(got, w) {
				t.Errorf("episode %d step %d: A_out %v, want %v", i, k, got, w)
			}
		}
	}
}

// Every estimator: groups of one and equal rewards give 0, also for rewards whose mean rounds.
func TestNoComparisonNoSignal(t *testing.T) {
	for _, name := range assignable() {
		for _, rewards := range [][]float64{{1}, {.1, .1, .1}, {0, 0}} {
			inputs := outcomes(rewards)
			for _, in := range inputs {
				in.Episode.Outcome.Objectives = map[string]float64{"resolved": in.Episode.Outcome.Reward}
			}
			for _, e := range mustAssign(t, outcomeOnly(name), inputs).Episodes {
				if e.Steps[0].AOut != 0 {
					t.Errorf("%s over %v: A_out %v", name, rewards, e.Steps[0].AOut)
				}
			}
		}
	}
}

func TestEpisodeEstimatorsByHand(t *testing.T) {
	rewards := []float64{1, 0, 0}
	std := .5773502691896258 + 1e-6
	for name, want := range map[string][2]float64{
		"grpo": {2. / 3 / std, -1. / 3 / std}, "dapo": {2. / 3 / std, -1. / 3 / std},
		"dr_grpo": {2. / 3, -1. / 3}, "reinforce_pp_baseline": {2. / 3, -1. / 3}, "rloo": {1, -.5},
	} {
		t.Run(name, func(t *testing.T) {
			r := mustAssign(t, outcomeOnly(name), outcomes(rewards))
			wantAOut(t, r, []float64{want[0]}, []float64{want[1]}, []float64{want[1]})
		})
	}
}

func TestStateEstimatorsByHand(t *testing.T) {
	paths := [][]string{{"s", "x"}, {"s", "y"}}
	c := outcomeOnly("gigpo")
	c.GroupNorm, c.StepGamma, c.Omega = NormMean, .5, 2
	// returns at s: .5 and 0, mean .25; x and y are alone; episode part +-.5
	wantAOut(t, mustAssign(t, c, outcomes([]float64{1, 0}, paths...)), []float64{1, .5}, []float64{-1, -.5})

	c = outcomeOnly("hgpo")
	c.GroupNorm, c.StepGamma = NormMean, .5
	wantAOut(t, mustAssign(t, c, outcomes([]float64{1, 0}, paths...)), []float64{.25, 0}, []float64{-.25, 0})
	// s,x twice: level 1 and level 2 at x agree on +-.5; a level-1 weight of 2, a level-2 weight of 3
	wantAOut(t, mustAssign(t, c, outcomes([]float64{1, 0}, paths[0], paths[0])), []float64{.25, .5}, []float64{-.25, -.5})

	c = outcomeOnly("graph_gpo")
	c.GroupNorm = NormMean
	// both end in "end" (d 1); x and y have d 2: equal values at s, nothing but the episode part
	wantAOut(t, mustAssign(t, c, outcomes([]float64{1, 0}, paths...)), []float64{.5, .5}, []float64{-.5, -.5})
	failed := outcomes([]float64{1, 0}, paths...)
	failed[1].Episode.FinalState = "dead" // d(end)=1, d(x)=2, d(s)=3, so y and dead have 4: at s .1 and .001
	wantAOut(t, mustAssign(t, c, failed), []float64{.5 + .0495, .5}, []float64{-.5 - .0495, -.5})
}

// A resolved episode that took no step still marks its final state.
func TestGraphGPOEpisodeWithoutSteps(t *testing.T) {
	inputs := outcomes([]float64{0, 0, 1}, []string{"s"}, []string{"s"}, nil)
	inputs[1].Episode.FinalState = "dead"
	c := outcomeOnly("graph_gpo")
	c.GroupNorm = NormMean // rewards: -1/3 each; at s: d(end)=1, d(s)=2, d(dead)=3: values 1 and .01, mean .505
	wantAOut(t, mustAssign(t, c, inputs), []float64{-1./3 + .495}, []float64{-1./3 - .495})
}

func TestWhiten(t *testing.T) {
	inputs := outcomes([]float64{1, 0, 0})
	inputs[0].Episode.Steps[0].TokenEnd = 3
	e, err := New(outcomeOnly("reinforce_pp_baseline"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Assign(inputs)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Whiten(inputs, &r); err != nil {
		t.Fatal(err)
	}
	// tokens: 2/3 three times, -1/3 twice: mean 4/15, variance .3
	scale := 1.8257418278904073 // 1/sqrt(.3 + 1e-8)
	wantAOut(t, r, []float64{.4 * scale}, []float64{-.6 * scale}, []float64{-.6 * scale})
	if s := r.Episodes[0].Steps[0]; s.Advantage != s.AOut {
		t.Errorf("the advantage was not recomputed: %+v", s)
	}
	if err := e.Whiten(inputs[:1], &r); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("other inputs: %v", err)
	}
	grpo := mustAssign(t, outcomeOnly("grpo"), inputs)
	before := grpo.Episodes[0].Steps[0]
	if e, err = New(outcomeOnly("grpo")); err != nil {
		t.Fatal(err)
	}
	if err := e.Whiten(inputs, &grpo); err != nil || grpo.Episodes[0].Steps[0] != before {
		t.Errorf("grpo was whitened (error %v)", err)
	}
}

func TestGAE(t *testing.T) {
	rewards, values := []float64{0, 0, 0, 1}, []float64{.5, 9, .25, .75}
	got, err := GAE(rewards, values, []bool{true, false, true, true}, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{.5, 0, .75, .25} { // gamma = lambda = 1: return - value
		if !near(got[i], want) {
			t.Errorf("token %d: %v, want %v", i, got[i], want)
		}
	}
	if got, err = GAE(rewards, values, []bool{true, false, true, true}, .5, .5); err != nil || !near(got[0], -.375+.25*(.125+.25*.25)) {
		t.Errorf("got %v (error %v)", got, err)
	}
	if _, err = GAE(rewards, values[:3], make([]bool, 4), 1, 1); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("lengths: %v", err)
	}
}

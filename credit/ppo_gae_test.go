package credit

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"pgregory.net/rapid"
)

// twoSamples is an episode of three steps whose prefix breaks before the last: trained tokens of steps 0, 0, 1 | 2.
func twoSamples(reward float64, values ...float64) Input {
	in := outcomes([]float64{reward}, []string{"s", "t", "u"})[0]
	in.Episode.Samples = []milepost.Sample{
		{Tokens: make([]int32, 5), Steps: []int32{-1, 0, 0, -1, 1}}, {Tokens: make([]int32, 3), Steps: []int32{-1, -1, 2}}}
	in.Values = values
	return in
}

func wantNumbers(t *testing.T, what string, got []float64, want ...float64) {
	t.Helper()
	if !slices.EqualFunc(got, want, near) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestPPOGAEByHand(t *testing.T) {
	in := twoSamples(2, .5, .25, .75, 1)
	r := mustAssign(t, outcomeOnly("ppo_gae"), []Input{in})
	wantNumbers(t, "A_out, return minus value", r.Tokens[0].AOut, 1.5, 1.75, 1.25, 1)
	wantNumbers(t, "returns", r.Tokens[0].Returns, 2, 2, 2, 2)
	wantAOut(t, r, []float64{1.625, 1.25, 1})
	if !slices.Equal(r.Tokens[0].Steps, []int32{0, 0, 1, 2}) {
		t.Errorf("steps %v", r.Tokens[0].Steps)
	}

	c := outcomeOnly("ppo_gae")
	c.GAEGamma, c.GAELambda = .5, .5
	r = mustAssign(t, c, []Input{in})
	wantNumbers(t, "discounted A_out", r.Tokens[0].AOut, -.34375, .125, 0, 1)
	wantNumbers(t, "discounted returns", r.Tokens[0].Returns, .15625, .375, .75, 2)
}

// Milestone credit is added to every token of its step and is no part of the returns.
func TestPPOGAEComposes(t *testing.T) {
	in := twoSamples(2, .5, .25, .75, 1)
	in.Episode.Steps[0].Valid = false // p = w_format * -1 = -.25
	c := Default()
	c.Estimator, c.OutcomeWeight = "ppo_gae", 2
	r := mustAssign(t, c, []Input{in})
	wantNumbers(t, "advantages", r.Tokens[0].Advantages, 2.75, 3.25, 2.5, 2)
	wantNumbers(t, "returns", r.Tokens[0].Returns, 2, 2, 2, 2)
	if s := r.Episodes[0].Steps[0]; !near(s.Advantage, 3) || !near(s.P, -.25) {
		t.Errorf("step %+v", s)
	}
}

func TestPPOGAEWhitensTokens(t *testing.T) {
	first, second := twoSamples(1, 1, 0, 1, 0), twoSamples(0, 0, 0, 0, 0)
	second.Episode.ID, second.Episode.Group = "b", "other"
	inputs := []Input{first, second} // A_out 0 1 0 1 | 0 0 0 0: mean .25, variance (n-1) 1.5/7
	c := outcomeOnly("ppo_gae")
	c.GAEWhiten = true
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	r := mustAssign(t, c, inputs)
	if err := e.Whiten(inputs, &r); err != nil {
		t.Fatal(err)
	}
	low, high := -.25/math.Sqrt(1.5/7+1e-8), .75/math.Sqrt(1.5/7+1e-8)
	wantNumbers(t, "A_out", r.Tokens[0].AOut, low, high, low, high)
	wantNumbers(t, "advantages", r.Tokens[1].Advantages, low, low, low, low)
	wantNumbers(t, "returns", r.Tokens[0].Returns, 1, 1, 1, 1)
	wantAOut(t, r, []float64{(low + high) / 2, low, high})
	if s := r.Episodes[0].Steps[2]; s.Advantage != s.AOut {
		t.Errorf("the advantage was not recomputed: %+v", s)
	}
	if e, err = New(outcomeOnly("ppo_gae")); err != nil {
		t.Fatal(err)
	}
	plain := mustAssign(t, outcomeOnly("ppo_gae"), inputs)
	if err := e.Whiten(inputs, &plain); err != nil || plain.Tokens[0].AOut[1] != 1 {
		t.Errorf("whitened without gae_whiten: %v (error %v)", plain.Tokens[0].AOut, err)
	}
}

func TestPPOGAEEpisodesWithoutTokens(t *testing.T) {
	lost, empty := twoSamples(1), twoSamples(0)
	lost.Episode.Status = milepost.EpisodeInfra
	empty.Episode.ID, empty.Episode.Steps, empty.Episode.Samples = "b", nil, nil
	r := mustAssign(t, outcomeOnly("ppo_gae"), []Input{lost, empty})
	if len(r.Tokens) != 2 || r.Tokens[0].Steps != nil || len(r.Tokens[1].Advantages) != 0 {
		t.Errorf("tokens %+v", r.Tokens)
	}
	if grpo := mustAssign(t, outcomeOnly("grpo"), []Input{twoSamples(1)}); grpo.Tokens != nil {
		t.Errorf("grpo has token credit: %+v", grpo.Tokens)
	}
}

func TestPPOGAERefusals(t *testing.T) {
	disordered := twoSamples(1, 0, 0, 0, 0)
	slices.Reverse(disordered.Episode.Samples)
	for words, in := range map[string]Input{
		"needs per-token values": twoSamples(1), "3 values for 4 trained tokens": twoSamples(1, 1, 2, 3),
		"no finite advantage": twoSamples(1, 0, 0, math.NaN(), 0), "not in the order": disordered,
	} {
		e, err := New(outcomeOnly("ppo_gae"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.Assign([]Input{in})
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "episode a") {
			t.Errorf("got %v, want %q", err, words)
		}
	}
	for words, change := range map[string]func(*Config){
		"field gae_gamma is 1.5; allowed: a number from 0 to 1": func(c *Config) { c.GAEGamma = 1.5 },
		"field gae_lambda is -1; allowed: a number from 0 to 1": func(c *Config) { c.GAELambda = -1 },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
}

// GAE against its definition: A_t is the sum over later trained tokens of (gamma*lambda)^l * delta.
func TestGAEIsTheSumOfItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 25).Draw(t, "tokens")
		numbers := func(label string) []float64 {
			return rapid.SliceOfN(rapid.Float64Range(-3, 3), n, n).Draw(t, label)
		}
		rewards, values := numbers("rewards"), numbers("values")
		trained := rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "trained")
		gamma, lambda := rapid.Float64Range(0, 1).Draw(t, "gamma"), rapid.Float64Range(0, 1).Draw(t, "lambda")
		got, err := GAE(rewards, values, trained, gamma, lambda)
		if err != nil {
			t.Fatal(err)
		}
		var places []int
		for i, on := range trained {
			if on {
				places = append(places, i)
			} else if got[i] != 0 {
				t.Fatalf("untrained token %d has %v", i, got[i])
			}
		}
		for i, at := range places {
			want := 0.0
			for l, k := range places[i:] {
				delta := rewards[k] - values[k]
				if next := i + l + 1; next < len(places) {
					delta += gamma * values[places[next]]
				}
				want += math.Pow(gamma*lambda, float64(l)) * delta
			}
			if !near(got[at], want) {
				t.Fatalf("token %d: %v, want %v", at, got[at], want)
			}
		}
	})
}

// gamma = lambda = 1 and exact values: nothing is left to learn, whatever the samples.
func TestPPOGAEOfExactValuesIsZero(t *testing.T) {
	in := twoSamples(.5, .5, .5, .5, .5)
	for _, a := range mustAssign(t, outcomeOnly("ppo_gae"), []Input{in}).Tokens[0].Advantages {
		if a != 0 {
			t.Errorf("advantage %v", a)
		}
	}
}

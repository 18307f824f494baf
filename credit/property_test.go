package credit

import (
	"math"
	"testing"

	"github.com/milepost-rl/milepost"
	"pgregory.net/rapid"
)

// Every estimator, with milestone credit on: the order of the episodes means nothing.
func TestPermutingEpisodesPermutesResults(t *testing.T) {
	for _, name := range Estimators() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c, inputs := drawConfig(t), withValues(t, drawInputs(t, everything))
				c.Estimator, c.Milestone.Enabled = name, true
				place := make([]int, len(inputs))
				for i := range place {
					place[i] = i
				}
				place = rapid.Permutation(place).Draw(t, "order")
				moved := make([]Input, len(inputs))
				for i, p := range place {
					moved[i] = inputs[p]
				}
				want, got := mustAssign(t, c, inputs), mustAssign(t, c, moved)
				for i, p := range place {
					sameCredit(t, got.Episodes[i], want.Episodes[p])
				}
			})
		})
	}
}

// The estimators that compare within the group do not see what all of it shares. gigpo, hgpo and graph_gpo discount or
// threshold rewards, and ppo_gae compares nothing.
func TestAddingAConstantToRewardsChangesNothing(t *testing.T) {
	for _, name := range []string{"grpo", "dr_grpo", "rloo", "dapo", "mo_grpo", "reinforce_pp_baseline"} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c, inputs := drawConfig(t), drawInputs(t, everything)
				c.Estimator = name
				want := mustAssign(t, c, inputs)
				shift := rapid.Float64Range(-10, 10).Draw(t, "shift")
				for _, in := range inputs {
					in.Episode.Outcome.Reward += shift
					for k := range in.Episode.Outcome.Objectives {
						in.Episode.Outcome.Objectives[k] += shift
					}
				}
				got := mustAssign(t, c, inputs)
				for i := range want.Episodes {
					sameCredit(t, got.Episodes[i], want.Episodes[i])
				}
			})
		})
	}
}

// Whatever is carried forward, frozen or merged: the step rewards of an episode sum to the weighted final potentials.
func TestPotentialsTelescope(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := everything
		w.reanchor = false
		w.kind = rapid.SampledFrom([]milepost.TaskKind{milepost.BugRepair, milepost.RepoGeneration}).Draw(t, "kind")
		c, wVer, wNav := Default(), .3, .7
		c.Milestone.WVer, c.Milestone.WNav = &wVer, &wNav
		c.Milestone.ClipLow, c.Milestone.ClipHigh = -100, 100
		for _, e := range mustAssign(t, c, drawInputs(t, w)).Episodes {
			sum := 0.0
			for _, s := range e.Steps {
				sum += s.R
			}
			if n := len(e.Steps); n > 0 && !near(sum, wVer*e.Steps[n-1].PhiVer+wNav*e.Steps[n-1].PhiNav) {
				t.Fatalf("episode %s: rewards sum to %v, last step %+v", e.ID, sum, e.Steps[n-1])
			}
		}
	})
}

func TestAnUnrewardedFreezeStaysUnrewarded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Default()
		c.Milestone.Navigation = false
		c.Milestone.Mode = rapid.SampledFrom([]string{ModeNormalized, ModePassCount}).Draw(t, "mode")
		inputs := drawInputs(t, everything)
		for i, e := range mustAssign(t, c, inputs).Episodes {
			frozen, phi := false, 0.0
			for k, s := range e.Steps {
				p := inputs[i].Episode.Steps[k].Probe
				trusted := p != nil && p.Trusted && (p.Partition != nil || len(p.Report) == len(inputs[i].Task.Tests))
				ends := frozen && trusted && p.Reanchored && c.Milestone.Mode == ModePassCount
				if frozen && s.R != 0 {
					t.Fatalf("episode %s step %d earns %v in a freeze", e.ID, k, s.R)
				}
				if frozen && !ends && s.PhiVer != phi {
					t.Fatalf("episode %s step %d moves from %v to %v in a freeze", e.ID, k, phi, s.PhiVer)
				}
				frozen = frozen && !ends || p != nil && !trusted && p.Continuity == milepost.ContinuityLost
				phi = s.PhiVer
			}
		}
	})
}

// Where every test gives evidence, counts per partition say as much as states per test.
func TestCountsAgreeWithReports(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inputs := drawInputs(t, world{kind: milepost.BugRepair, merges: true})
		c := Default()
		c.Milestone.Mode = rapid.SampledFrom([]string{ModeNormalized, ModePassCount}).Draw(t, "mode")
		for _, in := range inputs {
			for k := range in.Episode.Steps {
				if p := in.Episode.Steps[k].Probe; p != nil {
					for i, s := range p.Report {
						if s == milepost.NotRun || s == milepost.Skipped {
							p.Report[i] = milepost.Errored
						}
					}
				}
			}
		}
		want := mustAssign(t, c, inputs)
		for _, in := range inputs {
			for k := range in.Episode.Steps {
				if p := in.Episode.Steps[k].Probe; p != nil && len(p.Report) == len(in.Task.Tests) {
					counted := *p
					counted.Partition, counted.Report = countsOf(in.Baseline.Report, p.Report), nil
					in.Episode.Steps[k].Probe = &counted
				}
			}
		}
		got := mustAssign(t, c, inputs)
		for i := range want.Episodes {
			sameCredit(t, got.Episodes[i], want.Episodes[i])
		}
	})
}

// Any numbers at all: either an error or credit that is finite, also after whitening.
func finiteOrRefused(t *rapid.T) {
	any := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.MaxFloat64, 0, 5e-324}))
	c, inputs := drawConfig(t), drawInputs(t, everything)
	for _, f := range []*float64{&c.OutcomeWeight, &c.Eps, &c.Omega, &c.StepGamma, &c.HGPOAlpha, &c.GraphScale, &c.Milestone.BetaFrac,
		&c.Milestone.Read, &c.Milestone.BackwardLambda, &c.Milestone.WFormat} {
		if rapid.IntRange(0, 6).Draw(t, "wild") == 0 {
			*f = any.Draw(t, "field")
		}
	}
	for _, in := range inputs {
		if rapid.IntRange(0, 3).Draw(t, "wild reward") == 0 {
			in.Episode.Outcome.Reward = any.Draw(t, "r")
			in.Episode.Outcome.Objectives["brevity"] = any.Draw(t, "o")
		}
	}
	e, err := New(c)
	if err != nil {
		return
	}
	r, err := e.Assign(inputs)
	if err != nil {
		if milepost.KindOf(err) != milepost.KindInvalid {
			t.Fatalf("error of kind %s: %v", milepost.KindOf(err), err)
		}
		return
	}
	if e.Whiten(inputs, &r) != nil {
		return
	}
	for _, x := range []float64{r.Summary.MeanReward, r.Summary.MeanAbsOutcome, r.Summary.MeanAbsProcess} {
		if !isFinite(x) {
			t.Fatalf("summary is not finite: %+v", r.Summary)
		}
	}
	for _, ep := range r.Episodes {
		for k, s := range ep.Steps {
			for _, x := range terms(s) {
				if !isFinite(x) {
					t.Fatalf("episode %s step %d is not finite: %+v", ep.ID, k, s)
				}
			}
		}
	}
}

func TestNothingThatIsNotFiniteLeaves(t *testing.T) { rapid.Check(t, finiteOrRefused) }

// FuzzAssign drives the same property from the coverage-guided fuzzer.
func FuzzAssign(f *testing.F) { f.Fuzz(rapid.MakeFuzz(finiteOrRefused)) }

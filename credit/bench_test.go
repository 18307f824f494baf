package credit

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/milepost-rl/milepost"
)

// BenchmarkAssign is milestone credit with grpo over episodes of 100 steps, each probed, with 200 tests. The episodes of
// the largest size share the steps of 1000 that differ, to keep the benchmark's own memory small.
func BenchmarkAssign(b *testing.B) {
	const steps, tests, distinct = 100, 200, 1000
	rng := rand.New(rand.NewPCG(1, 2))
	task := &milepost.Task{ID: "t", Kind: milepost.BugRepair, Tests: make([]string, tests), RelevantFiles: []string{"a.py", "b.py"}}
	report := func(failing float64) milepost.TestReport {
		r := make(milepost.TestReport, tests)
		for i := range r {
			r[i] = milepost.Passed
			if rng.Float64() < failing {
				r[i] = milepost.TestState(rng.IntN(5))
			}
		}
		return r
	}
	baseline := &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: report(.2)}
	pool := make([][]milepost.Step, distinct)
	for i := range pool {
		pool[i] = make([]milepost.Step, steps)
		for t := range pool[i] {
			pool[i][t] = milepost.Step{Index: t, Valid: true, Executed: true,
				Exposures: []milepost.Exposure{{Path: "a.py", Level: milepost.ExposureRead, Confidence: "high"}},
				Probe:     &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: report(.2)}}
		}
	}
	engine, err := New(Default())
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{100, 1000, 10000} {
		inputs := make([]Input, n)
		for i := range inputs {
			inputs[i] = Input{Task: task, Baseline: baseline, Episode: &milepost.Episode{ID: fmt.Sprint(i), Group: fmt.Sprint(i / 16),
				Status: milepost.EpisodeCompleted, Steps: pool[i%distinct], Outcome: milepost.Outcome{Reward: float64(i % 2)}}}
		}
		b.Run(fmt.Sprintf("episodes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := engine.Assign(inputs); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*float64(n)*steps/b.Elapsed().Seconds(), "steps/s")
		})
	}
}

package credit

import (
	"testing"

	"github.com/milepost-rl/milepost"
)

// TestFlakyTestsMoveNoPotential: what a flaky test does changes neither mode's credit, and reports stay dense.
func TestFlakyTestsMoveNoPotential(t *testing.T) {
	const p, f = milepost.Passed, milepost.Failed
	probe := func(states ...milepost.TestState) *milepost.Probe {
		return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: states}
	}
	for _, kind := range []milepost.TaskKind{milepost.BugRepair, milepost.RepoGeneration} {
		phi := func(flaky []string, unstable milepost.TestState) []float64 {
			task := &milepost.Task{ID: "t", Kind: kind, Tests: []string{"a", "b", "c"}, Flaky: flaky}
			ep := &milepost.Episode{ID: "e", Group: "g", Task: "t", Status: milepost.EpisodeCompleted, Steps: []milepost.Step{
				{Index: 0, Valid: true, Executed: true, Probe: probe(p, p, unstable)}, {Index: 1, Valid: true, Executed: true, Probe: probe(p, p, p)}}}
			engine, err := New(Default())
			if err != nil {
				t.Fatal(err)
			}
			note, err := engine.Explain(Input{Episode: ep, Task: task, Baseline: probe(f, p, p)})
			if err != nil {
				t.Fatal(err)
			}
			var out []float64
			for _, s := range note.Steps {
				out = append(out, s.Change)
			}
			return out
		}
		steady, left := phi([]string{"c"}, p), phi([]string{"c"}, f)
		if steady[0] != left[0] || steady[1] != left[1] || steady[0] <= 0 {
			t.Errorf("%s: changes %v where the flaky test passes, %v where it fails", kind, steady, left)
		}
		if counted := phi(nil, f); counted[0] == left[0] {
			t.Errorf("%s: a test that is not flaky does not count: %v", kind, counted)
		}
	}
}

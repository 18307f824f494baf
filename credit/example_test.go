package credit_test

import (
	"fmt"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// Two episodes of one task: the first repairs the failing test at its second step and resolves the task.
func ExampleEngine_Assign() {
	task := &milepost.Task{ID: "fix-add", Kind: milepost.BugRepair, Tests: []string{"test_add", "test_sub"}}
	probe := func(add milepost.TestState) *milepost.Probe {
		return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: milepost.TestReport{add, milepost.Passed}}
	}
	episode := func(id string, reward float64, probes ...*milepost.Probe) *milepost.Episode {
		e := &milepost.Episode{ID: id, Group: "g", Status: milepost.EpisodeCompleted, Outcome: milepost.Outcome{Reward: reward}}
		for t, p := range probes {
			e.Steps = append(e.Steps, milepost.Step{Index: t, Valid: true, Executed: true, Probe: p})
		}
		return e
	}
	baseline := probe(milepost.Failed)
	engine, err := credit.New(credit.Default())
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := engine.Assign([]credit.Input{
		{Episode: episode("first", 1, nil, probe(milepost.Passed)), Task: task, Baseline: baseline},
		{Episode: episode("second", 0, probe(milepost.Failed)), Task: task, Baseline: baseline},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range result.Episodes {
		for t, s := range e.Steps {
			fmt.Printf("%s step %d: r %.2f b %.3f A_out %.3f A %.3f\n", e.ID, t, s.R, s.B, s.AOut, s.Advantage)
		}
	}
	// Output:
	// first step 0: r 0.00 b 0.036 A_out 0.707 A 0.743
	// first step 1: r 0.20 b 0.000 A_out 0.707 A 0.907
	// second step 0: r 0.00 b 0.000 A_out -0.707 A -0.707
}

package orchestrator

import (
	"maps"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// TestGrade: what the agent's tree did to the tests is a wrong answer, what infrastructure did is no answer.
func TestGrade(t *testing.T) {
	passed, failed := milepost.TestReport{milepost.Passed}, milepost.TestReport{milepost.Failed}
	for name, c := range map[string]struct {
		verdict  *milepost.Probe
		graded   bool
		resolved bool
	}{
		"everything passes":      {&milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: passed}, true, true},
		"a test fails":           {&milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: failed}, true, false},
		"tests hang":             {&milepost.Probe{Status: milepost.ProbeTimeout}, true, false},
		"tests eat memory":       {&milepost.Probe{Status: milepost.ProbeMemory}, true, false},
		"nothing to read":        {&milepost.Probe{Status: milepost.ProbeUnparsed}, true, false},
		"tests were added":       {&milepost.Probe{Status: milepost.ProbeCompleted, Report: passed}, true, false},
		"a report too short":     {&milepost.Probe{Status: milepost.ProbeCompleted}, false, false},
		"late":                   {&milepost.Probe{Status: milepost.ProbeLate}, false, false},
		"a worker failed":        {&milepost.Probe{Status: milepost.ProbeInfra}, false, false},
		"another tree":           {&milepost.Probe{Status: milepost.ProbeTreeWrong}, false, false},
		"there is no verdict":    {nil, false, false},
		"never asked to the end": {&milepost.Probe{}, false, false},
	} {
		ep := &milepost.Episode{Status: milepost.EpisodeCompleted, Outcome: milepost.Outcome{Verdict: c.verdict}}
		grade(ep, &milepost.Task{Tests: []string{"t"}})
		status := milepost.EpisodeCompleted
		if !c.graded {
			status = milepost.EpisodeInfra
		}
		if o := ep.Outcome; o.Graded != c.graded || o.Resolved != c.resolved || o.Reward != indicator(c.resolved) || ep.Status != status || (ep.Error == "") != c.graded {
			t.Errorf("%s: %+v, status %s, error %q", name, o, ep.Status, ep.Error)
		}
	}
}

// TestLimitReward: an episode that a limit stopped where everything passed earns the fraction of its first such step
// and counts as resolved.
func TestLimitReward(t *testing.T) {
	all, none := milepost.TestReport{milepost.Passed}, milepost.TestReport{milepost.Failed}
	probe := func(r milepost.TestReport) *milepost.Probe {
		return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: r}
	}
	r := newTestRun(t, t.TempDir(), &world{started: map[string]int{}}, 1)
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	eps := make([]*milepost.Episode, 3)
	for i, status := range []milepost.EpisodeStatus{milepost.EpisodeLimit, milepost.EpisodeCompleted, milepost.EpisodeLimit} {
		eps[i] = &milepost.Episode{Task: "a", Status: status, Steps: []milepost.Step{{Probe: probe(none)}, {Probe: probe(all)}, {}, {}}, Outcome: milepost.Outcome{Verdict: probe(all)}}
	}
	eps[2].Outcome.Verdict = probe(none)
	inputs, err := r.inputs(t.Context(), eps)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{.5, 1, 0} {
		if o := inputs[i].Episode.Outcome; o.Reward != want || o.Resolved != (want > 0) {
			t.Errorf("episode %d: %+v, want reward %g", i, o, want)
		}
	}
}

func TestKeptGroups(t *testing.T) {
	episode := func(group string, reward float64, status milepost.EpisodeStatus) credit.Input {
		return credit.Input{Episode: &milepost.Episode{Group: group, Status: status, Outcome: milepost.Outcome{Reward: reward}}}
	}
	const done = milepost.EpisodeCompleted
	inputs := []credit.Input{
		episode("differ", 0, done), episode("differ", 1, done), episode("same", 1, done), episode("same", 1, done),
		episode("excluded", 1, done), episode("excluded", 0, milepost.EpisodeInfra),
	}
	credits := make([]milepost.EpisodeCredit, len(inputs))
	credits[2].Steps = []milepost.StepCredit{{Advantage: 0}, {Advantage: -.25}}
	credits[5].Excluded = true
	for criterion, want := range map[string]map[string]bool{
		credit.CriterionOutcome:   {"differ": true, "same": false, "excluded": false},
		credit.CriterionAdvantage: {"differ": false, "same": true, "excluded": false},
	} {
		if got := keptGroups(criterion, inputs, credits); !maps.Equal(got, want) {
			t.Errorf("%s keeps %v, want %v", criterion, got, want)
		}
	}
}

// TestFlakyTestsDecideNothing: a test that the certificate found flaky may fail, and may not alone make a task resolved.
func TestFlakyTestsDecideNothing(t *testing.T) {
	for name, c := range map[string]struct {
		report   milepost.TestReport
		flaky    []string
		resolved bool
	}{
		"the flaky one fails":     {milepost.TestReport{milepost.Failed, milepost.Passed}, []string{"a"}, true},
		"another fails":           {milepost.TestReport{milepost.Passed, milepost.Failed}, []string{"a"}, false},
		"nothing else is counted": {milepost.TestReport{milepost.Passed, milepost.Passed}, []string{"a", "b"}, false},
	} {
		ep := &milepost.Episode{Status: milepost.EpisodeCompleted,
			Outcome: milepost.Outcome{Verdict: &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: c.report}}}
		grade(ep, &milepost.Task{Tests: []string{"a", "b"}, Flaky: c.flaky})
		if ep.Outcome.Resolved != c.resolved {
			t.Errorf("%s: resolved %v", name, ep.Outcome.Resolved)
		}
	}
}

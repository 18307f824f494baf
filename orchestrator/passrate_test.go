package orchestrator

import (
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

// TestPassRateIsTheMeanShareOfTestsOverTasks: attempts within a task first, so that a task with more of them weighs no more.
func TestPassRateIsTheMeanShareOfTestsOverTasks(t *testing.T) {
	episode := func(task string, trusted bool, states ...milepost.TestState) *milepost.Episode {
		return &milepost.Episode{Task: task, Status: milepost.EpisodeCompleted,
			Outcome: milepost.Outcome{Graded: true, Verdict: &milepost.Probe{Trusted: trusted, Report: states}}}
	}
	const p, f = milepost.Passed, milepost.Failed
	eps := []*milepost.Episode{episode("a", true, p, p, p, f), episode("a", true, p, f, f, f), episode("b", true, p, p, p, p), episode("b", false, p, p, p, p)}
	if e := summarise("x", eps); e.Passed != .5 || e.Rate != 0 {
		t.Errorf("pass rate %g, resolved %g; want .5 (half of a, half of b) and 0", e.Passed, e.Rate)
	}
	var records []EpisodeRecord
	for _, ep := range eps {
		records = append(records, EpisodeRecord{Episode: ep})
	}
	if got := batchMetrics(records)["pass_rate"]; got != .5 {
		t.Errorf("metric pass_rate %g, want .5", got)
	}
}

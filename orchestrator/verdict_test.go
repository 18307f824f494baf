package orchestrator

import (
	"context"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// slowProbes gives verdicts at the n-th barrier only.
type slowProbes struct {
	Probes
	barriers, need int
}

func (p *slowProbes) Fill(_ context.Context, eps []*milepost.Episode, _ time.Duration) error {
	p.barriers++
	for _, ep := range eps {
		v := ep.Outcome.Verdict
		if v.Status != "" {
			continue
		}
		v.Status = milepost.ProbeLate
		if p.barriers >= p.need {
			v.Status, v.Trusted, v.Report = milepost.ProbeCompleted, true, milepost.TestReport{milepost.Passed}
		}
	}
	return nil
}

// TestLateVerdictsGetFurtherBarriers: a finished episode is not lost to a slow worker, and not waited for without end.
func TestLateVerdictsGetFurtherBarriers(t *testing.T) {
	for need, graded := range map[int]bool{1: true, 2: true, verdictChances: true, verdictChances + 1: false} {
		ep := &milepost.Episode{ID: "e", Status: milepost.EpisodeCompleted, Outcome: milepost.Outcome{Verdict: &milepost.Probe{ID: "e/verdict"}}}
		p := &slowProbes{need: need}
		if err := fillProbes(context.Background(), p, []*milepost.Episode{ep}, time.Second); err != nil {
			t.Fatal(err)
		}
		grade(ep, &milepost.Task{Tests: []string{"t"}})
		if ep.Outcome.Graded != graded || ep.Outcome.Verdict.ID != "e/verdict" || p.barriers != min(need, verdictChances) {
			t.Errorf("verdict at barrier %d: graded %v after %d barriers, want %v", need, ep.Outcome.Graded, p.barriers, graded)
		}
	}
}

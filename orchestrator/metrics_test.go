package orchestrator

import (
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

// TestEditedRate: an episode counts as one that did something where any of its steps changed the repository; what
// infrastructure lost counts in nothing.
func TestEditedRate(t *testing.T) {
	record := func(status milepost.EpisodeStatus, changed ...[]string) EpisodeRecord {
		ep := &milepost.Episode{Status: status}
		for _, c := range changed {
			ep.Steps = append(ep.Steps, milepost.Step{Changed: c})
		}
		return EpisodeRecord{Episode: ep}
	}
	m := batchMetrics([]EpisodeRecord{
		record(milepost.EpisodeCompleted, nil, []string{"a.py"}, nil), record(milepost.EpisodeCompleted, nil, nil),
		record(milepost.EpisodeLimit), record(milepost.EpisodeCompleted, []string{"a.py"}, []string{"a.py"}),
		record(milepost.EpisodeInfra, []string{"a.py"}),
	})
	if m["edited_rate"] != .5 {
		t.Errorf("edited_rate is %g, want .5", m["edited_rate"])
	}
}

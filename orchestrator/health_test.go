package orchestrator

import (
	"strings"
	"testing"
)

// TestHealthOfStaleTokens: a gap to the sampler is a fault of the servers' weights only where the weights that sampled
// are those that the update starts from.
func TestHealthOfStaleTokens(t *testing.T) {
	for _, c := range []struct {
		staleness float64
		warned    bool
	}{{0, true}, {.5, false}} {
		said := strings.Join(Health(map[string]float64{"logprob_gap_mean": .02, "staleness_mean": c.staleness, "grad_norm": 1e3}), "\n")
		if got := strings.Contains(said, "logprob_gap_mean"); got != c.warned || !strings.Contains(said, "grad_norm is 1e+03") {
			t.Errorf("staleness %g: %q", c.staleness, said)
		}
	}
}

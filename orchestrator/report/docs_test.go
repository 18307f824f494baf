package report

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/milepost-rl/milepost/orchestrator"
)

// TestMetricsAreDocumented: docs/metrics.md has a table row for every metric with a healthy range, for every metric
// that a chart of this package draws, and for every one that a whole run of the orchestrator records.
func TestMetricsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllSubmatch(b, -1) {
		for _, name := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllSubmatch(row[1], -1) {
			documented[string(name[1])] = true
		}
	}
	want := map[string]string{}
	for _, name := range orchestrator.HealthNames() {
		want[name] = "has a healthy range"
	}
	for _, p := range panels {
		for _, c := range p.curves {
			for _, m := range c.metrics {
				want[m] = "is drawn"
			}
		}
	}
	recorded, err := newRun(t, 1).Metrics()
	if err != nil {
		t.Fatal(err)
	}
	for _, values := range recorded {
		for name := range values {
			want[name] = "is recorded"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !documented[name] {
			t.Errorf("%s %s, but docs/metrics.md has no row for it", name, want[name])
		}
	}
	if len(want) < 30 {
		t.Errorf("only %d names were checked", len(want))
	}
}

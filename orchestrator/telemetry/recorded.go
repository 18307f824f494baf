package telemetry

import (
	"maps"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost/orchestrator"
)

// recorded is the latest value of each name in metrics.jsonl, by its Prometheus name without milepost_.
type recorded map[string]latest

type latest struct {
	name  string // as in docs/metrics.md
	value float64
}

// take keeps the values of a line. The prober's totals are left out: Prometheus has them as counters.
func (r recorded) take(l orchestrator.MetricsLine) {
	for name, v := range l.Values {
		if strings.HasPrefix(name, "probe_") && !strings.HasSuffix(name, "_share") {
			continue
		}
		full := name
		if l.Part == orchestrator.PartValidation || l.Part == orchestrator.PartHeldout {
			full = string(l.Part) + "_" + name
		}
		r[lastName(full)] = latest{full, v}
	}
}

// lastName is the Prometheus name: last_NAME, with seconds written out.
func lastName(name string) string {
	if base, ok := strings.CutSuffix(name, "_s"); ok {
		name = base + "_seconds"
	}
	return "last_" + name
}

func (r recorded) collect(s sink) {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		s.gauge(desc(name, r[name].name+" of docs/metrics.md, as it was recorded last."), r[name].value)
	}
}

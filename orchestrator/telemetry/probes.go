package telemetry

import (
	"maps"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost/orchestrator"
)

// collectProbes sends the prober's totals: milepost_probe_NAME_total for a count, milepost_probe_NAME_seconds_total for a sum of
// times, milepost_probe_NAME for a state. NAME is that of docs/metrics.md without probe_.
func collectProbes(s sink, totals map[string]float64) {
	for _, name := range slices.Sorted(maps.Keys(totals)) {
		help := "probe_" + name + " of docs/metrics.md, since the start of the process."
		time, isTime := strings.CutSuffix(name, "_s")
		switch {
		case orchestrator.IsProbeState(name):
			s.gauge(desc("probe_"+name, "probe_"+name+" of docs/metrics.md, now."), totals[name])
		case isTime:
			s.counter(desc("probe_"+time+"_seconds_total", help), totals[name])
		default:
			s.counter(desc("probe_"+name+"_total", help), totals[name])
		}
	}
}

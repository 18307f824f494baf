// Package telemetry is what Prometheus reads of a run and of a shadow worker.
//
//	server.go    /metrics and /healthz
//	run.go       a run's figures: the instruments, and what is asked for at each scrape
//	probes.go    the prober's totals by their Prometheus names
//	recorded.go  the latest value of everything in metrics.jsonl
//	worker.go    a shadow worker's figures
//
// Names follow Prometheus' conventions: milepost_ in front, base units (seconds, bytes), _total behind a counter. Everything here
// is given plain values and functions by the command that wires it; a new figure of a run is a desc and a line in Collect, or an
// instrument, and a line in docs/metrics.md.
package telemetry

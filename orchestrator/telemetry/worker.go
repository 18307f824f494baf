package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// WorkerState is what a shadow worker says of itself.
type WorkerState struct {
	Name    string
	Slots   int
	Busy    int
	Served  int // results published since it started
	Failed  int // of them, infrastructure failures
	Failing int // failures of its own since it last ran a probe well
	Started time.Time
	Drains  bool
}

// Worker are the figures of a shadow worker.
type Worker struct{ State func() WorkerState }

var (
	workerSlotsDesc   = desc("worker_slots", "Probes that the worker runs at once.", "worker")
	workerBusyDesc    = desc("worker_slots_busy", "Slots that run a probe.", "worker")
	workerServedDesc  = desc("worker_probes_served_total", "Results published.", "worker")
	workerFailedDesc  = desc("worker_probes_failed_total", "Results that were failures of infrastructure.", "worker")
	workerFailingDesc = desc("worker_failures_in_a_row", "Failures of its own since the worker last ran a probe well.", "worker")
	workerDrainsDesc  = desc("worker_draining", "1 where the worker takes no more work.", "worker")
	workerStartDesc   = desc("worker_start_time_seconds", "When the worker started, in Unix time.", "worker")
)

// Describe implements prometheus.Collector.
func (w Worker) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(w, ch) }

// Collect implements prometheus.Collector.
func (w Worker) Collect(ch chan<- prometheus.Metric) {
	s, state := sink{ch}, w.State()
	drains := 0.
	if state.Drains {
		drains = 1
	}
	s.gauge(workerSlotsDesc, float64(state.Slots), state.Name)
	s.gauge(workerBusyDesc, float64(state.Busy), state.Name)
	s.counter(workerServedDesc, float64(state.Served), state.Name)
	s.counter(workerFailedDesc, float64(state.Failed), state.Name)
	s.gauge(workerFailingDesc, float64(state.Failing), state.Name)
	s.gauge(workerDrainsDesc, drains, state.Name)
	s.gauge(workerStartDesc, float64(state.Started.UnixNano())/1e9, state.Name)
}

package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// WorkerState is what a worker says of itself.
type WorkerState struct {
	Name    string
	Slots   int
	Busy    int
	Served  int // probes or episodes that it sent back since it started
	Failed  int // of them, infrastructure failures
	Failing int // failures of its own since its last success
	Started time.Time
	Drains  bool
}

// Worker are the figures of a worker: of probes, or of episodes (names that begin with rollout_).
type Worker struct {
	State    func() WorkerState
	Episodes bool
}

// workerDescs are the names of a worker's figures.
type workerDescs struct{ slots, busy, served, failed, failing, drains, start *prometheus.Desc }

func newWorkerDescs(prefix, unit, units string) workerDescs {
	return workerDescs{
		slots:   desc(prefix+"worker_slots", "How many "+units+" the worker runs at once.", "worker"),
		busy:    desc(prefix+"worker_slots_busy", "Slots that run "+unit+".", "worker"),
		served:  desc(prefix+"worker_"+units+"_served_total", "Results published.", "worker"),
		failed:  desc(prefix+"worker_"+units+"_failed_total", "Results that were failures of infrastructure.", "worker"),
		failing: desc(prefix+"worker_failures_in_a_row", "Failures of its own since the worker last ran "+unit+" well.", "worker"),
		drains:  desc(prefix+"worker_draining", "1 where the worker takes no more work.", "worker"),
		start:   desc(prefix+"worker_start_time_seconds", "When the worker started, in Unix time.", "worker"),
	}
}

var (
	probeWorker   = newWorkerDescs("", "a probe", "probes")
	rolloutWorker = newWorkerDescs("rollout_", "an episode", "episodes")
)

// Describe implements prometheus.Collector.
func (w Worker) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(w, ch) }

// Collect implements prometheus.Collector.
func (w Worker) Collect(ch chan<- prometheus.Metric) {
	s, state, d := sink{ch}, w.State(), probeWorker
	if w.Episodes {
		d = rolloutWorker
	}
	drains := 0.
	if state.Drains {
		drains = 1
	}
	s.gauge(d.slots, float64(state.Slots), state.Name)
	s.gauge(d.busy, float64(state.Busy), state.Name)
	s.counter(d.served, float64(state.Served), state.Name)
	s.counter(d.failed, float64(state.Failed), state.Name)
	s.gauge(d.failing, float64(state.Failing), state.Name)
	s.gauge(d.drains, drains, state.Name)
	s.gauge(d.start, float64(state.Started.UnixNano())/1e9, state.Name)
}

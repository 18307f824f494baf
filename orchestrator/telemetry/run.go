package telemetry

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// Replica is one server that samples.
type Replica struct {
	URL      string
	State    string // joining, open, shut or quarantined
	Version  int32  // weights approved; -1 = none
	Running  int    // requests under way
	Held     int    // of them, answers that wait for the canary
	Answered int64
	Failed   int64 // by its own fault
}

// Requests are the sampling requests that did not go straight through, over all replicas.
type Requests struct{ Rerun, Held, Dropped int64 }

// Sources are asked at each scrape; they must be safe for concurrent use and quick. A nil one has no figures.
type Sources struct {
	Probes   func() map[string]float64 // totals by the names of shadow.Stats; see orchestrator.Probes
	Replicas func() []Replica
	Requests func() Requests
	Trackers func() map[string]int64 // warnings so far
}

// Run are the figures of one run. Give Report and Recorded to orchestrator.Deps, and wrap its Rollouts.
//
// Invariant: mu guards what Report and Recorded keep; instruments guard themselves. Nothing here waits for anything but mu.
type Run struct {
	folder  *orchestrator.Folder
	sources Sources

	running  *prometheus.GaugeVec
	ended    *prometheus.CounterVec
	turns    *prometheus.CounterVec
	tokens   *prometheus.CounterVec
	duration *prometheus.HistogramVec

	mu     sync.Mutex
	status orchestrator.Status
	at     time.Time // of status
	last   recorded
}

// NewRun makes the figures of the run in folder; what its metrics.jsonl has is there at once.
func NewRun(folder *orchestrator.Folder, sources Sources) (*Run, error) {
	purpose := []string{"purpose"}
	r := &Run{
		folder: folder, sources: sources, last: recorded{},
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "milepost_episodes_running", Help: "Episodes under way."}, purpose),
		ended:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "milepost_episodes_ended_total", Help: "Episodes that ended, by status; before their verdict."}, []string{"purpose", "status"}),
		turns:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "milepost_turns_total", Help: "Turns of ended episodes."}, purpose),
		tokens:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "milepost_sampled_tokens_total", Help: "Tokens sampled in ended episodes."}, purpose),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "milepost_episode_duration_seconds", Help: "Wall-clock time of an episode.",
			Buckets: prometheus.ExponentialBuckets(.25, 2, 16)}, purpose),
	}
	lines, err := folder.MetricsLines()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, l := range lines {
		r.last.take(l)
	}
	return r, nil
}

// Report keeps the status; it is orchestrator.Deps.Report.
func (r *Run) Report(s orchestrator.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.at = s, time.Now()
}

// Recorded keeps the line's values; it is orchestrator.Deps.Recorded.
func (r *Run) Recorded(l orchestrator.MetricsLine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.take(l)
}

// Rollouts counts the episodes of next.
func (r *Run) Rollouts(next orchestrator.Rollouts) orchestrator.Rollouts { return counted{r, next} }

type counted struct {
	run  *Run
	next orchestrator.Rollouts
}

// Run implements orchestrator.Rollouts.
func (c counted) Run(ctx context.Context, task *milepost.Task, spec orchestrator.EpisodeSpec) (*milepost.Episode, error) {
	purpose := "evaluation"
	if spec.Purpose == orchestrator.PurposeTrain {
		purpose = string(orchestrator.PurposeTrain)
	}
	running := c.run.running.WithLabelValues(purpose)
	running.Inc()
	defer running.Dec()
	began := time.Now()
	ep, err := c.next.Run(ctx, task, spec)
	if err == nil {
		c.run.ended.WithLabelValues(purpose, string(ep.Status)).Inc()
		c.run.turns.WithLabelValues(purpose).Add(float64(len(ep.Steps)))
		c.run.tokens.WithLabelValues(purpose).Add(float64(ep.Sampled()))
		c.run.duration.WithLabelValues(purpose).Observe(time.Since(began).Seconds())
	}
	return ep, err
}

// desc describes a figure that is asked for at each scrape.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("milepost_"+name, help, labels, nil)
}

var (
	phaseDesc      = desc("phase", "1 for the phase that the run is in.", "phase")
	phaseTimeDesc  = desc("phase_duration_seconds", "Time in the phase so far.")
	updateDesc     = desc("update", "Update that is being made.")
	updatesDesc    = desc("updates_planned", "Updates that the run ends after.")
	versionDesc    = desc("weights_version", "Version of the weights that the servers have.")
	doneDesc       = desc("batch_episodes_ended", "Episodes of the present batch that ended.")
	batchDesc      = desc("batch_episodes", "Episodes of the present batch.")
	replicasDesc   = desc("replicas", "Servers by state.", "state")
	repVersionDesc = desc("replica_weights_version", "Version of the weights that were approved on the server; -1 = none.", "replica")
	repRunningDesc = desc("replica_requests_running", "Requests under way at the server.", "replica")
	repHeldDesc    = desc("replica_answers_held", "Answers of the server that wait for the canary.", "replica")
	repDoneDesc    = desc("replica_requests_total", "Requests that the server ended, by outcome.", "replica", "outcome")
	rerunDesc      = desc("requests_rerun_total", "Sampling requests that ran again at another server, from the same prompt.")
	heldDesc       = desc("answers_held_total", "Answers that had to wait for the canary.")
	droppedDesc    = desc("answers_dropped_total", "Answers thrown away because their server was not trusted any more.")
	trackerDesc    = desc("tracker_warnings_total", "Times that an experiment tracker failed; the run goes on.", "tracker")
	journalDesc    = desc("journal_size_bytes", "Size of the journal.")
	diskDesc       = desc("run_disk_free_bytes", "Free space where the run folder lies, as the run's user sees it.")
)

// replicaStates are told even where no replica is in them, so that a panel shows 0 and not nothing.
var replicaStates = []string{"joining", "open", "shut", "quarantined"}

// Describe implements prometheus.Collector. It describes nothing, which makes the collector an unchecked one: what Collect sends
// depends on what the run has.
func (r *Run) Describe(chan<- *prometheus.Desc) {}

func (r *Run) instruments() []prometheus.Collector {
	return []prometheus.Collector{r.running, r.ended, r.turns, r.tokens, r.duration}
}

// Collect implements prometheus.Collector.
func (r *Run) Collect(ch chan<- prometheus.Metric) {
	for _, c := range r.instruments() {
		c.Collect(ch)
	}
	s := sink{ch}
	r.collectStatus(s)
	r.collectServing(s)
	if r.sources.Probes != nil {
		collectProbes(s, r.sources.Probes())
	}
	if r.sources.Trackers != nil {
		for name, n := range r.sources.Trackers() {
			s.counter(trackerDesc, float64(n), name)
		}
	}
	if info, err := os.Stat(r.folder.Path("journal.jsonl")); err == nil {
		s.gauge(journalDesc, float64(info.Size()))
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(r.folder.Dir, &disk); err == nil {
		s.gauge(diskDesc, float64(disk.Bavail)*float64(disk.Bsize))
	}
}

func (r *Run) collectStatus(s sink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.collect(s)
	if r.at.IsZero() {
		return // it has not begun
	}
	for _, phase := range orchestrator.Phases {
		in := 0.
		if r.status.Phase == phase {
			in = 1
		}
		s.gauge(phaseDesc, in, string(phase))
	}
	s.gauge(phaseTimeDesc, (r.status.Since + time.Since(r.at)).Seconds())
	s.gauge(updateDesc, float64(r.status.Update))
	s.gauge(updatesDesc, float64(r.status.MaxUpdates))
	s.gauge(versionDesc, float64(r.status.Version))
	s.gauge(doneDesc, float64(r.status.Done))
	s.gauge(batchDesc, float64(r.status.Total))
}

func (r *Run) collectServing(s sink) {
	if r.sources.Replicas != nil {
		n := map[string]float64{}
		for _, rep := range r.sources.Replicas() {
			n[rep.State]++
			s.gauge(repVersionDesc, float64(rep.Version), rep.URL)
			s.gauge(repRunningDesc, float64(rep.Running), rep.URL)
			s.gauge(repHeldDesc, float64(rep.Held), rep.URL)
			s.counter(repDoneDesc, float64(rep.Answered), rep.URL, "answered")
			s.counter(repDoneDesc, float64(rep.Failed), rep.URL, "failed")
		}
		for _, state := range replicaStates {
			s.gauge(replicasDesc, n[state], state)
		}
	}
	if r.sources.Requests != nil {
		q := r.sources.Requests()
		s.counter(rerunDesc, float64(q.Rerun))
		s.counter(heldDesc, float64(q.Held))
		s.counter(droppedDesc, float64(q.Dropped))
	}
}

// sink sends values of one scrape.
type sink struct{ ch chan<- prometheus.Metric }

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sink) counter(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

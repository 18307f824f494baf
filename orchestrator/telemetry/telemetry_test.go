package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metricsql"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/shadow"
)

// probeTotals are totals by the names of shadow.Stats, as the run's command makes them of it.
func probeTotals(t *testing.T) map[string]float64 {
	t.Helper()
	b, err := json.Marshal(shadow.Stats{Published: 7, Backlog: 3, InFlight: 5, Workers: 2})
	var raw, out map[string]float64
	if err == nil {
		err = json.Unmarshal(b, &raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	out = map[string]float64{}
	for name, v := range raw {
		if strings.HasSuffix(name, "_time") || name == "barrier_wait" {
			name, v = name+"_s", 1.5
		}
		out[name] = v
	}
	return out
}

// rolled ends every episode in the same way.
type rolled struct{ status milepost.EpisodeStatus }

func (r rolled) Run(context.Context, *milepost.Task, orchestrator.EpisodeSpec) (*milepost.Episode, error) {
	if r.status == "" {
		return nil, errors.New("cancelled")
	}
	return &milepost.Episode{Status: r.status, Steps: []milepost.Step{{TokenStart: 1, TokenEnd: 2}, {TokenStart: 5, TokenEnd: 6}, {}}}, nil
}

// documented are the names of metrics.jsonl in docs/metrics.md.
func documented(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(b), "\n## Prometheus")
	var out []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z_`, ]+) \\|").FindAllStringSubmatch(text, -1) {
		for _, name := range strings.Split(row[1], ",") {
			out = append(out, strings.Trim(name, "` "))
		}
	}
	if len(out) < 90 || !slices.Contains(out, "ratio_max") || !slices.Contains(out, "staleness_mean") {
		t.Fatalf("docs/metrics.md names only %v", out)
	}
	return out
}

// fullRun is a run with a value of everything that it can have.
func fullRun(t *testing.T) *Run {
	t.Helper()
	folder := &orchestrator.Folder{Dir: t.TempDir()}
	if err := errors.Join(os.WriteFile(folder.Path("metrics.jsonl"), []byte(`{"update":1,"part":"update","values":{"loss":0.5}}`+"\n"), 0o644),
		os.WriteFile(folder.Path("journal.jsonl"), []byte("12345"), 0o644)); err != nil {
		t.Fatal(err)
	}
	r, err := NewRun(folder, Sources{
		Probes: func() map[string]float64 { return probeTotals(t) },
		Replicas: func() []Replica {
			return []Replica{{URL: "http://a:1", State: "open", Version: 3, Running: 4, Held: 1, Answered: 9, Failed: 2}, {URL: "http://b:1", State: "quarantined", Version: -1}}
		},
		Requests: func() Requests { return Requests{Rerun: 1, Held: 2, Dropped: 3} },
		Trackers: func() map[string]int64 { return map[string]int64{"wandb": 2} },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Report(orchestrator.Status{Phase: orchestrator.PhaseRolling, Update: 2, MaxUpdates: 9, Version: 1, Done: 3, Total: 8, Since: time.Minute})
	values := map[string]float64{}
	for i, name := range documented(t) {
		values[name] = float64(i)
	}
	r.Recorded(orchestrator.MetricsLine{Update: 2, Part: orchestrator.PartBatch, Values: values})
	for _, part := range []orchestrator.Part{orchestrator.PartValidation, orchestrator.PartHeldout} {
		r.Recorded(orchestrator.MetricsLine{Update: 2, Part: part, Values: map[string]float64{"resolved_rate": .5, "resolved_low": .4, "resolved_high": .6, "pass_rate": .7}})
	}
	for _, end := range []milepost.EpisodeStatus{milepost.EpisodeCompleted, milepost.EpisodeCompleted, milepost.EpisodeInfra, ""} {
		_, err := r.Rollouts(rolled{end}).Run(t.Context(), nil, orchestrator.EpisodeSpec{Purpose: orchestrator.PurposeTrain})
		if (err != nil) != (end == "") {
			t.Error(err)
		}
	}
	if _, err := r.Rollouts(rolled{milepost.EpisodeLimit}).Run(t.Context(), nil, orchestrator.EpisodeSpec{Purpose: "heldout-before"}); err != nil {
		t.Fatal(err)
	}
	return r
}

func worker() Worker {
	return Worker{State: func() WorkerState {
		return WorkerState{Name: "w", Slots: 4, Busy: 1, Served: 9, Failed: 2, Failing: 1, Started: time.Unix(1700000000, 0), Drains: true}
	}}
}

// scrape serves the collectors and reads them with Prometheus' own parser.
func scrape(t *testing.T, all ...prometheus.Collector) map[string]*dto.MetricFamily {
	t.Helper()
	sick := error(nil)
	s, err := Serve(Config{Listen: "127.0.0.1:0"}, func() error { return sick }, all...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for want, failure := range map[int]error{http.StatusOK: nil, http.StatusServiceUnavailable: errors.New("no server answers")} {
		sick = failure
		resp, err := http.Get(strings.TrimSuffix(s.URL(), "metrics") + "healthz")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want || failure != nil && !strings.Contains(string(text), failure.Error()) {
			t.Errorf("/healthz: %d %s (%v)", resp.StatusCode, text, err)
		}
	}
	resp, err := http.Get(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// valueOf is the value of the one series with these labels ("name=value"), NaN-free; it fails where there is none.
func valueOf(t *testing.T, families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	t.Helper()
	f := families[name]
	if f == nil {
		t.Fatalf("%s is not there", name)
	}
	for _, m := range f.Metric {
		var have []string
		for _, l := range m.Label {
			have = append(have, l.GetName()+"="+l.GetValue())
		}
		if slices.Equal(have, labels) {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	t.Fatalf("%s has no series %v: %v", name, labels, f)
	return 0
}

func TestRunIsScraped(t *testing.T) {
	defer goleak.VerifyNone(t)
	families := scrape(t, fullRun(t))
	for _, c := range []struct {
		name   string
		labels string
		want   float64
	}{
		{"milepost_phase", "phase=rolling out", 1}, {"milepost_phase", "phase=updating", 0}, {"milepost_update", "", 2}, {"milepost_updates_planned", "", 9},
		{"milepost_weights_version", "", 1}, {"milepost_batch_episodes_ended", "", 3}, {"milepost_batch_episodes", "", 8},
		{"milepost_episodes_running", "purpose=train", 0}, {"milepost_episodes_ended_total", "purpose=train,status=completed", 2},
		{"milepost_episodes_ended_total", "purpose=train,status=infra_error", 1}, {"milepost_episodes_ended_total", "purpose=evaluation,status=limit", 1},
		{"milepost_turns_total", "purpose=train", 9}, {"milepost_sampled_tokens_total", "purpose=train", 6}, {"milepost_episode_duration_seconds", "purpose=train", 3},
		{"milepost_replicas", "state=open", 1}, {"milepost_replicas", "state=quarantined", 1}, {"milepost_replicas", "state=shut", 0},
		{"milepost_replica_weights_version", "replica=http://b:1", -1}, {"milepost_replica_requests_running", "replica=http://a:1", 4},
		{"milepost_replica_answers_held", "replica=http://a:1", 1}, {"milepost_replica_requests_total", "outcome=failed,replica=http://a:1", 2},
		{"milepost_requests_rerun_total", "", 1}, {"milepost_answers_held_total", "", 2}, {"milepost_answers_dropped_total", "", 3},
		{"milepost_probe_published_total", "", 7}, {"milepost_probe_in_flight", "", 5}, {"milepost_probe_workers", "", 2}, {"milepost_probe_queue_time_seconds_total", "", 1.5},
		{"milepost_tracker_warnings_total", "tracker=wandb", 2}, {"milepost_journal_size_bytes", "", 5}, {"milepost_last_validation_resolved_rate", "", .5},
	} {
		var labels []string
		if c.labels != "" {
			labels = strings.Split(c.labels, ",")
		}
		if got := valueOf(t, families, c.name, labels...); got != c.want {
			t.Errorf("%s %v is %g, want %g", c.name, labels, got, c.want)
		}
	}
	if v := valueOf(t, families, "milepost_run_disk_free_bytes"); v < 1e6 {
		t.Errorf("%g bytes free", v)
	}
	if v := valueOf(t, families, "milepost_phase_duration_seconds"); v < 60 || v > 120 {
		t.Errorf("%g s in the phase", v)
	}
	for _, name := range []string{"go_goroutines", "process_cpu_seconds_total", "milepost_last_push_pause_seconds", "milepost_last_canary_gap_mean", "milepost_last_staleness_mean", "milepost_last_trainer_time_seconds"} {
		if families[name] == nil {
			t.Errorf("%s is not there", name)
		}
	}
	// A run that goes on shows what it had before anything new comes.
	r := fullRun(t)
	again, err := NewRun(r.folder, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if got := valueOf(t, scrape(t, again), "milepost_last_loss"); got != .5 {
		t.Errorf("after a resume the loss is %g", got)
	}
}

func TestWorkerIsScraped(t *testing.T) {
	families := scrape(t, worker())
	for name, want := range map[string]float64{"milepost_worker_slots": 4, "milepost_worker_slots_busy": 1, "milepost_worker_probes_served_total": 9, "milepost_worker_probes_failed_total": 2,
		"milepost_worker_failures_in_a_row": 1, "milepost_worker_draining": 1, "milepost_worker_start_time_seconds": 1.7e9} {
		if got := valueOf(t, families, name, "worker=w"); got != want {
			t.Errorf("%s is %g, want %g", name, got, want)
		}
	}
}

// TestNamesAreLinted holds every name and help to Prometheus' own linter.
func TestNamesAreLinted(t *testing.T) {
	for _, c := range []prometheus.Collector{fullRun(t), worker()} {
		registry := prometheus.NewPedanticRegistry()
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
		problems, err := testutil.GatherAndLint(registry)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// dashboard is what the tests know of Grafana's dashboard JSON.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Templating    struct{ List []struct{ Name, Type string } }
	Panels        []struct {
		ID          int
		Title, Type string
		GridPos     struct{ X, Y, W, H int }
		Datasource  struct{ Type, UID string }
		Targets     []struct{ Expr, RefID, LegendFormat string }
	}
}

// TestDashboard: every query of every panel parses and names figures that a run, a worker or the Go runtime has, by labels that
// these have; panels do not overlap.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("../../configs/grafana/milepost.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 || len(d.Panels) < 15 || len(d.Templating.List) == 0 || d.Templating.List[0].Type != "datasource" {
		t.Errorf("%q %q, schema %d, %d panels, variables %+v", d.UID, d.Title, d.SchemaVersion, len(d.Panels), d.Templating.List)
	}
	labels := map[string][]string{}
	for name, f := range scrape(t, fullRun(t), worker()) {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				labels[name] = append(labels[name], l.GetName())
			}
		}
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			labels[name+suffix] = append(labels[name], "le", "job", "instance")
		}
	}
	seen, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := seen[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q lies over %q or outside, at %d,%d", p.Title, other, x, y)
				}
				seen[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource.Type != "prometheus" || len(p.Targets) == 0 {
			t.Errorf("%q: data source %+v, %d queries", p.Title, p.Datasource, len(p.Targets))
		}
		for _, q := range p.Targets {
			checkQuery(t, p.Title, strings.ReplaceAll(q.Expr, "$__rate_interval", "1m"), labels)
		}
	}
}

func checkQuery(t *testing.T, panel, query string, labels map[string][]string) {
	t.Helper()
	expr, err := metricsql.Parse(query)
	if err != nil {
		t.Errorf("%s: %s: %v", panel, query, err)
		return
	}
	n := 0
	metricsql.VisitAll(expr, func(e metricsql.Expr) {
		m, ok := e.(*metricsql.MetricExpr)
		if !ok {
			return
		}
		for _, filters := range m.LabelFilterss {
			name := ""
			for _, f := range filters {
				if f.Label == "__name__" {
					name = f.Value
				}
			}
			n++
			have, ok := labels[name]
			if !ok {
				t.Errorf("%s: %s: %q is no figure", panel, query, name)
			}
			for _, f := range filters {
				if f.Label != "__name__" && !slices.Contains(have, f.Label) {
					t.Errorf("%s: %s: %s has no label %s", panel, query, name, f.Label)
				}
			}
		}
	})
	if n == 0 {
		t.Errorf("%s: %s names no figure", panel, query)
	}
}

func TestConfig(t *testing.T) {
	for listen, ok := range map[string]bool{"": true, "127.0.0.1:0": true, ":9464": true, "[::1]:1": true, "9464": false, "host": false, "host:": false} {
		if err := (Config{Listen: listen}).Validate(); (err == nil) != ok || err != nil && milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("%q: %v", listen, err)
		}
	}
	s, err := Serve(Config{Listen: "127.0.0.1:0"}, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Serve(Config{Listen: strings.Split(s.URL(), "/")[2]}, nil); milepost.KindOf(err) != milepost.KindConflict || !strings.Contains(fmt.Sprint(err), "metrics.listen") {
		t.Errorf("an address that is taken: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestPhases: no phase is missing, so that one of them is always 1.
func TestPhases(t *testing.T) {
	source, err := os.ReadFile("../machine.go")
	if err != nil {
		t.Fatal(err)
	}
	var want []orchestrator.Phase
	for _, m := range regexp.MustCompile(`(?m)^\tPhase\w+ +Phase = "(.+?)"`).FindAllStringSubmatch(string(source), -1) {
		want = append(want, orchestrator.Phase(m[1]))
	}
	if !reflect.DeepEqual(orchestrator.Phases, want) {
		t.Errorf("Phases are %v, declared are %v", orchestrator.Phases, want)
	}
}

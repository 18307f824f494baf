package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"

	"github.com/goccy/go-yaml"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/telemetry"
	"github.com/milepost-rl/milepost/orchestrator/tracker"
	"github.com/milepost-rl/milepost/rollout/policy"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// watch is who looks on while a run goes on: experiment trackers and Prometheus. Nothing of the run waits for it.
type watch struct {
	feeds   *tracker.Feeds    // nil where no tracker is enabled
	figures *telemetry.Run    // nil without an endpoint
	server  *telemetry.Server // nil without an endpoint
}

// openWatch starts what the configuration asks for. probes and pool are asked for their figures at each scrape.
func openWatch(cfg configs.Run, folder *orchestrator.Folder, probes *probing, pool *policy.Pool, p *progress) (_ *watch, err error) {
	w := &watch{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	sources := telemetry.Sources{Probes: probes.Stats, Replicas: func() []telemetry.Replica { return replicasOf(pool) },
		Requests: func() telemetry.Requests { return telemetry.Requests(pool.Totals()) }}
	if cfg.Trackers.Any() {
		if w.feeds, err = openTrackers(cfg, folder, p); err != nil {
			return w, err
		}
		sources.Trackers = w.feeds.Warnings
	}
	if cfg.Metrics.Listen == "" {
		return w, nil
	}
	if w.figures, err = telemetry.NewRun(folder, sources); err != nil {
		return w, err
	}
	if w.server, err = telemetry.Serve(cfg.Metrics, func() error { return servingHealth(pool) }, w.figures); err != nil {
		return w, err
	}
	p.line("metrics for Prometheus: %s", w.server.URL())
	return w, nil
}

// over returns the parts of a run with who watches them.
func (w *watch) over(deps orchestrator.Deps) orchestrator.Deps {
	report := deps.Report
	deps.Recorded = func(l orchestrator.MetricsLine) {
		if w.feeds != nil {
			w.feeds.Recorded(l)
		}
		if w.figures != nil {
			w.figures.Recorded(l)
		}
	}
	if w.figures == nil {
		return deps
	}
	deps.Rollouts = w.figures.Rollouts(deps.Rollouts)
	deps.Report = func(s orchestrator.Status) {
		w.figures.Report(s)
		if report != nil {
			report(s)
		}
	}
	return deps
}

// close ends the endpoint, then waits for trackers that are behind, no longer than trackers.grace.
func (w *watch) close() error {
	var err error
	if w.server != nil {
		err = w.server.Close()
	}
	if w.feeds != nil {
		w.feeds.Close()
	}
	return err
}

func replicasOf(pool *policy.Pool) []telemetry.Replica {
	stats := pool.Stats()
	out := make([]telemetry.Replica, len(stats))
	for i, s := range stats {
		out[i] = telemetry.Replica{URL: s.URL, State: string(s.State), Version: s.Approved, Running: s.Running, Held: s.Held, Answered: s.Done, Failed: s.Failed}
	}
	return out
}

// servingHealth is nil where some server may sample, or will when its push is over.
func servingHealth(pool *policy.Pool) error {
	for _, s := range pool.Stats() {
		if s.State != policy.StateQuarantined && s.Circuit != "open" {
			return nil
		}
	}
	return milepost.E("health", milepost.KindUnavailable, "no server can sample: each is quarantined or does not answer")
}

// openTrackers starts the feeds of the enabled trackers. Their packages must be installed: that is found out here and not
// behind the first update.
func openTrackers(cfg configs.Run, folder *orchestrator.Folder, p *progress) (*tracker.Feeds, error) {
	python := cfg.Trackers.Python
	if python == "" {
		env, err := trainerbridge.Environment(trainerbridge.EnvTrackers)
		if err != nil {
			return nil, err
		}
		python = filepath.Join(env, "bin", "python")
	}
	path, err := trainerbridge.PythonPath()
	if err != nil {
		return nil, err
	}
	header, err := folder.Header()
	if err != nil {
		return nil, err
	}
	settings, err := shownConfig(cfg)
	if err != nil {
		return nil, err
	}
	return tracker.Start(cfg.Trackers, tracker.Run{
		Folder: folder, ID: header.ID, Name: header.Name, Config: settings, Command: []string{python, "-m", "milepost_trainer.trackers"},
		Env:  append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1"),
		Warn: func(err error) { p.line("warning: %v", err) },
	})
}

// userinfo is what stands before the host of an address: a user, a token or a password.
var userinfo = regexp.MustCompile(`://[^/@\s,]+@`)

// shownConfig is the resolved configuration as trackers may keep it: without the messenger's token and without what the
// servers' environment says, which may be keys.
func shownConfig(cfg configs.Run) (map[string]any, error) {
	const hidden = "***"
	if cfg.Probes.Server.Token != "" {
		cfg.Probes.Server.Token = hidden
	}
	cfg.Server.Env = maps.Clone(cfg.Server.Env) // the run's own stays
	for name := range cfg.Server.Env {
		cfg.Server.Env[name] = hidden
	}
	text, err := cfg.Marshal()
	if err != nil {
		return nil, err
	}
	var out map[string]any
	if err := yaml.Unmarshal(userinfo.ReplaceAll(text, []byte("://***@")), &out); err != nil {
		return nil, milepost.Wrap("show configuration", milepost.KindInternal, err)
	}
	return out, nil
}

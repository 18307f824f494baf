package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/rollout/remote"
)

// elsewhere implements orchestrator.Rollouts by workers: on other machines and, in mode both, in this process.
type elsewhere struct {
	*remote.Dispatcher
	stop func() error // of the worker in this process
}

// openRollouts fills in where the episodes of a run live: in this process, or at workers that its prober's messenger reaches.
// stop comes after the run.
func openRollouts(cfg configs.Run, w *world, s *serving, probes *probing, deps *orchestrator.Deps) (stop func() error, err error) {
	if cfg.Workers.Mode == remote.ModeLocal {
		deps.Rollouts, err = newRollouts(cfg, w, s.model, probes)
		return func() error { return nil }, err
	}
	d, err := remote.NewDispatcher(cfg.Workers, remote.Deps{NC: probes.nc, Prefix: cfg.Probes.Prober.Streams.Prefix, Run: probes.run, Epoch: probes.epoch,
		Settings: remote.Settings{Rollout: cfg.Rollout, Pool: s.pool.Config(), Token: cfg.Policy.Token},
		Prober:   probes.Prober, Blobs: w.blobs, Endpoints: s.pool, Warn: probes.warn})
	if err != nil {
		return nil, err
	}
	e := &elsewhere{d, func() error { return nil }}
	deps.Rollouts, deps.Unbounded, deps.Workers = e, true, e.totals
	if cfg.Workers.Mode != remote.ModeBoth {
		return e.close, nil
	}
	worker, err := newRolloutWorker(cfg, w, probes.nc, probes.run, func(remote.Settings) (remote.Policy, error) { return ownPolicy{s.model}, nil }, probes.warn)
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.stop = inBackground(worker.Run)
	return e.close, nil
}

// inBackground runs a worker of this process until stop, which waits for its end.
func inBackground(run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return func() error { cancel(); return <-done }
}

// ownPolicy is the run's own model, whose pool needs to follow nobody.
type ownPolicy struct{ rollout.Model }

func (ownPolicy) Follow([]policy.EndpointState) error { return nil }
func (ownPolicy) Close()                              {}

// Run implements orchestrator.Rollouts: training episodes probe their steps, the others only their final tree.
func (e *elsewhere) Run(ctx context.Context, task *milepost.Task, spec orchestrator.EpisodeSpec) (*milepost.Episode, error) {
	return e.Dispatcher.Run(ctx, requestOf(task, spec), spec.Purpose == orchestrator.PurposeTrain)
}

// totals are the dispatcher's totals by the names of docs/metrics.md.
func (e *elsewhere) totals() map[string]float64 {
	var out map[string]float64
	b, err := json.Marshal(e.Stats())
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		panic(fmt.Sprintf("remote.Stats does not marshal to numbers: %v", err))
	}
	return out
}

// close tells the workers that the run ends here.
func (e *elsewhere) close() error {
	e.Close()
	return e.stop()
}

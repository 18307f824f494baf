package main

import (
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator/telemetry"
	"github.com/milepost-rl/milepost/rollout/remote"
)

func newWorkerRolloutCommand() *cobra.Command {
	var flags workerFlags
	c := &cobra.Command{
		Use:   "rollout --nats URL",
		Short: "Run agent loops for any run on a NATS server, until interrupted",
		Long: `Run agent loops for any run on a NATS server whose workers.mode is remote or both, until interrupted. Needs what a sandbox
needs (bubblewrap, python3, git, or containers) and must reach the run's vLLM servers; tasks, repositories, limits and weight
versions come from the run. On the first interrupt or SIGTERM it takes no more episodes, finishes what it holds within
workers.worker.drain_timeout and hands back the rest.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load(c, func(r *configs.Run) (*int, *string) { return &r.Workers.Worker.Slots, &r.Workers.Worker.Name })
			if err != nil {
				return err
			}
			if err := cfg.Workers.Worker.Validate(); err != nil {
				return err
			}
			return inProcess(c, cfg, flags.dir, serveRollouts)
		},
	}
	flags.register(c, remote.Default().Worker.Slots, "episodes")
	return c
}

// serveRollouts serves until the command's context ends.
func serveRollouts(p workerProcess) error {
	worker, err := newRolloutWorker(p.cfg, p.world, p.nc, "", remote.NewPolicy, p.warn)
	if err != nil {
		return err
	}
	figures := telemetry.Worker{Episodes: true, State: func() telemetry.WorkerState {
		i := worker.Info()
		return telemetry.WorkerState{Name: i.Name, Slots: i.Slots, Busy: i.Busy, Served: i.Served, Failed: i.Failed, Failing: i.Failing, Started: i.Started, Drains: i.Drains}
	}}
	return p.serving(figures, func() error { return worker.Run(p.cmd.Context()) })
}

// newRolloutWorker makes a worker over w, whose model of a run policy makes; only as in remote.WorkerDeps.
func newRolloutWorker(cfg configs.Run, w *world, nc *nats.Conn, only string, policy func(remote.Settings) (remote.Policy, error), warn func(error)) (*remote.Worker, error) {
	return remote.NewWorker(cfg.Workers.Worker, remote.WorkerDeps{NC: nc, Prefix: cfg.Probes.Worker.Streams.Prefix, Inline: cfg.Workers.InlineLimit,
		Env: w.env, Bases: w.bases, Blobs: w.blobs, Policy: policy, Ready: w.ready, Warn: warn, Only: only})
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator/telemetry"
	"github.com/milepost-rl/milepost/rollout/remote"
	"github.com/milepost-rl/milepost/rollout/servers"
	"github.com/milepost-rl/milepost/shadow"
)

func newWorkerCommand() *cobra.Command {
	c := &cobra.Command{Use: "worker", Short: "Serve and inspect the workers of a run"}
	c.AddCommand(newWorkerShadowCommand(), newWorkerRolloutCommand(), newWorkerServeCommand(), newWorkerListCommand(), newWorkerDeadCommand())
	return c
}

// natsFlags say how to reach the messenger.
type natsFlags struct{ shadow.ConnectConfig }

func (f *natsFlags) register(c *cobra.Command) {
	f.ConnectConfig = shadow.DefaultConnect()
	fl := c.Flags()
	fl.StringVar(&f.URL, "nats", "", "NATS server: nats://[TOKEN@]HOST:PORT or tls://HOST:PORT, several separated by commas")
	fl.StringVar(&f.Creds, "creds", "", "NATS credentials file")
	fl.StringVar(&f.TokenFile, "token-file", "", "file that holds the server's token")
	fl.StringVar(&f.TLSCA, "tls-ca", "", "certificate authority of the server (PEM)")
	fl.StringVar(&f.TLSCert, "tls-cert", "", "client certificate (PEM)")
	fl.StringVar(&f.TLSKey, "tls-key", "", "key of the client certificate (PEM)")
	fl.DurationVar(&f.Timeout, "connect-timeout", f.Timeout, "how long to wait for the first connection")
}

// over returns the configuration's connection with what the flags say instead, field by field; one of them must name a server.
func (f *natsFlags) over(c *cobra.Command, cfg shadow.ConnectConfig) (shadow.ConnectConfig, error) {
	if cfg == (shadow.ConnectConfig{}) {
		cfg = shadow.DefaultConnect()
	}
	for flag, field := range map[string][2]*string{
		"nats": {&cfg.URL, &f.URL}, "creds": {&cfg.Creds, &f.Creds}, "token-file": {&cfg.TokenFile, &f.TokenFile},
		"tls-ca": {&cfg.TLSCA, &f.TLSCA}, "tls-cert": {&cfg.TLSCert, &f.TLSCert}, "tls-key": {&cfg.TLSKey, &f.TLSKey},
	} {
		if c.Flags().Changed(flag) {
			*field[0] = *field[1]
		}
	}
	if c.Flags().Changed("connect-timeout") {
		cfg.Timeout = f.Timeout
	}
	if cfg.URL == "" {
		return cfg, &usageError{fmt.Errorf("no NATS server; give --nats URL; see %s --help", c.CommandPath())}
	}
	return cfg, nil
}

func newWorkerShadowCommand() *cobra.Command {
	var flags workerFlags
	c := &cobra.Command{
		Use:   "shadow --nats URL",
		Short: "Run tests for any run on a NATS server, until interrupted",
		Long: `Run tests for any run on a NATS server, until interrupted. Needs python3, git and bubblewrap; repositories that are not
on this machine are fetched from the run. On the first interrupt or SIGTERM it takes no more work, finishes what it
holds within probes.worker.drain_timeout and hands back the rest.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := flags.load(c, func(r *configs.Run) (*int, *string) { return &r.Probes.Worker.Slots, &r.Probes.Worker.Name })
			if err != nil {
				return err
			}
			if err := cfg.Probes.Worker.Validate(); err != nil {
				return err
			}
			return inProcess(c, cfg, flags.dir, serveShadow)
		},
	}
	flags.register(c, shadow.DefaultWorker().Slots, "tests")
	return c
}

// serveShadow serves until the command's context ends.
func serveShadow(p workerProcess) error {
	w, ctx := p.world, p.cmd.Context()
	worker, err := shadow.NewWorker(ctx, p.nc, p.cfg.Probes.Worker, w.tests, w.blobs, shadow.WithBaseStore(w.bases), shadow.WithReadiness(w.ready),
		shadow.WithWorkerErrors(p.warn))
	if err != nil {
		return err
	}
	return p.serving(workerFigures(worker), func() error { return worker.Run(ctx) })
}

// workerFigures are a worker's figures for Prometheus.
func workerFigures(w *shadow.Worker) telemetry.Worker {
	return telemetry.Worker{State: func() telemetry.WorkerState {
		i := w.Info()
		return telemetry.WorkerState{Name: i.Name, Slots: i.Slots, Busy: i.Busy, Served: i.Served, Failed: i.Failed, Failing: i.Failing, Started: i.Started, Drains: i.Drains}
	}}
}

func newWorkerListCommand() *cobra.Command {
	var nats natsFlags
	var asJSON bool
	var prefix string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "list --nats URL",
		Short: "List the workers that are alive",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if wait <= 0 {
				return &usageError{fmt.Errorf("--wait %s is not positive", wait)}
			}
			connect, err := nats.over(c, shadow.ConnectConfig{})
			if err != nil {
				return err
			}
			nc, err := shadow.Connect(connect)
			if err != nil {
				return err
			}
			defer nc.Close()
			workers, err := listWorkers(c.Context(), nc, prefix, wait)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(c.OutOrStdout())
				enc.SetIndent("", "  ")
				return milepost.Wrap("worker list", milepost.KindUnavailable, enc.Encode(workers))
			}
			return printWorkers(c, workers)
		},
	}
	nats.register(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&prefix, "prefix", shadow.DefaultStreams().Prefix, "prefix of the streams (probes.prober.streams.prefix)")
	c.Flags().DurationVar(&wait, "wait", 5*time.Second, "how long to listen for heartbeats")
	return c
}

// listedWorker is a worker with what it runs: shadow (tests), rollout (agent loops) or serve (a vLLM server).
type listedWorker struct {
	Kind string `json:"kind"`
	shadow.WorkerInfo
}

// listWorkers listens for workers of every kind.
func listWorkers(ctx context.Context, nc *nats.Conn, prefix string, wait time.Duration) ([]listedWorker, error) {
	var all errgroup.Group
	found := [3][]shadow.WorkerInfo{}
	for i, list := range []func(context.Context, *nats.Conn, string, time.Duration) ([]shadow.WorkerInfo, error){shadow.ListWorkers, remote.ListWorkers, servers.ListWorkers} {
		all.Go(func() (err error) {
			found[i], err = list(ctx, nc, prefix, wait)
			return err
		})
	}
	err := all.Wait()
	out := []listedWorker{}
	for i, kind := range []string{"shadow", "rollout", "serve"} {
		for _, w := range found[i] {
			out = append(out, listedWorker{kind, w})
		}
	}
	return out, err
}

func printWorkers(c *cobra.Command, workers []listedWorker) error {
	t := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tKIND\tHOST\tWIRE\tSLOTS\tBUSY\tSERVED\tFAILED\tUP\tSTATE")
	for _, w := range workers {
		state := "serving"
		switch {
		case w.Drains:
			state = "draining"
		case w.Failing > 1:
			state = fmt.Sprintf("failing, %d in a row", w.Failing)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", w.Name, w.Kind, w.Host, w.Wire, w.Slots, w.Busy, w.Served, w.Failed, time.Since(w.Started).Round(time.Second), state)
	}
	return milepost.Wrap("worker list", milepost.KindUnavailable, t.Flush())
}

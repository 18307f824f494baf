package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator/telemetry"
	"github.com/milepost-rl/milepost/shadow"
)

func newWorkerCommand() *cobra.Command {
	c := &cobra.Command{Use: "worker", Short: "Serve and inspect the workers of a run"}
	c.AddCommand(newWorkerShadowCommand(), newWorkerListCommand(), newWorkerDeadCommand())
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

// over returns the configuration's connection with what the flags say instead, which must name a server.
func (f *natsFlags) over(c *cobra.Command, cfg shadow.ConnectConfig) (shadow.ConnectConfig, error) {
	if f.URL != "" || cfg.URL == "" {
		cfg = f.ConnectConfig
	}
	if cfg.URL == "" {
		return cfg, &usageError{fmt.Errorf("no NATS server; give --nats URL; see %s --help", c.CommandPath())}
	}
	return cfg, nil
}

func newWorkerShadowCommand() *cobra.Command {
	var nats natsFlags
	var config configFlags
	var slots int
	var name, dir string
	var unconfined bool
	var metrics telemetry.Config
	c := &cobra.Command{
		Use:   "shadow --nats URL",
		Short: "Run tests for any run on a NATS server, until interrupted",
		Long: `Run tests for any run on a NATS server, until interrupted. Needs python3, git and bubblewrap; repositories that are not
on this machine are fetched from the run. On the first interrupt or SIGTERM it takes no more work, finishes what it
holds within probes.worker.drain_timeout and hands back the rest.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg := configs.Default()
			if config.file != "" || len(config.set) > 0 {
				var err error
				if cfg, err = config.load(); err != nil {
					return err
				}
			}
			if c.Flags().Changed("slots") {
				cfg.Probes.Worker.Slots = slots
			}
			if name != "" {
				cfg.Probes.Worker.Name = name
			}
			cfg.Sandbox.Unconfined = cfg.Sandbox.Unconfined || unconfined
			connect, err := nats.over(c, cfg.Probes.Connect)
			if err != nil {
				return err
			}
			cfg.Probes.Connect = connect
			cfg.Metrics = metrics // the configuration's is the run's
			return serveShadow(c, cfg, dir)
		},
	}
	nats.register(c)
	config.register(c, "")
	c.Flags().IntVar(&slots, "slots", shadow.DefaultWorker().Slots, "tests run at once")
	c.Flags().StringVar(&name, "name", "", "name of this worker, unique; default: host and a random part")
	c.Flags().StringVar(&dir, "dir", "", "where repositories and sandboxes are kept between starts; default: a folder that is removed at the end")
	c.Flags().StringVar(&metrics.Listen, "metrics", "", "HOST:PORT that serves /metrics for Prometheus and /healthz; port 0 = any free one")
	c.Flags().BoolVar(&unconfined, "unconfined", false, "run tests without a sandbox: no protection whatever")
	return c
}

// serveShadow connects, opens a world for the tests and serves until the command's context ends.
func serveShadow(c *cobra.Command, cfg configs.Run, dir string) (err error) {
	const op = "worker"
	ctx := c.Context()
	if err := errors.Join(cfg.Probes.Worker.Validate(), cfg.Metrics.Validate()); err != nil {
		return err
	}
	nc, err := shadow.Connect(cfg.Probes.Connect)
	if err != nil {
		return err
	}
	defer nc.Close()
	if dir == "" {
		if dir, err = os.MkdirTemp("", "milepost-worker-"); err != nil {
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return milepost.Wrap(op, milepost.KindInvalid, err)
	}
	w, err := openWorld(cfg, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	worker, err := shadow.NewWorker(ctx, nc, cfg.Probes.Worker, w.tests, w.blobs, shadow.WithBaseStore(w.bases), shadow.WithReadiness(w.ready),
		shadow.WithWorkerErrors(func(err error) { fmt.Fprintln(c.ErrOrStderr(), "milepost: warning:", err) }))
	if err != nil {
		return err
	}
	if cfg.Metrics.Listen != "" {
		server, err := telemetry.Serve(cfg.Metrics, func() error { return messengerHealth(nc) }, workerFigures(worker))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		fmt.Fprintf(c.OutOrStdout(), "metrics for Prometheus: %s\n", server.URL())
	}
	fmt.Fprintf(c.OutOrStdout(), "worker %s: %d slots, serving %s\n", worker.Name(), cfg.Probes.Worker.Slots, nc.ConnectedAddr())
	return worker.Run(ctx)
}

// workerFigures are a worker's figures for Prometheus.
func workerFigures(w *shadow.Worker) telemetry.Worker {
	return telemetry.Worker{State: func() telemetry.WorkerState {
		i := w.Info()
		return telemetry.WorkerState{Name: i.Name, Slots: i.Slots, Busy: i.Busy, Served: i.Served, Failed: i.Failed, Failing: i.Failing, Started: i.Started, Drains: i.Drains}
	}}
}

// messengerHealth is nil as long as the connection to the messenger is up.
func messengerHealth(nc *nats.Conn) error {
	if nc.IsConnected() {
		return nil
	}
	return milepost.E("worker", milepost.KindUnavailable, "not connected to the messenger")
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
			workers, err := shadow.ListWorkers(c.Context(), nc, prefix, wait)
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

func printWorkers(c *cobra.Command, workers []shadow.WorkerInfo) error {
	t := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tHOST\tWIRE\tSLOTS\tBUSY\tSERVED\tFAILED\tUP\tSTATE")
	for _, w := range workers {
		state := "serving"
		switch {
		case w.Drains:
			state = "draining"
		case w.Failing > 1:
			state = fmt.Sprintf("failing, %d in a row", w.Failing)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", w.Name, w.Host, w.Wire, w.Slots, w.Busy, w.Served, w.Failed, time.Since(w.Started).Round(time.Second), state)
	}
	return milepost.Wrap("worker list", milepost.KindUnavailable, t.Flush())
}

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator/telemetry"
	"github.com/milepost-rl/milepost/shadow"
)

// workerFlags are the flags of a worker process, whatever it serves.
type workerFlags struct {
	nats       natsFlags
	config     configFlags
	slots      int
	name, dir  string
	unconfined bool
	metrics    telemetry.Config
}

// register adds the flags. what is what a slot runs.
func (f *workerFlags) register(c *cobra.Command, slots int, what string) {
	f.nats.register(c)
	f.config.register(c, "")
	c.Flags().IntVar(&f.slots, "slots", slots, what+" at once")
	c.Flags().StringVar(&f.name, "name", "", "name of this worker, unique; default: host and a random part")
	c.Flags().StringVar(&f.dir, "dir", "", "where repositories and sandboxes are kept between starts; default: a folder that is removed at the end")
	c.Flags().StringVar(&f.metrics.Listen, "metrics", "", "HOST:PORT that serves /metrics for Prometheus and /healthz; port 0 = any free one")
	c.Flags().BoolVar(&f.unconfined, "unconfined", false, "run without a sandbox: no protection whatever")
}

// load reads the configuration, with the flags over it. slots and name point to where they belong in what it is given.
func (f *workerFlags) load(c *cobra.Command, of func(*configs.Run) (slots *int, name *string)) (configs.Run, error) {
	cfg := configs.Default()
	if f.config.file != "" || len(f.config.set) > 0 {
		var err error
		if cfg, err = f.config.load(); err != nil {
			return cfg, err
		}
	}
	slots, name := of(&cfg)
	if c.Flags().Changed("slots") {
		*slots = f.slots
	}
	if f.name != "" {
		*name = f.name
	}
	cfg.Sandbox.Unconfined = cfg.Sandbox.Unconfined || f.unconfined
	cfg.Metrics = f.metrics // the configuration's is the run's
	connect, err := f.nats.over(c, cfg.Probes.Connect)
	cfg.Probes.Connect = connect
	return cfg, err
}

// workerProcess is what a worker process works with.
type workerProcess struct {
	cmd   *cobra.Command
	cfg   configs.Run
	nc    *nats.Conn
	world *world
}

// inProcess connects to the messenger and opens a world below dir, a folder of its own where that is "", for serve.
func inProcess(c *cobra.Command, cfg configs.Run, dir string, serve func(workerProcess) error) (err error) {
	const op = "worker"
	if err := cfg.Metrics.Validate(); err != nil {
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
	return serve(workerProcess{c, cfg, nc, w})
}

// warn tells what the worker survives.
func (p workerProcess) warn(err error) { fmt.Fprintln(p.cmd.ErrOrStderr(), "milepost: warning:", err) }

// serving says that the worker serves, gives its figures to Prometheus where that is asked for, and runs it.
func (p workerProcess) serving(figures telemetry.Worker, run func() error) (err error) {
	if p.cfg.Metrics.Listen != "" {
		server, err := telemetry.Serve(p.cfg.Metrics, func() error { return messengerHealth(p.nc) }, figures)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		fmt.Fprintf(p.cmd.OutOrStdout(), "metrics for Prometheus: %s\n", server.URL())
	}
	s := figures.State()
	fmt.Fprintf(p.cmd.OutOrStdout(), "worker %s: %d slots, serving %s\n", s.Name, s.Slots, p.nc.ConnectedAddr())
	return run()
}

// messengerHealth is nil as long as the connection to the messenger is up.
func messengerHealth(nc *nats.Conn) error {
	if nc.IsConnected() {
		return nil
	}
	return milepost.E("worker", milepost.KindUnavailable, "not connected to the messenger")
}

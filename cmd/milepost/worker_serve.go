package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
	"github.com/milepost-rl/milepost/rollout/servers"
	"github.com/milepost-rl/milepost/shadow"
)

// serveFlags are the flags of worker serve.
type serveFlags struct {
	nats                                  natsFlags
	config                                configFlags
	url, advertise, model, name, run, dir string
}

func newWorkerServeCommand() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve --nats URL {--url URL | --model DIR | -c FILE}",
		Short: "Let a vLLM server join a run on a NATS server, until interrupted",
		Long: `Let a vLLM server join a run on a NATS server, until interrupted: one that runs already (--url), or one that is started here
with the server section of the configuration and kept up. The run pushes its weights to it, and it samples once the canary agreed.
The run must reach the address: server.host is where it listens, --advertise what the run is told. With weights.method disk it
must see the run's folder under the same path. On the first interrupt or SIGTERM it gets no more requests, waits for those that it
has within serve.drain_timeout, and leaves.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := f.load(c)
			if err != nil {
				return err
			}
			return f.serve(c, cfg)
		},
	}
	f.nats.register(c)
	f.config.register(c, "")
	fl := c.Flags()
	fl.StringVar(&f.url, "url", "", "base address of a server that runs already, as the run reaches it; nothing is started then")
	fl.StringVar(&f.model, "model", "", "directory of the model to serve; default: model of the configuration. With --url it only says which model that is")
	fl.StringVar(&f.advertise, "advertise", "", "base address that the run is told, where it is not the one that the started server listens on")
	fl.StringVar(&f.name, "name", "", "name of this server, unique; default: host and a random part")
	fl.StringVar(&f.run, "run", "", "id of the only run to serve; default: the first that wants it")
	fl.StringVar(&f.dir, "dir", ".", "where log and process of a started server are kept, so that the next start there ends what a killed one left")
	return c
}

// load reads the configuration, with the flags over it.
func (f *serveFlags) load(c *cobra.Command) (configs.Run, error) {
	cfg := configs.Default()
	var err error
	if f.config.file != "" || len(f.config.set) > 0 {
		if cfg, err = f.config.load(); err != nil {
			return cfg, err
		}
	}
	for flag, field := range map[*string]*string{&f.model: &cfg.Model, &f.name: &cfg.Serve.Name, &f.run: &cfg.Serve.Run} {
		if *flag != "" {
			*field = *flag
		}
	}
	switch {
	case f.url == "" && cfg.Model == "":
		return cfg, &usageError{errors.New("no server; give --url of one that runs, or --model (or -c) to start one")}
	case f.url == "" && cfg.Server.Replicas > 1:
		return cfg, &usageError{fmt.Errorf("server.replicas is %d; start one worker serve for each", cfg.Server.Replicas)}
	case f.url == "" && f.advertise == "" && listensEverywhere(cfg.Server.Host):
		return cfg, &usageError{fmt.Errorf("server.host is %s, an address that the run cannot call; give --advertise http://HOST:PORT and server.port", cfg.Server.Host)}
	}
	if err := stretch(&cfg, f.dir); err != nil { // as the run does
		return cfg, err
	}
	cfg.Probes.Connect, err = f.nats.over(c, cfg.Probes.Connect)
	return cfg, err
}

func listensEverywhere(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsUnspecified()
}

// serve announces the server until the command's context ends, or the server is given up.
func (f *serveFlags) serve(c *cobra.Command, cfg configs.Run) (err error) {
	ctx, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)
	nc, err := shadow.Connect(cfg.Probes.Connect)
	if err != nil {
		return err
	}
	defer nc.Close()
	say := func(text string) { fmt.Fprintln(c.OutOrStdout(), text) }
	offer := servers.Offer{URL: f.url}
	if cfg.Model != "" {
		cfg.Server.Model = absolute(cfg.Model)
		if offer.Model, offer.Vocab, err = modelShape(cfg.Server.Model); err != nil {
			return err
		}
	}
	var own *supervise.Service
	if f.url == "" {
		release, err := lockDir(f.dir)
		if err != nil {
			return err
		}
		defer func() { _ = release() }()
		if own, offer.URL, err = f.service(ctx, cfg.Server, say); err != nil {
			return err
		}
	}
	client, err := vllm.New(vllm.Config{URL: offer.URL})
	if err != nil {
		return err
	}
	worker, err := servers.NewWorker(cfg.Serve, servers.WorkerDeps{NC: nc, Prefix: cfg.Probes.Worker.Streams.Prefix, Offer: offer, Health: client.Health, Say: say})
	if err != nil {
		return err
	}
	say(fmt.Sprintf("worker %s: vLLM at %s, announced to %s", worker.Name(), offer.URL, nc.ConnectedAddr()))
	if own == nil {
		return worker.Run(ctx)
	}
	return beside(ctx, cancel, own, worker)
}

// beside runs the worker with its server, which ends after it.
func beside(ctx context.Context, cancel context.CancelCauseFunc, own *supervise.Service, worker *servers.Worker) error {
	notify := own.Notify
	own.Notify = func(e supervise.Event) {
		notify(e)
		if e.Kind == supervise.EventStarted {
			worker.Anew()
		}
	}
	serves, stop := context.WithCancel(context.WithoutCancel(ctx))
	var process sync.WaitGroup
	var given error
	process.Go(func() {
		if given = own.Run(serves); given != nil {
			cancel(given)
		}
	})
	err := worker.Run(ctx)
	stop()
	process.Wait()
	return errors.Join(err, given)
}

// service prepares the server of this machine and says at which address the run finds it.
func (f *serveFlags) service(ctx context.Context, server vllm.ServerConfig, say func(string)) (*supervise.Service, string, error) {
	environment, err := pinnedServer(&server)
	if err != nil {
		return nil, "", err
	}
	if server, err = server.WithPort(); err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return nil, "", milepost.Wrap("worker serve", milepost.KindUnavailable, err)
	}
	identity := filepath.Join(f.dir, "vllm.json")
	if err := reapServer(ctx, readIdentity(identity)); err != nil {
		return nil, "", err
	}
	spec, err := supervise.VLLM("vllm", server, environment, filepath.Join(f.dir, "vllm.log"))
	if err != nil {
		return nil, "", err
	}
	service := &supervise.Service{Spec: spec, Restart: supervise.DefaultRestart(), Notify: func(e supervise.Event) {
		switch e.Kind {
		case supervise.EventStarted:
			say(fmt.Sprintf("vLLM starts (process %d, log %s)", e.Identity.PID, spec.Log))
			if err := writeIdentity(identity, serverIdentity{Identity: e.Identity, Port: server.Port}); err != nil {
				say(err.Error())
			}
		case supervise.EventReady:
			say("vLLM serves")
		case supervise.EventExited:
			say(fmt.Sprintf("vLLM ended (%s)", e.Exit.Reason))
		}
	}}
	url := f.advertise
	if url == "" {
		url = server.Addresses()[0]
	}
	return service, url, spec.Startable()
}

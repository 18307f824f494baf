package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nats-io/nats.go"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/shadow"
)

// probing is the messenger with the run's prober and, unless the configuration says otherwise, a worker.
type probing struct {
	*shadow.Prober
	run    string
	epoch  uint64
	warn   func(error)
	server *shadow.Server
	nc     *nats.Conn
	stop   func() error
}

// openProbing connects run (an id that is unique among all runs on a cluster) in its epoch. Its cache, the flaky tests found
// and the embedded server's files lie below dir. Tasks are those that a resumed batch may name.
func openProbing(ctx context.Context, cfg configs.Run, w *world, dir, run string, epoch uint64, tasks []*milepost.Task, warn func(error)) (p *probing, err error) {
	p = &probing{run: run, epoch: epoch, warn: warn, stop: func() error { return nil }}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.nc, err = p.connect(cfg, dir); err != nil {
		return p, err
	}
	byID := make(map[string]*milepost.Task, len(tasks))
	for _, t := range tasks {
		byID[t.ID] = t
	}
	prober := cfg.Probes.Prober
	prober.Run, prober.Epoch = run, epoch
	prober.CacheFile, prober.FlakyFile = filepath.Join(dir, "probes.jsonl"), filepath.Join(dir, "flaky.jsonl")
	p.Prober, err = shadow.NewProber(ctx, p.nc, prober, w.blobs,
		shadow.WithBases(w.bases), shadow.WithErrors(warn),
		shadow.WithTasks(func(id string) (*milepost.Task, error) {
			if t := byID[id]; t != nil {
				return t, nil
			}
			return nil, milepost.E("probe", milepost.KindNotFound, "task %s is not part of this run", id)
		}))
	if err != nil || !cfg.Probes.Local {
		return p, err
	}
	return p, p.startWorker(ctx, cfg, w, warn)
}

func (p *probing) connect(cfg configs.Run, dir string) (*nats.Conn, error) {
	if cfg.Probes.Connect.URL != "" {
		return shadow.Connect(cfg.Probes.Connect)
	}
	server := cfg.Probes.Server
	if server.Dir == "" {
		server.Dir = filepath.Join(dir, "nats")
	}
	var err error
	if p.server, err = shadow.StartServer(server); err != nil {
		return nil, err
	}
	return p.server.Connect("milepost")
}

// startWorker serves probes from this process until close.
func (p *probing) startWorker(ctx context.Context, cfg configs.Run, w *world, warn func(error)) error {
	worker, err := shadow.NewWorker(ctx, p.nc, cfg.Probes.Worker, w.tests, w.blobs, shadow.WithReadiness(w.ready), shadow.WithWorkerErrors(warn))
	if err != nil {
		return err
	}
	p.stop = inBackground(func(ctx context.Context) error {
		err := worker.Run(ctx)
		if err != nil {
			warn(fmt.Errorf("shadow worker: %w", err))
		}
		return err
	})
	return nil
}

func (p *probing) close() error {
	err := p.stop()
	if p.Prober != nil {
		err = errors.Join(err, p.Prober.Close())
	}
	if p.nc != nil {
		p.nc.Close()
	}
	if p.server != nil {
		p.server.Close()
	}
	return err
}

// Stats are the prober's totals by the names of docs/metrics.md; times in seconds.
func (p *probing) Stats() map[string]float64 {
	s := p.Prober.Stats()
	var raw map[string]float64
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &raw)
	}
	if err != nil {
		panic(fmt.Sprintf("shadow.Stats does not marshal to numbers: %v", err))
	}
	for _, name := range []string{"queue_time", "run_time", "step_time", "verdict_time", "overlap_time", "barrier_wait"} {
		raw[name+"_s"] = raw[name] / 1e9
		delete(raw, name)
	}
	return raw
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/expert"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/shadow"
)

// bench is what all batches share: the world with its warm test processes, the tasks and the policy. What a batch learns
// (the probe cache, the streams) is made anew for each, so that none profits from another.
type bench struct {
	options benchOptions
	cfg     configs.Run
	world   *world
	tasks   []*milepost.Task
	model   rollout.Model
	report  *progress
	batches int
	seen    map[string]episodePrint // by episode id, from the first batch it was in
}

func openBench(ctx context.Context, o benchOptions, p *progress) (b *bench, err error) {
	cfg, err := configs.Load("quickstart", nil)
	if err != nil {
		return nil, err
	}
	cfg.Run.Dir = o.Dir
	cfg.Tests.Slots = slices.Max(o.Workers) * o.Slots // a worker never waits for a test process
	cfg.Probes.Local = false                          // workers are counted out below
	cfg.Probes.Worker.Slots = o.Slots
	cfg.Schedule.Barrier = 10 * time.Minute // nothing shall be late: what one worker cannot do in time shows as time
	script, err := expert.New(cfg.RFT.Expert)
	if err != nil {
		return nil, err
	}
	b = &bench{options: o, cfg: cfg, model: slowModel{script, o.Turn}, report: p, seen: map[string]episodePrint{}}
	if b.world, err = openWorld(cfg, filepath.Join(o.Dir, "world")); err != nil {
		return nil, err
	}
	p.line("making %d tasks", o.Tasks)
	if b.tasks, err = benchTasks(ctx, o, cfg, b.world); err != nil {
		return nil, errors.Join(err, b.world.close())
	}
	return b, nil
}

// measure runs the batches of one kind of tests, after one that warms up and is thrown away.
func (b *bench) measure(ctx context.Context, kind string) ([]benchRound, error) {
	tasks := slices.Clone(b.tasks)
	for i, t := range tasks {
		var err error
		if kind == testsWaiting {
			sleep := time.Duration(b.options.Wait * float64(b.options.Turn))
			if tasks[i], err = waitingTask(t, filepath.Join(b.options.Dir, "waiting"), sleep); err != nil {
				return nil, err
			}
		}
		if _, err = b.world.bases.Base(ctx, tasks[i]); err != nil {
			return nil, err
		}
	}
	variants := variantsOf(b.options.Workers)
	specs := benchSpecs(tasks, b.options)
	warm := specs[:min(len(specs), b.options.Concurrency)]
	if _, err := b.batch(ctx, variants[len(variants)-1], tasks, warm); err != nil {
		return nil, err
	}
	var rounds []benchRound
	for n := range b.options.Rounds {
		round := benchRound{}
		for _, v := range orderOf(variants, n, n < b.options.SweepRounds) {
			got, err := b.batch(ctx, v, tasks, specs)
			if err != nil {
				return nil, err
			}
			b.report.line("%s tests, round %d of %d, %s: episodes ended after %.2f s, barrier closed after %.2f s",
				kind, n+1, b.options.Rounds, v.Name, got.Episodes, got.Barrier)
			round[v.Name] = got
		}
		rounds = append(rounds, round)
	}
	return rounds, nil
}

// benchSpecs are the episodes of every batch, in the order in which a run dispatches groups.
func benchSpecs(tasks []*milepost.Task, o benchOptions) []orchestrator.EpisodeSpec {
	var out []orchestrator.EpisodeSpec
	for _, t := range tasks {
		for a := range o.Attempts {
			out = append(out, orchestrator.EpisodeSpec{ID: fmt.Sprintf("%s/a%02d", t.ID, a), Group: t.ID, Task: t.ID, Attempt: a,
				Seed: o.Seed<<20 + int64(len(out)), Purpose: orchestrator.PurposeTrain})
		}
	}
	return out
}

// batch runs the episodes under one variant and measures from the first start until the barrier is closed. Setting up and
// taking down the messenger is not measured.
func (b *bench) batch(ctx context.Context, v benchVariant, tasks []*milepost.Task, specs []orchestrator.EpisodeSpec) (got benchBatch, err error) {
	b.batches++
	cfg := b.cfg
	cfg.Probes.Prober.Mode = v.Mode
	cfg.Probes.Prober.Merge, cfg.Probes.Prober.Recheck = 1, 0 // a step is a run of the tests, in every variant
	dir := filepath.Join(b.options.Dir, fmt.Sprint("batch", b.batches))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return got, milepost.Wrap("bench: batch", milepost.KindUnavailable, err)
	}
	warn := func(e error) { b.report.line("warning: %v", e) }
	probes, err := openProbing(ctx, cfg, b.world, dir, fmt.Sprint("bench-", b.batches), 1, tasks, warn)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, probes.close(), os.RemoveAll(dir)) }()
	workers, err := startBenchWorkers(ctx, cfg, b.world, probes, v.Workers, warn)
	if err != nil {
		return got, err
	}
	rolls, err := newRollouts(cfg, b.world, b.model, probes)
	if err != nil {
		return got, err
	}
	byID := make(map[string]*milepost.Task, len(tasks))
	for _, t := range tasks {
		byID[t.ID] = t
	}
	prober, served := wireBytes(probes.nc), wireBytes(workers...)
	began := time.Now()
	eps, err := orchestrator.Collect(ctx, rolls, probes, byID, specs, orchestrator.Bounds{Concurrency: b.options.Concurrency, Barrier: cfg.Schedule.Barrier}, func(*milepost.Episode) {
		got.Episodes = time.Since(began).Seconds() // the last one's stands
	})
	if err != nil {
		return got, err
	}
	got.Barrier = time.Since(began).Seconds()
	got.Stats = probes.Prober.Stats()
	got.ProberBytes, got.WorkerBytes = wireBytes(probes.nc)-prober, wireBytes(workers...)-served
	return got, b.sameEpisodes(eps)
}

// startBenchWorkers starts n workers in this process, each on a connection of its own; probes.close stops them.
func startBenchWorkers(ctx context.Context, cfg configs.Run, w *world, probes *probing, n int, warn func(error)) ([]*nats.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	var conns []*nats.Conn
	done := make(chan error)
	running := 0
	probes.stop = func() error {
		cancel()
		var errs []error
		for range running {
			errs = append(errs, <-done)
		}
		for _, nc := range conns {
			nc.Close()
		}
		return errors.Join(errs...)
	}
	for i := range n {
		nc, err := probes.server.Connect(fmt.Sprint("worker-", i+1))
		if err != nil {
			return nil, err
		}
		conns = append(conns, nc)
		worker := cfg.Probes.Worker
		worker.Name = fmt.Sprint("worker-", i+1)
		wk, err := shadow.NewWorker(ctx, nc, worker, w.tests, w.blobs, shadow.WithWorkerErrors(warn))
		if err != nil {
			return nil, err
		}
		running++
		go func() { done <- wk.Run(ctx) }()
	}
	return conns, nil
}

// wireBytes is what went over the connections so far, both ways: bodies and headers of all messages.
func wireBytes(conns ...*nats.Conn) uint64 {
	var sum uint64
	for _, nc := range conns {
		s := nc.Stats()
		sum += s.InBytes + s.OutBytes
	}
	return sum
}

// episodePrint is what must not depend on how an episode was verified.
type episodePrint struct {
	trees   []string            // after each step
	verdict milepost.TestReport // nil as long as none was trusted
}

// sameEpisodes holds a batch against those before: were the episodes others, their times could not be compared. Verdicts
// that are not trusted show in the table and are not compared.
func (b *bench) sameEpisodes(eps []*milepost.Episode) error {
	const op = "bench: same episodes"
	for _, ep := range eps {
		if ep.Status != milepost.EpisodeCompleted && ep.Status != milepost.EpisodeLimit {
			return milepost.E(op, milepost.KindInternal, "episode %s ended as %s (%s) %s", ep.ID, ep.Status, ep.Stop, ep.Error)
		}
		now := episodePrint{}
		for _, s := range ep.Steps {
			now.trees = append(now.trees, s.Tree)
		}
		if ep.Outcome.Verdict.Trusted {
			now.verdict = ep.Outcome.Verdict.Report
		}
		before, ok := b.seen[ep.ID]
		if ok && !slices.Equal(before.trees, now.trees) {
			return milepost.E(op, milepost.KindInternal, "episode %s went other ways than before: trees %v, then %v", ep.ID, before.trees, now.trees)
		}
		if before.verdict != nil && now.verdict != nil && !slices.Equal(before.verdict, now.verdict) {
			return milepost.E(op, milepost.KindInternal, "episode %s was judged otherwise before: %v, then %v", ep.ID, before.verdict, now.verdict)
		}
		if now.verdict == nil {
			now.verdict = before.verdict
		}
		b.seen[ep.ID] = now
	}
	return nil
}

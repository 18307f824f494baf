package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/micro"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
)

func newQuickstartCommand() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use:   "quickstart",
		Short: "From nothing to a better policy on this machine: tasks, cold start, vLLM, training, report",
		Long: "Makes repair tasks, collects and filters demonstrations, trains a tokenizer and a tiny model on them, serves it\n" +
			"with vLLM, measures it on held-out tasks, trains it by milestone GRPO with shadow workers, measures the best\n" +
			"weights again and writes report.html. Steps whose inputs did not change are reused; an interrupted run goes on.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := loadRun(flags, "")
			if err != nil {
				return err
			}
			return quickstart(c.Context(), cfg, newProgress(c.OutOrStdout()), c)
		},
	}
	flags.register(c, "quickstart")
	return c
}

// pipeline carries the artifacts of a quickstart from stage to stage; all lie below dir. plan names them before any is
// made.
type pipeline struct {
	cfg   configs.Run
	dir   string
	p     *progress
	world *world // of tasks and demonstrations; the run has its own

	tasks, demos, initial, policy string // paths
	run                           configs.Run
}

// plan finds the path of every artifact: the key of a stage is what it depends on, the names of earlier ones included.
func (q *pipeline) plan() (err error) {
	path := func(name string, key any) (out string) {
		if err == nil {
			out, err = orchestrator.StagePath(q.dir, name, key)
		}
		return out
	}
	q.tasks = path("tasks", q.tasksKey())
	q.demos = path("demos", q.demosKey())
	q.initial = path("model", q.modelKey())
	q.policy = path("policy", q.policyKey())
	q.run = q.cfg
	q.run.Model, q.run.Tasks = q.policy, q.splits()
	q.run.Run.Dir = path("run", q.relative(q.run))
	return err
}

// relative is a run's configuration without the pipeline's own place, so that a folder that was moved is recognised.
func (q *pipeline) relative(run configs.Run) configs.Run {
	run.Run.Dir = ""
	for _, p := range []*string{&run.Model, &run.Tasks.Train, &run.Tasks.Validation, &run.Tasks.Heldout} {
		if rel, err := filepath.Rel(q.dir, *p); err == nil && *p != "" {
			*p = rel
		}
	}
	return run
}

func (q *pipeline) tasksKey() any { return []any{q.cfg.Micro, q.cfg.Run.Seed, q.cfg.Tests} }

func (q *pipeline) demosKey() any {
	c := q.cfg
	c.Rollout.ProbeSteps, c.Rollout.ToolWait = false, 0 // as in every episode that is not for training
	return []any{filepath.Base(q.tasks), c.RFT.Expert, c.RFT.Attempts, c.RFT.Accept, c.Rollout, c.Tests, c.Run.Seed}
}

func (q *pipeline) modelKey() any { return []any{filepath.Base(q.demos), q.cfg.RFT.Model} }

func (q *pipeline) policyKey() any {
	return []any{filepath.Base(q.initial), filepath.Base(q.demos), q.cfg.RFT.SFT}
}

func (q *pipeline) demosFile() string { return filepath.Join(q.demos, demosFile) }

func (q *pipeline) splits() configs.TaskSets {
	sets := configs.TaskSets{Train: filepath.Join(q.tasks, "train"), Certificates: q.cfg.Tasks.Certificates}
	if q.cfg.Micro.Validation > 0 {
		sets.Validation = filepath.Join(q.tasks, "validation")
	}
	if q.cfg.Micro.Heldout > 0 {
		sets.Heldout = filepath.Join(q.tasks, "heldout")
	}
	return sets
}

func quickstart(ctx context.Context, cfg configs.Run, p *progress, c *cobra.Command) error {
	q := &pipeline{cfg: cfg, dir: cfg.Run.Dir, p: p}
	if err := q.plan(); err != nil {
		return err
	}
	done, err := (&orchestrator.Folder{Dir: q.run.Run.Dir}).Finished()
	if err != nil {
		return err
	}
	if done {
		p.line("nothing changed: the run in %s is done", q.run.Run.Dir)
		return finishReport(q.run, c.OutOrStdout())
	}
	if err := examine(cfg, p); err != nil {
		return err
	}
	for _, dir := range []string{q.dir, q.run.Run.Dir} {
		release, err := orchestrator.Lock(dir)
		if err != nil {
			return err
		}
		defer release()
	}
	if err := q.carryOut(ctx); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w\nor give the same command again: what is finished is reused", err)
		}
		return err
	}
	return finishReport(q.run, c.OutOrStdout())
}

// carryOut makes what is missing, stage after stage, and trains.
func (q *pipeline) carryOut(ctx context.Context) (err error) {
	logs := filepath.Join(q.dir, "logs")
	trainer := startTrainerBeside(ctx, q.cfg, logs)
	prepared := q.prepare(ctx)
	t, err := trainer()
	if err != nil {
		return errors.Join(prepared, err)
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if prepared != nil {
		return prepared
	}
	if err := q.makeModel(ctx, t); err != nil {
		return err
	}
	// vLLM takes one to two minutes to start: it starts with the untrained model and takes the weights later.
	q.p.line("starting vLLM beside the cold start")
	s, err := startServing(ctx, q.cfg, q.initial, logs, func(text string) { q.p.line("%s", text) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	guarded, release := s.guard(ctx)
	defer release()
	if err := q.coldStart(guarded, t); err != nil {
		return because(ctx, guarded, err)
	}
	run := q.run.Run.Dir
	started, err := orchestrator.Epochs(run)
	if err != nil {
		return err
	}
	if started > 0 {
		q.p.line("going on with the run in %s", run)
	}
	if err := shareLogs(run, logs); err != nil {
		return err
	}
	q.p.line("training: %d groups of %d episodes an update", q.cfg.Schedule.GroupsPerUpdate, q.cfg.Schedule.GroupSize)
	return train(ctx, q.run, q.p, &machinery{trainer: t, serving: s, locked: true}, started > 0)
}

// prepare makes tasks and demonstrations.
func (q *pipeline) prepare(ctx context.Context) (err error) {
	if q.world, err = openWorld(q.cfg, filepath.Join(q.dir, "world")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.world.close()) }()
	if err := q.makeTasks(ctx); err != nil {
		return err
	}
	return q.makeDemos(ctx)
}

// shareLogs makes logs/ of the run folder the pipeline's own, where the identities of server and trainer lie, so that
// `milepost train --resume` finds them as well.
func shareLogs(run, logs string) error {
	const op = "share logs"
	link := filepath.Join(run, "logs")
	if _, err := os.Lstat(link); err == nil {
		return nil
	}
	target, err := filepath.Rel(run, logs)
	if err != nil {
		return milepost.Wrap(op, milepost.KindInvalid, err)
	}
	return milepost.Wrap(op, milepost.KindUnavailable, errors.Join(os.MkdirAll(run, 0o755), os.Symlink(target, link)))
}

// makeTasks makes the four micro sets; no two share a repository.
func (q *pipeline) makeTasks(ctx context.Context) error {
	m := q.cfg.Micro
	_, reused, err := orchestrator.Stage(q.dir, "tasks", q.tasksKey(), func(into string) error {
		for i, set := range q.sets() {
			if set.count == 0 {
				continue
			}
			began := time.Now()
			c := m.Config
			c.Seed, c.Split, c.Count = q.cfg.Run.Seed*10+int64(i), set.split, set.count
			checker := &benchmarks.Checker{Bases: q.world.bases, Blobs: q.world.blobs, Runner: q.world.tests, Workers: max(c.Workers, 1)}
			if _, err := micro.Make(ctx, c, checker, filepath.Join(into, set.name), func(done, total int) {
				q.p.count(set.name+" tasks", done, total, time.Since(began))
			}); err != nil {
				return err
			}
			q.p.line("%d %s tasks, each validated twice", set.count, set.name)
		}
		return nil
	})
	if reused {
		q.p.line("tasks: reused from %s", q.tasks)
	}
	return err
}

type microSet struct {
	name, split string
	count       int
}

func (q *pipeline) sets() []microSet {
	m := q.cfg.Micro
	return []microSet{
		{"demos", micro.SplitTrain, m.Demos}, {"train", micro.SplitTrain, m.Train},
		{"validation", micro.SplitValidation, m.Validation}, {"heldout", micro.SplitHeldout, m.Heldout},
	}
}

// makeDemos lets the expert try the demonstration tasks.
func (q *pipeline) makeDemos(ctx context.Context) error {
	_, reused, err := orchestrator.Stage(q.dir, "demos", q.demosKey(), func(into string) error {
		set, err := benchmarks.Load(filepath.Join(q.tasks, "demos"))
		if err != nil {
			return err
		}
		return collectDemos(ctx, q.cfg, q.world, set, demoSource{}, into, q.p)
	})
	if reused {
		q.p.line("demonstrations: reused from %s", q.demos)
	}
	return err
}

// makeModel makes the tokenizer and the untrained model.
func (q *pipeline) makeModel(ctx context.Context, t *trainer) error {
	_, _, err := orchestrator.Stage(q.dir, "model", q.modelKey(), func(into string) error {
		if err := os.Remove(into); err != nil { // the trainer makes the directory itself
			return milepost.Wrap("make model", milepost.KindUnavailable, err)
		}
		return createModel(ctx, q.cfg, t, q.demosFile(), into, q.p)
	})
	return err
}

// coldStart fine-tunes the untrained model on the demonstrations.
func (q *pipeline) coldStart(ctx context.Context, t *trainer) error {
	_, reused, err := orchestrator.Stage(q.dir, "policy", q.policyKey(), func(into string) error {
		if err := os.Remove(into); err != nil {
			return milepost.Wrap("cold start", milepost.KindUnavailable, err)
		}
		return fineTune(ctx, q.cfg, t, q.initial, q.demosFile(), into, q.p)
	})
	if reused {
		q.p.line("cold start: reused from %s", q.policy)
	}
	return err
}

// examine stops before anything is made where the machine lacks something.
func examine(cfg configs.Run, p *progress) error {
	var faults []error
	for _, f := range diagnose(cfg) {
		if !f.ok {
			p.line("%s: %s", f.what, f.text)
			if f.needed {
				faults = append(faults, fmt.Errorf("%s: %s", f.what, f.text))
			}
		}
	}
	if len(faults) > 0 {
		return milepost.E("check machine", milepost.KindNotFound, "%w", errors.Join(faults...))
	}
	return nil
}

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

// pipeline carries the artifacts of a quickstart from stage to stage; all lie below dir.
type pipeline struct {
	cfg   configs.Run
	dir   string
	p     *progress
	world *world
}

func quickstart(ctx context.Context, cfg configs.Run, p *progress, c *cobra.Command) (err error) {
	if err := examine(cfg, p); err != nil {
		return err
	}
	q := &pipeline{cfg: cfg, dir: cfg.Run.Dir, p: p}
	// The trainer and the world are needed from the first stages on.
	t, err := startTrainer(ctx, cfg, filepath.Join(q.dir, "logs"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if q.world, err = openWorld(cfg, filepath.Join(q.dir, "world")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.world.close()) }()

	sets, err := q.makeTasks(ctx)
	if err != nil {
		return err
	}
	demos, err := q.makeDemos(ctx, sets.demos)
	if err != nil {
		return err
	}
	initial, err := q.makeModel(ctx, t, demos)
	if err != nil {
		return err
	}
	// vLLM takes one to two minutes to start: it starts with the untrained model and takes the weights later.
	p.line("starting vLLM beside the cold start")
	s, err := startServing(ctx, cfg, initial, filepath.Join(q.dir, "logs"), func(text string) { p.line("%s", text) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	policy, err := q.coldStart(ctx, t, initial, demos)
	if err != nil {
		return err
	}
	cfg.Model, cfg.Tasks = policy, sets.TaskSets
	cfg.Run.Dir, err = orchestrator.StagePath(q.dir, "run", runKey(cfg))
	if err != nil {
		return err
	}
	started, err := orchestrator.Epochs(cfg.Run.Dir)
	if err != nil {
		return err
	}
	if started > 0 {
		p.line("going on with the run in %s", cfg.Run.Dir)
	}
	p.line("training: %d groups of %d episodes an update", cfg.Schedule.GroupsPerUpdate, cfg.Schedule.GroupSize)
	if err := train(ctx, cfg, p, &machinery{world: q.world, trainer: t, serving: s}, started > 0); err != nil {
		return err
	}
	return finishReport(cfg, c.OutOrStdout())
}

// runKey is what the training run depends on: everything but where it lies and how the stages before it were made,
// which the model's path stands for.
func runKey(cfg configs.Run) configs.Run {
	cfg.Run.Dir = ""
	return cfg
}

type microSets struct {
	configs.TaskSets
	demos string
}

// makeTasks makes the four micro sets; no two share a repository.
func (q *pipeline) makeTasks(ctx context.Context) (microSets, error) {
	m := q.cfg.Micro
	path, reused, err := orchestrator.Stage(q.dir, "tasks", []any{m, q.cfg.Run.Seed, q.cfg.Tests}, func(into string) error {
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
	if err != nil {
		return microSets{}, err
	}
	if reused {
		q.p.line("tasks: reused from %s", path)
	}
	sets := microSets{demos: filepath.Join(path, "demos"), TaskSets: configs.TaskSets{Train: filepath.Join(path, "train")}}
	if m.Validation > 0 {
		sets.Validation = filepath.Join(path, "validation")
	}
	if m.Heldout > 0 {
		sets.Heldout = filepath.Join(path, "heldout")
	}
	return sets, nil
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
func (q *pipeline) makeDemos(ctx context.Context, tasks string) (string, error) {
	key := []any{tasks, q.cfg.RFT.Expert, q.cfg.RFT.Attempts, q.cfg.RFT.Accept, q.cfg.Rollout, q.cfg.Tests, q.cfg.Run.Seed}
	path, reused, err := orchestrator.Stage(q.dir, "demos", key, func(into string) error {
		set, err := benchmarks.Load(tasks)
		if err != nil {
			return err
		}
		return collectDemos(ctx, q.cfg, q.world, set, into, q.p)
	})
	if reused {
		q.p.line("demonstrations: reused from %s", path)
	}
	return filepath.Join(path, demosFile), err
}

// makeModel makes the tokenizer and the untrained model.
func (q *pipeline) makeModel(ctx context.Context, t *trainer, demos string) (string, error) {
	path, _, err := orchestrator.Stage(q.dir, "model", []any{demos, q.cfg.RFT.Model}, func(into string) error {
		if err := os.Remove(into); err != nil { // the trainer makes the directory itself
			return milepost.Wrap("make model", milepost.KindUnavailable, err)
		}
		return createModel(ctx, q.cfg, t, demos, into, q.p)
	})
	return path, err
}

// coldStart fine-tunes the untrained model on the demonstrations.
func (q *pipeline) coldStart(ctx context.Context, t *trainer, initial, demos string) (string, error) {
	path, reused, err := orchestrator.Stage(q.dir, "policy", []any{initial, demos, q.cfg.RFT.SFT}, func(into string) error {
		if err := os.Remove(into); err != nil {
			return milepost.Wrap("cold start", milepost.KindUnavailable, err)
		}
		return fineTune(ctx, q.cfg, t, initial, demos, into, q.p)
	})
	if reused {
		q.p.line("cold start: reused from %s", path)
	}
	return path, err
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

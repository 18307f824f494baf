package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/report"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/shadow"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

func newTrainCommand() *cobra.Command {
	var flags configFlags
	var resume string
	c := &cobra.Command{
		Use:   "train -c FILE | --resume RUN_DIR",
		Short: "Train a policy by group-relative policy optimisation with milestone credit",
		Long: "Trains the model of the configuration on its tasks: rollouts against vLLM, shadow probing, credit, update, push.\n" +
			"A run that was interrupted, or whose process died, goes on with --resume: no finished episode is lost, none is trained twice.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := loadRun(flags, resume)
			if err != nil {
				return err
			}
			p := newProgress(c.OutOrStdout())
			if err := train(c.Context(), cfg, p, &machinery{}, resume != ""); err != nil {
				return err
			}
			return finishReport(cfg, c.OutOrStdout())
		},
	}
	flags.register(c, "")
	c.Flags().StringVar(&resume, "resume", "", "go on with the run in this folder, by the configuration saved there")
	return c
}

// loadRun reads the configuration of a new run or that of the run to resume.
func loadRun(flags configFlags, resume string) (configs.Run, error) {
	if resume != "" {
		if flags.file != "" || len(flags.set) > 0 {
			return configs.Run{}, &usageError{errors.New("--resume takes the saved configuration; leave -c and --set out")}
		}
		flags.file = filepath.Join(resume, "config.yaml")
	}
	cfg, err := flags.load()
	if err != nil {
		return cfg, err
	}
	if resume != "" {
		cfg.Run.Dir = resume
	}
	cfg.Run.Dir, err = filepath.Abs(cfg.Run.Dir)
	return cfg, milepost.Wrap("train", milepost.KindInvalid, err)
}

// machinery is what a run works with. Parts that are set were started by the caller and stay the caller's; the rest is
// started when needed and stopped at the end.
type machinery struct {
	world   *world
	trainer *trainer
	serving *serving
}

// train runs a training run from its beginning or from where its journal ends.
func train(ctx context.Context, cfg configs.Run, p *progress, m *machinery, resume bool) (err error) {
	tasks, split, err := loadSplits(cfg.Tasks)
	if err != nil {
		return err
	}
	folder, epoch, err := openRun(cfg, resume)
	if err != nil {
		return err
	}
	own := *m
	if own.world == nil {
		if own.world, err = openWorld(cfg, cfg.Run.Dir); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.world.close()) }()
	}
	warn := func(e error) { p.line("warning: %v", e) }
	probes, err := openProbing(ctx, cfg, own.world, cfg.Run.Dir, runID(cfg), epoch, tasks, warn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, probes.close()) }()
	logs := folder.Path("logs")
	if own.serving == nil {
		p.line("starting vLLM (one to two minutes on two cores)")
		if own.serving, err = startServing(ctx, cfg, absolute(cfg.Model), logs, func(s string) { p.line("%s", s) }); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.serving.close()) }()
	}
	if own.trainer == nil {
		if own.trainer, err = startTrainer(ctx, cfg, logs); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.trainer.close()) }()
	}
	if err := readyToPush(ctx, cfg, own); err != nil {
		return err
	}
	engine, err := credit.New(cfg.Credit)
	if err != nil {
		return err
	}
	rolls, err := newRollouts(cfg, own.world, own.serving.model, probes)
	if err != nil {
		return err
	}
	runner, err := orchestrator.NewRunner(cfg.Schedule, folder, uint64(cfg.Run.Seed), split, tasks, engine, orchestrator.Deps{
		Rollouts: rolls, Probes: probes, Learner: own.trainer, Weights: own.serving, Now: time.Now, Report: p.report,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	guarded, release := own.serving.guard(ctx)
	defer release()
	if err := runner.Run(guarded); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%w; go on with: milepost train --resume %s", err, cfg.Run.Dir)
		}
		return err
	}
	p.line("stopped by %s", runner.StopReason())
	return nil
}

// readyToPush waits for the server and gives it the trainer as the canary's judge.
func readyToPush(ctx context.Context, cfg configs.Run, m machinery) error {
	if err := m.serving.waitReady(ctx); err != nil {
		return err
	}
	vocab, err := weights.Vocab(absolute(cfg.Model))
	if err != nil {
		return err
	}
	return m.serving.usePusher(m.trainer.Client, vocab)
}

// runID names the run among all runs on a NATS cluster.
func runID(cfg configs.Run) string {
	return fmt.Sprintf("%s-%d", filepath.Base(cfg.Run.Dir), cfg.Run.Seed)
}

// openRun opens the run folder, keeps the resolved configuration in it, and counts epochs.
func openRun(cfg configs.Run, resume bool) (*orchestrator.Folder, uint64, error) {
	const op = "open run"
	if cfg.Model == "" {
		return nil, 0, milepost.E(op, milepost.KindInvalid, "model is empty; it must name the directory of the model to start from")
	}
	if info, err := os.Stat(cfg.Model); err != nil || !info.IsDir() {
		return nil, 0, milepost.E(op, milepost.KindNotFound, "model directory %s does not exist", cfg.Model)
	}
	dir := cfg.Run.Dir
	started, err := orchestrator.Epochs(dir)
	if err != nil {
		return nil, 0, err
	}
	if started > 0 && !resume {
		return nil, 0, milepost.E(op, milepost.KindConflict, "%s holds a run already; go on with --resume %s, or give another run.dir", dir, dir)
	}
	if started == 0 && resume {
		return nil, 0, milepost.E(op, milepost.KindNotFound, "%s holds no run to resume", dir)
	}
	folder, err := orchestrator.OpenFolder(dir, orchestrator.Header{Name: cfg.Run.Name, Seed: uint64(cfg.Run.Seed), Model: absolute(cfg.Model)})
	if err != nil {
		return nil, 0, err
	}
	text, err := cfg.Marshal()
	if err != nil {
		return nil, 0, err
	}
	return folder, started + 1, folder.SaveConfig(text)
}

// loadSplits loads the task sets; ids must differ across them.
func loadSplits(sets configs.TaskSets) ([]*milepost.Task, orchestrator.Tasks, error) {
	var all []*milepost.Task
	var split orchestrator.Tasks
	for _, s := range []struct {
		dir string
		ids *[]string
	}{{sets.Train, &split.Train}, {sets.Validation, &split.Validation}, {sets.Heldout, &split.Heldout}} {
		if s.dir == "" {
			continue
		}
		tasks, err := benchmarks.Load(s.dir)
		if err != nil {
			return nil, split, err
		}
		for _, t := range tasks {
			*s.ids = append(*s.ids, t.ID)
		}
		all = append(all, tasks...)
	}
	return all, split, nil
}

// rollouts implements orchestrator.Rollouts: training episodes probe their steps, the others only their final tree.
type rollouts struct{ train, eval *rollout.Runner }

func newRollouts(cfg configs.Run, w *world, model rollout.Model, probes *probing) (rollouts, error) {
	deps := rollout.Deps{Env: w.env, Bases: w.bases, Blobs: w.blobs, Model: model, Prober: probes.Prober}
	eval := cfg.Rollout
	eval.ProbeSteps = false
	var out rollouts
	var err error
	if out.eval, err = rollout.New(eval, deps); err != nil {
		return out, err
	}
	if cfg.Probes.Prober.Mode == shadow.ModeSynchronous {
		deps.Prober = shadow.NewSync(probes.Prober, cfg.Schedule.Barrier)
	}
	out.train, err = rollout.New(cfg.Rollout, deps)
	return out, err
}

// Run implements orchestrator.Rollouts.
func (r rollouts) Run(ctx context.Context, task *milepost.Task, spec orchestrator.EpisodeSpec) (*milepost.Episode, error) {
	runner := r.eval
	if spec.Purpose == orchestrator.PurposeTrain {
		runner = r.train
	}
	return runner.Run(ctx, rollout.Request{Episode: spec.ID, Group: spec.Group, Task: task, Attempt: spec.Attempt, Retry: spec.Retry, Seed: spec.Seed})
}

// finishReport writes the report and prints the summary.
func finishReport(cfg configs.Run, out io.Writer) error {
	folder := &orchestrator.Folder{Dir: cfg.Run.Dir}
	if err := report.Write(folder, folder.Path("report.html")); err != nil {
		return err
	}
	text, err := report.Summary(folder)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, text)
	return milepost.Wrap("report", milepost.KindUnavailable, err)
}

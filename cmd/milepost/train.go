package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/report"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/remote"
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

// places are the fields that say where something is. A resumed run may find it elsewhere: a scheduler gives it other nodes.
var places = []string{
	"trainer.address", "server.urls", "probes.connect.url", "probes.connect.creds", "probes.connect.token_file", "probes.connect.tls_ca",
	"probes.connect.timeout", "metrics.listen", "weights.transfer.host",
}

// loadRun reads the configuration of a new run or that of the run to resume. Its folders become absolute, so that a run
// can be resumed from anywhere; where yarn asks for it the model becomes one with a longer context, in the run folder.
func loadRun(flags configFlags, resume string) (configs.Run, error) {
	if resume != "" {
		if flags.file != "" {
			return configs.Run{}, &usageError{errors.New("--resume takes the saved configuration; leave -c out")}
		}
		for _, o := range flags.set {
			if key, _, _ := strings.Cut(o, "="); !slices.Contains(places, key) {
				return configs.Run{}, &usageError{fmt.Errorf("--resume takes the saved configuration; --set may change where things are alone: %s", strings.Join(places, ", "))}
			}
		}
		flags.file = filepath.Join(resume, "config.yaml")
		if _, err := os.Stat(flags.file); err != nil {
			return configs.Run{}, milepost.E("resume", milepost.KindNotFound, "%s holds no run to resume: %w", resume, err)
		}
	}
	cfg, err := flags.load()
	if err != nil {
		return cfg, err
	}
	if resume != "" {
		cfg.Run.Dir = resume
	}
	for _, dir := range []*string{&cfg.Run.Dir, &cfg.Model, &cfg.Tasks.Train, &cfg.Tasks.Validation, &cfg.Tasks.Heldout} {
		if *dir == "" {
			continue
		}
		if *dir, err = filepath.Abs(*dir); err != nil {
			return cfg, milepost.Wrap("load configuration", milepost.KindInvalid, err)
		}
	}
	err = stretch(&cfg, cfg.Run.Dir)
	return cfg, err
}

// stretch lets the configuration name the model with its longer context, made in dir; nothing where it names none, or no yarn.
func stretch(cfg *configs.Run, dir string) (err error) {
	if cfg.Model != "" {
		cfg.Model, err = cfg.Yarn.Stretch(cfg.Model, filepath.Join(dir, "model-yarn"))
	}
	return err
}

// machinery is what a run works with. Parts that are set were started by the caller and stay the caller's; the rest is
// started when needed and stopped at the end.
type machinery struct {
	trainer *trainer
	serving *serving
	locked  bool   // the caller holds the run folder
	joins   func() // ends that servers on other machines join
}

// train runs a training run from its beginning or from where its journal ends.
func train(ctx context.Context, cfg configs.Run, p *progress, m *machinery, resume bool) (err error) {
	tasks, split, err := loadSplits(cfg.Tasks, p)
	if err == nil {
		err = checkImages(cfg, tasks)
	}
	if err != nil {
		return err
	}
	if err := checkModel(cfg); err != nil {
		return err
	}
	if !m.locked {
		release, err := orchestrator.Lock(cfg.Run.Dir)
		if err != nil {
			return err
		}
		defer release()
	}
	folder, epoch, err := openRun(cfg, resume)
	if err != nil {
		return err
	}
	header, err := folder.Header()
	if err != nil {
		return err
	}
	if done, err := folder.Finished(); err != nil {
		return err
	} else if done {
		p.line("the run in %s is done", cfg.Run.Dir)
		return nil
	}
	defer func() { err = goOn(ctx, err, cfg.Run.Dir) }()
	w, err := openWorld(cfg, cfg.Run.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	probes, err := openProbing(ctx, cfg, w, cfg.Run.Dir, runID(cfg, header), epoch, tasks, func(e error) { p.line("warning: %v", e) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, probes.close()) }()
	own := *m
	defer func() { err = errors.Join(err, own.stop(m)) }()
	if err := own.start(ctx, cfg, p, folder.Path("logs"), probes); err != nil {
		return err
	}
	deps := orchestrator.Deps{Probes: probes, Learner: own.trainer, Weights: own.serving, Now: time.Now, Report: p.report}
	stop, err := openRollouts(cfg, w, own.serving, probes, &deps)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	watch, err := openWatch(cfg, folder, probes, own.serving.pool, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, watch.close()) }()
	runner, err := newRunner(cfg, folder, split, tasks, watch.over(deps))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	guarded, release := own.guard(ctx)
	defer release()
	if err := runner.Run(guarded); err != nil {
		return because(ctx, guarded, err)
	}
	p.line("stopped by %s", runner.StopReason())
	return nil
}

func newRunner(cfg configs.Run, folder *orchestrator.Folder, split orchestrator.Tasks, tasks []*milepost.Task, deps orchestrator.Deps) (*orchestrator.Runner, error) {
	engine, err := credit.New(cfg.Credit)
	if err != nil {
		return nil, err
	}
	return orchestrator.NewRunner(cfg.Schedule, folder, uint64(cfg.Run.Seed), split, tasks, engine, deps)
}

// start starts what the caller has not: the server, and beside it the trainer, which becomes the canary's judge.
func (m *machinery) start(ctx context.Context, cfg configs.Run, p *progress, logs string, probes *probing) (err error) {
	if m.serving == nil {
		if m.serving, err = serve(ctx, cfg, cfg.Model, logs, p); err != nil {
			return err
		}
	}
	if m.joins, err = m.serving.accept(probes.nc, probes.run, probes.epoch, cfg.Model); err != nil {
		return err
	}
	guarded, release := m.serving.guard(ctx) // a server that cannot start is not found out behind the trainer
	defer release()
	if m.trainer == nil {
		if m.trainer, err = startTrainer(guarded, cfg, logs); err != nil {
			return because(ctx, guarded, err)
		}
	}
	return because(ctx, guarded, readyToPush(guarded, cfg, m))
}

// stop ends what the caller of train did not start.
func (m *machinery) stop(callers *machinery) error {
	var err error
	if m.joins != nil {
		m.joins()
	}
	if m.trainer != nil && callers.trainer == nil {
		err = m.trainer.close()
	}
	if m.serving != nil && callers.serving == nil {
		err = errors.Join(err, m.serving.close())
	}
	return err
}

// guard returns a context that ends, with the reason as its cause, when the run has lost its server or its trainer.
func (m *machinery) guard(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, serving := m.serving.guard(ctx)
	ctx, trainer := m.trainer.guard(ctx)
	return ctx, func() { trainer(); serving() }
}

// because returns, in place of an error, why guarded ended if it was not ctx that ended it.
func because(ctx, guarded context.Context, err error) error {
	if err != nil && ctx.Err() == nil && guarded.Err() != nil {
		return context.Cause(guarded)
	}
	return err
}

// goOn says behind the error of a run how to go on with it.
func goOn(ctx context.Context, err error, dir string) error {
	if err == nil {
		return nil
	}
	started, broken := orchestrator.Epochs(dir)
	switch {
	case broken != nil:
		return errors.Join(err, broken)
	case started > 0 || ctx.Err() != nil:
		return fmt.Errorf("%w\ngo on with: milepost train --resume %s", err, dir)
	}
	return err
}

// readyToPush waits for the server and gives it the trainer as the canary's judge.
func readyToPush(ctx context.Context, cfg configs.Run, m *machinery) error {
	if err := m.serving.waitReady(ctx); err != nil {
		return err
	}
	vocab, err := weights.Vocab(absolute(cfg.Model))
	if err != nil {
		return err
	}
	return m.serving.usePusher(ctx, m.trainer.Client, vocab)
}

// runID names the run among all runs on a NATS cluster: folders of the same name are common.
func runID(cfg configs.Run, h orchestrator.Header) string {
	return fmt.Sprintf("%s-%d%s", filepath.Base(cfg.Run.Dir), cfg.Run.Seed, h.ID)
}

// checkModel says what the directory of the model lacks before anything is started for it.
func checkModel(cfg configs.Run) error {
	if cfg.Model == "" {
		return milepost.E("check model", milepost.KindInvalid, "model is empty; it must name the directory of the model to start from")
	}
	server := cfg.Server
	server.Model = cfg.Model
	if err := server.CheckModel(); err != nil {
		return err
	}
	if found, _ := filepath.Glob(filepath.Join(cfg.Model, "tokenizer*")); len(found) < 2 {
		return milepost.E("check model", milepost.KindNotFound, "model directory %s has a tokenizer_config.json but no tokenizer.json or tokenizer.model", cfg.Model)
	}
	return nil
}

// openRun opens the run folder, keeps the resolved configuration in it, and counts epochs.
func openRun(cfg configs.Run, resume bool) (*orchestrator.Folder, uint64, error) {
	const op = "open run"
	dir := cfg.Run.Dir
	started, err := orchestrator.Epochs(dir)
	if err != nil {
		return nil, 0, err
	}
	if started > 0 && !resume {
		return nil, 0, milepost.E(op, milepost.KindConflict, "%s holds a run already; go on with --resume %s, or give another run.dir", dir, dir)
	}
	folder, err := orchestrator.OpenFolder(dir, orchestrator.Header{Name: cfg.Run.Name, Seed: uint64(cfg.Run.Seed), Model: cfg.Model})
	if err != nil {
		return nil, 0, err
	}
	text, err := cfg.Marshal()
	if err != nil {
		return nil, 0, err
	}
	return folder, started + 1, folder.SaveConfig(text)
}

// loadSplits loads the task sets. Ids must differ across them, but validation may be the held-out set itself.
func loadSplits(sets configs.TaskSets, p *progress) ([]*milepost.Task, orchestrator.Tasks, error) {
	var all []*milepost.Task
	var split orchestrator.Tasks
	for _, s := range []struct {
		dir string
		ids *[]string
	}{{sets.Train, &split.Train}, {sets.Validation, &split.Validation}, {sets.Heldout, &split.Heldout}} {
		if s.dir == "" {
			continue
		}
		tasks, err := loadCertified(s.dir, sets.Certificates, p)
		if err != nil {
			return nil, split, err
		}
		for _, t := range tasks {
			*s.ids = append(*s.ids, t.ID)
			if s.ids == &split.Train {
				split.Weights = append(split.Weights, weightOf(t))
			}
		}
		if s.ids == &split.Heldout && s.dir == sets.Validation {
			continue
		}
		all = append(all, tasks...)
	}
	return all, split, nil
}

// checkImages refuses tasks whose repository lies in an image where this process runs sandboxes that cannot take it from there.
func checkImages(cfg configs.Run, tasks []*milepost.Task) error {
	if cfg.Sandbox.Driver == configs.SandboxDocker || cfg.Workers.Mode == remote.ModeRemote {
		return nil
	}
	for _, t := range tasks {
		if t.Workdir != "" {
			return milepost.E("load tasks", milepost.KindInvalid, "sandbox.driver is %s, and the repository of task %s lies in an image (workdir %s); allowed with such tasks: %s",
				cfg.Sandbox.Driver, t.ID, t.Workdir, configs.SandboxDocker)
		}
	}
	return nil
}

// weightOf is a task's share in a mixture, relative to the others.
func weightOf(t *milepost.Task) float64 {
	if t.Weight == 0 {
		return 1
	}
	return t.Weight
}

// loadCertified loads a set as its certificates allow, and says what is left out.
func loadCertified(set string, trust benchmarks.Trust, p *progress) ([]*milepost.Task, error) {
	taken, err := benchmarks.LoadCertified(set, trust, nil)
	if err == nil {
		err = benchmarks.RequirePrepared(set, taken.Tasks)
	}
	if err != nil {
		return nil, err
	}
	for _, l := range taken.Lines(set) {
		p.line("%s", l)
	}
	return taken.Tasks, nil
}

// rollouts implements orchestrator.Rollouts: training episodes probe their steps, the others only their final tree.
type rollouts struct{ train, eval *rollout.Runner }

func newRollouts(cfg configs.Run, w *world, model rollout.Model, probes *probing) (rollouts, error) {
	deps := rollout.Deps{Env: w.env, Bases: w.bases, Blobs: w.blobs, Model: model, Prober: probes.Prober}
	eval := cfg.Rollout
	eval.ProbeSteps, eval.ToolWait = false, 0
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
	return runner.Run(ctx, requestOf(task, spec))
}

func requestOf(task *milepost.Task, spec orchestrator.EpisodeSpec) rollout.Request {
	return rollout.Request{Episode: spec.ID, Group: spec.Group, Task: task, Attempt: spec.Attempt, Retry: spec.Retry, Seed: spec.Seed}
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

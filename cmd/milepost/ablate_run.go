package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
)

// workshop is what the runs of a study share one after the other: a trainer, and a server for as long as the runs fit it.
type workshop struct {
	trainer *trainer
	serving *serving
	fits    string // what the server was started for
	logs    string
	p       *progress
}

// carryOut runs what is missing: cold starts, their measurement, searches, then the arms seed by seed, so that an
// interrupted study has whole seeds.
func (s *study) carryOut(ctx context.Context) (err error) {
	if err := examine(s.arms[0].pipeline.cfg, s.p); err != nil {
		return err
	}
	release, err := orchestrator.Lock(s.dir)
	if err != nil {
		return err
	}
	defer release()
	w := &workshop{logs: filepath.Join(s.dir, "logs"), p: s.p}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := s.coldStart(ctx, w); err != nil {
		return err
	}
	start, err := s.start()
	if err != nil {
		return err
	}
	if err := w.train(ctx, start); err != nil {
		return err
	}
	if err := s.searches(ctx, w); err != nil {
		return err
	}
	done, total := 0, len(s.spec.Seeds)*len(s.arms)
	for _, seed := range s.spec.Seeds {
		for _, arm := range s.arms {
			done++
			s.p.line("run %d of %d", done, total)
			if err := s.runArm(ctx, w, arm, seed); err != nil {
				return err
			}
		}
	}
	return nil
}

// coldStart makes the tasks, demonstrations and weights that every run starts from.
func (s *study) coldStart(ctx context.Context, w *workshop) error {
	q := s.arms[0].pipeline
	if _, err := os.Stat(q.policy); err == nil {
		return nil
	}
	if q.dir != s.dir {
		release, err := orchestrator.Lock(q.dir)
		if err != nil {
			return err
		}
		defer release()
	}
	if err := q.prepare(ctx); err != nil {
		return err
	}
	if err := w.startTrainer(ctx, q.cfg); err != nil {
		return err
	}
	if err := q.makeModel(ctx, w.trainer); err != nil {
		return err
	}
	if err := w.serve(ctx, q.run, q.initial); err != nil {
		return err
	}
	guarded, release := w.serving.guard(ctx)
	defer release()
	return because(ctx, guarded, q.coldStart(guarded, w.trainer))
}

func (s *study) searches(ctx context.Context, w *workshop) error {
	for _, arm := range s.arms {
		trials, err := s.trials(arm)
		if err != nil {
			return err
		}
		for _, t := range trials {
			if err := w.train(ctx, t); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *study) runArm(ctx context.Context, w *workshop, arm *studyArm, seed int64) error {
	rate, _, err := s.choose(arm)
	if err != nil {
		return err
	}
	r, err := s.training(arm, rate, seed)
	if err != nil {
		return err
	}
	if err := w.train(ctx, r); err != nil {
		return err
	}
	if err := s.write(); err != nil { // the runs are what takes hours; the result is written again after each and at the end
		s.p.line("warning: the result so far could not be written: %v", err)
	}
	return nil
}

// train carries one run out or goes on with it; a finished one is left as it is.
func (w *workshop) train(ctx context.Context, r plannedRun) error {
	dir := r.cfg.Run.Dir
	if done, err := (&orchestrator.Folder{Dir: dir}).Finished(); err != nil || done {
		return err
	}
	began := time.Now()
	w.p.line("%s", r.label)
	if err := w.startTrainer(ctx, r.cfg); err != nil {
		return err
	}
	if err := w.serve(ctx, r.cfg, r.arm.pipeline.initial); err != nil {
		return err
	}
	if err := shareLogs(dir, w.logs); err != nil {
		return err
	}
	release, err := orchestrator.Lock(dir)
	if err != nil {
		return err
	}
	defer release()
	started, err := orchestrator.Epochs(dir)
	if err != nil {
		return err
	}
	t := *w.trainer
	t.cfg = r.cfg
	if err := train(ctx, r.cfg, w.p, &machinery{trainer: &t, serving: w.serving, locked: true}, started > 0); err != nil {
		return err
	}
	w.p.line("%s: done in %s", r.label, clock(time.Since(began)))
	return os.RemoveAll(filepath.Join(dir, "nats")) // results are in the episodes; the streams would only fill the disk
}

func (w *workshop) startTrainer(ctx context.Context, cfg configs.Run) (err error) {
	if w.trainer == nil {
		w.trainer, err = startTrainer(ctx, cfg, w.logs)
	}
	return err
}

// serve makes sure that a server fits the run: one that was started for a model of the same shape and with the same
// settings. The weights are the run's to push.
func (w *workshop) serve(ctx context.Context, cfg configs.Run, model string) error {
	fits, err := json.Marshal([]any{model, cfg.Server, cfg.Policy, cfg.Weights})
	if err != nil {
		return milepost.Wrap("ablate", milepost.KindInternal, err)
	}
	if w.serving != nil {
		if w.fits == string(fits) {
			return nil
		}
		err := w.serving.close()
		w.serving = nil
		if err != nil {
			return err
		}
	}
	w.serving, err = serve(ctx, cfg, model, w.logs, w.p)
	w.fits = string(fits)
	return err
}

func (w *workshop) close() error {
	var err error
	if w.serving != nil {
		err = w.serving.close()
	}
	if w.trainer != nil {
		err = errors.Join(err, w.trainer.close())
	}
	return err
}

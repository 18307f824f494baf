package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/orchestrator"
)

// study is an ablation. Trials, runs and the result lie below dir; what the pipeline of the cold start makes may lie
// elsewhere.
type study struct {
	spec    configs.Ablation
	command string
	dir     string
	p       *progress
	arms    []*studyArm
}

// studyArm is one arm with the pipeline that makes its cold start: the same for all, since its path is a hash of all that
// it depends on.
type studyArm struct {
	configs.Arm
	pipeline *pipeline
}

// plannedRun is one training run: an arm, a learning rate, a seed.
type plannedRun struct {
	arm   *studyArm
	label string // for people
	cfg   configs.Run
}

func newStudy(spec configs.Ablation, command, dir, artifacts string, p *progress) (*study, error) {
	s := &study{spec: spec, command: command, dir: dir, p: p}
	for _, arm := range spec.Arms {
		cfg, err := spec.Run(arm)
		if err != nil {
			return nil, err
		}
		cfg.Run.Dir = artifacts
		q := &pipeline{cfg: cfg, dir: artifacts, p: p}
		if err := q.plan(); err != nil {
			return nil, err
		}
		if q.run.Tasks.Heldout == "" {
			return nil, milepost.E("ablate", milepost.KindInvalid, "arm %s: micro.heldout is 0; a study needs held-out tasks", arm.Name)
		}
		q.run.Tasks.Validation = q.run.Tasks.Heldout // points of the held-out curve
		if first := s.spec.Arms[0]; len(s.arms) > 0 && q.policy != s.arms[0].pipeline.policy {
			return nil, milepost.E("ablate", milepost.KindInvalid, "arm %s: its settings change the cold start (tasks, demonstrations, fine-tuning or the loop they are made in), which it must share with arm %s: %v", arm.Name, first.Name, arm.Set)
		}
		s.arms = append(s.arms, &studyArm{Arm: arm, pipeline: q})
	}
	return s, nil
}

// run lays out one run; its folder's name ends in a hash of its whole configuration.
func (s *study) run(kind string, arm *studyArm, rate float64, seed int64, change func(*configs.Run)) (plannedRun, error) {
	cfg := arm.pipeline.run
	cfg.Run.Seed, cfg.Run.Name, cfg.Run.Dir = seed, fmt.Sprintf("%s: %s, seed %d", s.spec.Name, arm.Name, seed), ""
	if rate > 0 {
		cfg.Update.Optimizer.LR = rate
	}
	change(&cfg)
	name := fmt.Sprintf("%s-lr%s-s%d", arm.Name, strconv.FormatFloat(cfg.Update.Optimizer.LR, 'g', -1, 64), seed)
	path, err := orchestrator.StagePath(filepath.Join(s.dir, kind), name, arm.pipeline.relative(cfg))
	cfg.Run.Dir = path
	return plannedRun{arm: arm, label: fmt.Sprintf("%s %s, learning rate %g, seed %d", kind, arm.Name, cfg.Update.Optimizer.LR, seed), cfg: cfg}, err
}

// start is the run that only measures the cold start on the held-out tasks.
func (s *study) start() (plannedRun, error) {
	arm := s.arms[0]
	cfg := arm.pipeline.run
	cfg.Run.Name, cfg.Run.Seed = s.spec.Name+": cold start", s.spec.Heldout.Seed
	cfg.Schedule.MaxUpdates, cfg.Schedule.EvalEvery, cfg.Schedule.EvalBefore = 0, 0, true
	cfg.Tasks.Validation, cfg.Credit = "", credit.Default()
	path, err := orchestrator.StagePath(filepath.Join(s.dir, "starts"), "start", []any{
		filepath.Base(cfg.Model), cfg.Schedule.EvalSamples, cfg.Schedule.EvalSeed, cfg.Rollout.MaxTurns, cfg.Rollout.MaxTokens, cfg.Rollout.MaxTurnTokens})
	cfg.Run.Dir = path
	return plannedRun{arm: arm, label: "cold start", cfg: cfg}, err
}

// trials are the runs of an arm's learning-rate search, by rate, then seed; none where there is nothing to search.
func (s *study) trials(arm *studyArm) ([]plannedRun, error) {
	if len(s.spec.Search.Rates) < 2 {
		return nil, nil
	}
	var out []plannedRun
	for _, rate := range s.spec.Search.Rates {
		for _, seed := range s.spec.Search.Seeds {
			r, err := s.run("search", arm, rate, seed, func(c *configs.Run) {
				c.Schedule.MaxUpdates, c.Schedule.MaxTokens, c.Schedule.EvalEvery = s.spec.Search.Updates, 0, 0
				c.Tasks.Heldout, c.Tasks.Validation = "", ""
			})
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// training is an arm's run with a seed, at the rate that its search chose.
func (s *study) training(arm *studyArm, rate float64, seed int64) (plannedRun, error) {
	return s.run("runs", arm, rate, seed, func(*configs.Run) {})
}

// describe prints what the study consists of.
func (s *study) describe(out io.Writer) error {
	trials := 0
	for _, arm := range s.arms {
		t, err := s.trials(arm)
		if err != nil {
			return err
		}
		trials += len(t)
		fmt.Fprintf(out, "%-20s %s %v\n", arm.Name, arm.About, arm.Set)
	}
	sch := s.arms[0].pipeline.run.Schedule
	_, err := fmt.Fprintf(out, "%d arms by %d seeds = %d runs of %d updates of %d episodes; %d search runs of %d updates\n",
		len(s.arms), len(s.spec.Seeds), len(s.arms)*len(s.spec.Seeds), sch.MaxUpdates, sch.GroupsPerUpdate*sch.GroupSize, trials, s.spec.Search.Updates)
	return milepost.Wrap("ablate", milepost.KindUnavailable, err)
}

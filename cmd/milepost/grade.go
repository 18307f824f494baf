package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
	"github.com/milepost-rl/milepost/configs"
)

// gradeOptions are the flags of grade.
type gradeOptions struct {
	config                  configFlags
	bench                   benchFlags
	predictions, tasks, out string
	timeout                 time.Duration
	attempts                int
	json                    bool
}

func newGradeCommand() *cobra.Command {
	o := gradeOptions{}
	c := &cobra.Command{
		Use:   "grade --predictions FILE --tasks SET --out DIR",
		Short: "Grade patches without an agent, as their data sets do",
		Long: "FILE holds predictions {instance_id, model_name_or_path, model_patch} as JSONL or JSON. Each patch is applied in a fresh\n" +
			"sandbox, the task's evaluation is run there, and its log is judged by the rule of the task's data set. DIR gets\n" +
			"MODEL/TASK/ with verdict, report, log, patch and script, and MODEL" + grade.ReportEnd + ", the report of the run in SWE-bench's form.\n" +
			"Verdicts found in DIR are kept if task and patch are the same. Exit code 1 where infrastructure kept a patch from being\n" +
			"graded: the same command then grades what is left.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c) },
	}
	o.config.register(c, "")
	o.bench.register(c)
	c.Flags().StringVar(&o.predictions, "predictions", "", "file of predictions (required)")
	c.Flags().StringVar(&o.tasks, "tasks", "", "task set: a folder with "+benchmarks.TasksFile+", or such a file (required)")
	c.Flags().StringVar(&o.out, "out", "", "folder of verdicts and reports (required)")
	c.Flags().DurationVar(&o.timeout, "timeout", 1800*time.Second, "time limit of one evaluation, for tasks that state none")
	c.Flags().IntVar(&o.attempts, "attempts", 3, "attempts at one grading where infrastructure fails")
	c.Flags().BoolVar(&o.json, "json", false, "print the reports as JSON, by model")
	return c
}

// check reports the first flag that is wrong.
func (o *gradeOptions) check() error {
	for name, value := range map[string]string{"--predictions": o.predictions, "--tasks": o.tasks, "--out": o.out} {
		if value == "" {
			return &usageError{fmt.Errorf("%s is missing", name)}
		}
	}
	switch {
	case o.timeout <= 0:
		return &usageError{fmt.Errorf("--timeout is %s; it must be positive", o.timeout)}
	case o.attempts < 1 || o.attempts > 100:
		return &usageError{fmt.Errorf("--attempts is %d; allowed are 1 to 100", o.attempts)}
	case o.bench.workers < 1 || o.bench.workers > 64:
		return &usageError{fmt.Errorf("--workers is %d; allowed are 1 to 64", o.bench.workers)}
	case o.config.file == "" && len(o.config.set) > 0:
		return &usageError{errors.New("--set goes with -c")}
	}
	return nil
}

func (o *gradeOptions) run(c *cobra.Command) error {
	if err := o.check(); err != nil {
		return err
	}
	cfg := configs.Default()
	if o.config.file != "" {
		var err error
		if cfg, err = o.config.load(); err != nil {
			return err
		}
	}
	if o.bench.python != "" {
		cfg.Sandbox.Python = o.bench.python
	}
	cfg.Sandbox.Unconfined = cfg.Sandbox.Unconfined || o.bench.unconfined
	preds, err := readPredictions(o.predictions)
	if err != nil {
		return err
	}
	tasks, err := benchmarks.Load(o.tasks)
	if err != nil {
		return err
	}
	p, began := newProgress(c.ErrOrStderr()), time.Now()
	if err := nameStrangers(p, o.tasks, tasks, preds); err != nil {
		return err
	}
	reports, err := o.grade(c.Context(), cfg, tasks, preds, func(v *grade.Verdict, kept bool, done, total int) {
		if !kept && v.Outcome != grade.Resolved {
			p.line("%.500s", v)
		}
		p.count("graded", done, total, time.Since(began))
	})
	if err != nil {
		return err
	}
	return o.print(c, reports)
}

// nameStrangers says which predictions have no task in the set; where none has one, the two do not belong together.
func nameStrangers(p *progress, set string, tasks []*milepost.Task, preds []predictions.Prediction) error {
	known := make(map[string]bool, len(tasks))
	for _, t := range tasks {
		known[grade.InstanceID(t)] = true
	}
	var strangers []string
	for _, pred := range preds {
		if !known[pred.InstanceID] {
			strangers = append(strangers, pred.InstanceID)
		}
	}
	if len(strangers) == 0 {
		return nil
	}
	words := fmt.Sprintf("%d of %d predictions are of no task of %s, the first is %q", len(strangers), len(preds), set, strangers[0])
	if len(strangers) < len(preds) {
		p.line("warning: %s", words)
		return nil
	}
	if len(tasks) > 0 {
		words += fmt.Sprintf("; its first task is %q", grade.InstanceID(tasks[0]))
	}
	return milepost.E("grade", milepost.KindNotFound, "%s", words)
}

func readPredictions(path string) ([]predictions.Prediction, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.Wrap("grade", milepost.KindNotFound, err)
	}
	if err != nil {
		return nil, milepost.Wrap("grade", milepost.KindUnavailable, err)
	}
	defer f.Close()
	return predictions.Read(f, path)
}

// grade opens what gradings run in, in a folder of its own that is removed afterwards.
func (o *gradeOptions) grade(ctx context.Context, cfg configs.Run, tasks []*milepost.Task, preds []predictions.Prediction,
	progress func(*grade.Verdict, bool, int, int)) (_ map[string]*grade.RunReport, err error) {
	dir, err := os.MkdirTemp("", "milepost-grade-")
	if err != nil {
		return nil, milepost.Wrap("grade", milepost.KindUnavailable, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	w, err := openWorld(cfg, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	out, err := filepath.Abs(o.out)
	if err != nil {
		return nil, milepost.Wrap("grade", milepost.KindInvalid, err)
	}
	g := &grade.Grader{Executor: &grade.Executor{Env: w.env, Bases: w.bases, Limits: cfg.Tests.Limits, Timeout: o.timeout},
		Out: out, Workers: o.bench.workers, Attempts: o.attempts, Progress: progress}
	return g.Grade(ctx, tasks, preds)
}

// print shows the reports; what infrastructure kept from being graded is a failure of the command.
func (o *gradeOptions) print(c *cobra.Command, reports map[string]*grade.RunReport) error {
	lost := 0
	for _, r := range reports {
		lost += len(r.Milepost.Infrastructure)
	}
	if o.json {
		if err := printJSON(c.OutOrStdout(), reports); err != nil {
			return err
		}
	} else {
		for _, model := range slices.Sorted(maps.Keys(reports)) {
			r := reports[model]
			fmt.Fprintf(c.OutOrStdout(), "%s: %d resolved of %d graded (%d tasks, %d predictions), mean reward %.3f\n", model, r.Resolved, r.Milepost.Graded, r.Total, r.Submitted, r.Milepost.MeanReward)
			for _, outcome := range grade.Outcomes() {
				if ids := r.Milepost.Outcomes[outcome]; len(ids) > 0 {
					fmt.Fprintf(c.OutOrStdout(), "  %-16s %d\n", outcome, len(ids))
				}
			}
		}
	}
	if lost > 0 {
		return milepost.E("grade", milepost.KindUnavailable, "%d predictions were not graded, since infrastructure failed; the same command grades them again", lost)
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/certify"
	"github.com/milepost-rl/milepost/benchmarks/grade"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/env/testrun"
)

// validateOptions are the flags of tasks validate.
type validateOptions struct {
	config       configFlags
	bench        benchFlags
	runs         int
	strict, json bool
}

func newTasksValidateCommand() *cobra.Command {
	var o validateOptions
	c := &cobra.Command{
		Use:   "validate SET",
		Short: "Run every task both ways, look for leaks, try the grader, and write certificates beside the set",
		Long: "SET is a folder with tasks.jsonl, or such a file. The reference patch and the untouched repository are run --runs\n" +
			"times each, every time in a fresh sandbox: fail_to_pass tests fail before and pass after, pass_to_pass tests pass in\n" +
			"both. Tests whose runs differ are flaky: they are named with a posterior, and count no more. The agent's view is\n" +
			"searched for the fix and for hidden tests, and sabotage must not resolve the task. What is found is written to\n" +
			benchmarks.CertificatesFile + " beside the tasks; a task whose certificate is still valid is not run again, so a validation that\n" +
			"was interrupted goes on. Exit code 1 if a task is not fit for use or could not be checked.",
		Args: oneSet,
		RunE: func(c *cobra.Command, args []string) error {
			if o.runs < 1 {
				return &usageError{fmt.Errorf("--runs is %d; it must be at least 1", o.runs)}
			}
			return o.validate(c, args[0])
		},
	}
	o.config.register(c, "")
	o.bench.register(c)
	c.Flags().IntVarP(&o.runs, "runs", "n", 2, "how often each task is run both ways")
	c.Flags().IntVar(&o.bench.workers, "jobs", 2, "tasks at the same time (the same as --workers)")
	c.Flags().BoolVar(&o.strict, "strict", false, "take warnings for problems: flaky tests, statements that name tests, a grader that code under test can sway from inside")
	c.Flags().BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

// configuration is the one named, or the defaults, with the flags over it. Test runs are fresh ones.
func (o *validateOptions) configuration() (configs.Run, error) {
	cfg := configs.Default()
	switch {
	case o.config.file != "":
		var err error
		if cfg, err = o.config.load(); err != nil {
			return cfg, err
		}
	case len(o.config.set) > 0:
		return cfg, &usageError{errors.New("--set goes with -c")}
	}
	if o.bench.workers < 1 || o.bench.workers > 64 {
		return cfg, &usageError{fmt.Errorf("--jobs is %d; allowed are 1 to 64", o.bench.workers)}
	}
	if o.bench.python != "" {
		cfg.Sandbox.Python = o.bench.python
	}
	cfg.Sandbox.Unconfined = cfg.Sandbox.Unconfined || o.bench.unconfined
	cfg.Tests.Slots = o.bench.workers
	return cfg, nil
}

func (o *validateOptions) validate(c *cobra.Command, set string) (err error) {
	cfg, err := o.configuration()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "milepost-validate-")
	if err != nil {
		return milepost.Wrap("tasks validate", milepost.KindUnavailable, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fresh := cfg
	fresh.Tests.Resident = false
	w, err := openWorld(fresh, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	judge := testrun.New(cfg.Tests, w.env, w.bases, w.blobs) // as in training, resident processes included
	defer func() { err = errors.Join(err, judge.Close()) }()
	r, err := o.certifier(c, cfg, w, judge, dir).Set(c.Context(), set, o.runs)
	if err != nil {
		return err
	}
	return o.print(c.OutOrStdout(), r)
}

func (o *validateOptions) certifier(c *cobra.Command, cfg configs.Run, w *world, judge *testrun.Runner, dir string) *certify.Certifier {
	p, began := newProgress(c.ErrOrStderr()), time.Now()
	return &certify.Certifier{
		Checker: &benchmarks.Checker{Bases: w.bases, Blobs: w.blobs, Runner: w.tests}, Judge: judge, Env: w.env, Dir: dir, Workers: o.bench.workers,
		Executor: &grade.Executor{Env: w.env, Bases: w.bases, Limits: cfg.Tests.Limits, Timeout: cfg.Tests.Timeout}, Limits: cfg.Rollout.Sandbox,
		Digest: w.env.Digest,
		Progress: func(t *milepost.Task, cert *benchmarks.Certificate, err error, kept bool, done, total int) {
			if err != nil {
				p.line("%s: could not be checked: %.500v", t.ID, err)
			} else if !kept && !cert.OK(o.strict) {
				p.line("%s: %s", t.ID, firstFinding(cert, o.strict))
			}
			p.count("validated", done, total, time.Since(began))
		},
	}
}

// firstFinding is the first problem or, where strict, warning.
func firstFinding(cert *benchmarks.Certificate, strict bool) string {
	if strict && len(cert.Problems) == 0 && len(cert.Warnings) > 0 {
		return cert.Warnings[0].What
	}
	return cert.Reason()
}

// print tells what a validation found. It returns an error where a task is not fit for use or could not be checked.
func (o *validateOptions) print(out io.Writer, r *certify.Result) error {
	problems := []benchmarks.Problem{}
	ids := slices.Sorted(maps.Keys(r.Certificates))
	for _, id := range ids {
		if cert := r.Certificates[id]; !cert.OK(o.strict) {
			problems = append(problems, benchmarks.Problem{Task: id, Reason: firstFinding(cert, o.strict)})
		}
	}
	total := len(ids) + len(r.Failed)
	if o.json {
		err := printJSON(out, map[string]any{"tasks": total, "runs": o.runs, "kept": r.Kept, "problems": problems,
			"failed": append([]benchmarks.Problem{}, r.Failed...), "certificates": r.Certificates})
		if err != nil {
			return err
		}
	} else {
		for _, p := range append(slices.Clone(problems), r.Failed...) {
			fmt.Fprintf(out, "%s: %s\n", p.Task, p.Reason)
		}
		for _, id := range ids {
			for _, f := range r.Certificates[id].Flaky {
				fmt.Fprintf(out, "%s: flaky, %s: %s passed in %d of %d runs; pass rate %.2f, 95 %% credible from %.2f to %.2f\n",
					id, f.Side, f.Test, f.Passed, f.Runs, f.Mean, f.Low, f.High)
			}
		}
		fmt.Fprintf(out, "%d of %d tasks are fit for use, in %d runs both ways; %d were validated before\n", len(ids)-len(problems), total, o.runs, r.Kept)
	}
	switch {
	case len(r.Failed) > 0:
		return milepost.E("tasks validate", milepost.KindUnavailable, "%d tasks could not be checked, the first is %s: %s; the same command tries them again",
			len(r.Failed), r.Failed[0].Task, r.Failed[0].Reason)
	case len(problems) > 0:
		return milepost.E("tasks validate", milepost.KindConflict, "%d tasks are not fit for use", len(problems))
	}
	return nil
}

// showCertificate shows what is known of a task from its certificate.
func showCertificate(out io.Writer, t *milepost.Task, cert *benchmarks.Certificate) error {
	if cert == nil {
		_, err := fmt.Fprint(out, "\ncertificate none; milepost tasks validate SET writes one\n")
		return err
	}
	stale, err := cert.Stale(t)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\ncertificate %s, by %s, %d runs each side, checks %v\n", cert, cert.By, cert.Runs, cert.Checks)
	if stale != "" {
		fmt.Fprintf(out, "  stale: %s\n", stale)
	}
	for _, f := range cert.Problems {
		fmt.Fprintf(out, "  problem (%s): %s\n", f.Check, f.What)
	}
	for _, f := range cert.Warnings {
		fmt.Fprintf(out, "  warning (%s): %s\n", f.Check, f.What)
	}
	for _, f := range cert.Flaky {
		fmt.Fprintf(out, "  flaky (%s): %s passed in %d of %d runs; pass rate %.2f, 95 %% credible from %.2f to %.2f; counts neither for potentials nor for verdicts\n",
			f.Side, f.Test, f.Passed, f.Runs, f.Mean, f.Low, f.High)
	}
	for _, phase := range slices.Sorted(maps.Keys(cert.Times)) {
		s := cert.Times[phase]
		fmt.Fprintf(out, "  %-10s %.2f s (%.2f to %.2f)\n", phase, s.Median, s.Min, s.Max)
	}
	for _, s := range cert.Sabotage {
		fmt.Fprintf(out, "  sabotage by %-18s %s\n", s.Name, s.Outcome)
	}
	return nil
}

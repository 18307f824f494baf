package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/configs"
)

// newTasksCommand is the parent of what makes, checks and shows task sets; making is in tasks_make.go.
func newTasksCommand() *cobra.Command {
	c := &cobra.Command{Use: "tasks", Short: "Make, import, validate, show, split and mix task sets"}
	c.AddCommand(newTasksMakeCommand(), newTasksImportCommand(), newTasksPrepareCommand(), newTasksValidateCommand(), newTasksShowCommand(), newTasksStatsCommand(),
		newTasksSplitCommand(), newTasksMixCommand(), newTasksScrubCommand(), newTasksImageCommand())
	return c
}

// benchFlags are the flags of commands that run tests.
type benchFlags struct {
	python     string
	unconfined bool
	workers    int
	readOnly   []string // further folders that sandboxes see; no flag
}

func (f *benchFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.python, "python", "", "interpreter that the tests find as python3; it must have what they import (default: python3 of PATH)")
	c.Flags().BoolVar(&f.unconfined, "unconfined", false, "run tests without a sandbox: no protection whatever")
	c.Flags().IntVar(&f.workers, "workers", 2, "test runs at the same time")
}

// withChecker calls use with a checker whose sandboxes and repositories live in a folder of its own, removed afterwards.
func (f *benchFlags) withChecker(use func(*benchmarks.Checker) error) (err error) {
	if f.workers < 1 || f.workers > 64 {
		return &usageError{fmt.Errorf("--workers is %d; allowed are 1 to 64", f.workers)}
	}
	dir, err := os.MkdirTemp("", "milepost-tasks-")
	if err != nil {
		return milepost.Wrap("tasks", milepost.KindUnavailable, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg := configs.Default()
	cfg.Sandbox.Python, cfg.Sandbox.Unconfined, cfg.Tests.Slots = f.python, f.unconfined, f.workers
	cfg.Sandbox.ReadOnly = append(cfg.Sandbox.ReadOnly, f.readOnly...)
	w, err := openWorld(cfg, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	return use(&benchmarks.Checker{Bases: w.bases, Blobs: w.blobs, Runner: w.tests, Workers: f.workers})
}

// oneSet is the argument check of commands that take one task set.
func oneSet(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &usageError{fmt.Errorf("%d arguments; one task set is wanted: a folder with %s, or such a file", len(args), benchmarks.TasksFile)}
	}
	return nil
}

// counter shows progress on the error stream, so that standard output holds results alone.
func counter(c *cobra.Command, what string) benchmarks.Progress {
	p, began := newProgress(c.ErrOrStderr()), time.Now()
	return func(done, total int) { p.count(what, done, total, time.Since(began)) }
}

func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return milepost.Wrap("tasks: print", milepost.KindUnavailable, enc.Encode(v))
}

func newTasksShowCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show SET [TASK]",
		Short: "List a task set, or show one task: statement, tests and reference patch",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return &usageError{fmt.Errorf("%d arguments; a task set, and perhaps a task's id, are wanted", len(args))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 2 {
				return findTask(c.OutOrStdout(), args[0], args[1], asJSON)
			}
			if asJSON {
				tasks, err := benchmarks.Load(args[0])
				if err != nil {
					return err
				}
				return printJSON(c.OutOrStdout(), tasks)
			}
			certs, err := benchmarks.LoadCertificates(args[0])
			if err != nil {
				return err
			}
			return benchmarks.Each(args[0], func(t *milepost.Task) error {
				first, _, _ := strings.Cut(t.Statement, "\n")
				if c := certs[t.ID]; c != nil && !c.OK(false) {
					first = "(" + c.String() + ")  " + first
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s  %d failing, %d passing  %s\n", t.ID, len(t.FailToPass), len(t.PassToPass), first)
				return err
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the tasks as JSON")
	return c
}

// findTask shows the task of the given id.
func findTask(out io.Writer, set, id string, asJSON bool) error {
	var found *milepost.Task
	first, n := "", 0
	err := benchmarks.Each(set, func(t *milepost.Task) error {
		if n++; n == 1 {
			first = t.ID
		}
		if t.ID == id {
			found = t
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case found == nil:
		return milepost.E("tasks show", milepost.KindNotFound, "no task %q among %d; the first is %q", id, n, first)
	case asJSON:
		return printJSON(out, found)
	}
	certs, err := benchmarks.LoadCertificates(set)
	if err != nil {
		return err
	}
	showTask(out, found)
	return showCertificate(out, found, certs[id])
}

func showTask(out io.Writer, t *milepost.Task) {
	fmt.Fprintf(out, "task        %s (%s, split %q, %s)\n", t.ID, t.Kind, t.Split, t.Source)
	if t.Workdir == "" {
		fmt.Fprintf(out, "repository  %s at %s\n", t.Repo, t.BaseCommit)
	} else {
		fmt.Fprintf(out, "repository  %s at %s in image %s\n", t.Workdir, t.BaseCommit, t.Image)
	}
	if t.Origin != nil {
		fmt.Fprintf(out, "row         %d of %s; upstream %s\n", t.Origin.Row, t.Origin.File, t.Origin.Repo)
	}
	if len(t.Test.Argv) > 0 {
		fmt.Fprintf(out, "tests       %s\n", strings.Join(t.Test.Argv, " "))
	}
	showGrading(out, t.Grading)
	for _, k := range slices.Sorted(maps.Keys(t.Meta)) {
		fmt.Fprintf(out, "            %s: %s\n", k, t.Meta[k])
	}
	fmt.Fprintf(out, "\n%s\n", t.Statement)
	fmt.Fprintf(out, "\nfail to pass (%d)\n  %s\n", len(t.FailToPass), strings.Join(t.FailToPass, "\n  "))
	fmt.Fprintf(out, "pass to pass (%d)\n  %s\n", len(t.PassToPass), strings.Join(t.PassToPass, "\n  "))
	fmt.Fprintf(out, "\n%s", t.ReferencePatch)
}

// showGrading shows how a data set judges, in the words a person would look for.
func showGrading(out io.Writer, g *milepost.Grading) {
	if g == nil {
		return
	}
	fmt.Fprintf(out, "grading     rule %s", g.Rule)
	if g.LogParser != "" {
		fmt.Fprintf(out, ", log parser %s", g.LogParser)
	}
	if g.Total > 0 {
		fmt.Fprintf(out, ", of %d tests", g.Total)
	}
	fmt.Fprintln(out)
	for _, c := range append(slices.Clone(g.Setup), g.Commands...) {
		fmt.Fprintf(out, "            $ %s\n", c)
	}
}

func newTasksStatsCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "stats SET",
		Short: "Sum a task set up",
		Args:  oneSet,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := benchmarks.SummariseSet(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), s)
			}
			printStats(c.OutOrStdout(), s)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the sums as JSON")
	return c
}

func printStats(out io.Writer, s benchmarks.Stats) {
	fmt.Fprintf(out, "%d tasks on %d repository trees of %d repositories", s.Tasks, s.Trees, s.Repos)
	for _, split := range slices.Sorted(maps.Keys(s.Splits)) {
		fmt.Fprintf(out, ", %d %q", s.Splits[split], split)
	}
	fmt.Fprintln(out)
	for _, row := range []struct {
		what string
		r    benchmarks.Range
	}{{"tests", s.Tests}, {"failing tests", s.FailToPass}, {"files to patch", s.PatchedFiles}, {"statement bytes", s.Statement}, {"patch bytes", s.Patch}} {
		fmt.Fprintf(out, "%-16s %d to %d, mean %.1f\n", row.what, row.r.Min, row.r.Max, row.r.Mean)
	}
	for _, d := range slices.Sorted(maps.Keys(s.Datasets)) {
		fmt.Fprintf(out, "data set %-22s %d tasks\n", d, s.Datasets[d])
	}
	for _, f := range slices.Sorted(maps.Keys(s.Families)) {
		fmt.Fprintf(out, "family %-12s %d faults\n", f, s.Families[f])
	}
}

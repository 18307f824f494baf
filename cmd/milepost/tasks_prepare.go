package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/prepare"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
)

func newTasksPrepareCommand() *cobra.Command {
	var config configFlags
	var jobs int
	var again, asJSON bool
	c := &cobra.Command{
		Use:   "prepare SET",
		Short: "Take the repositories of imported tasks out of their images, for agents and probes",
		Long: "Gets the image of each task whose repository lies in one, pins it by digest, runs the task's preparation in a container,\n" +
			"and keeps all files of the repository, those that git ignores included, as a base beside the tasks, without history.\n" +
			"Also notes the variables that activating the image's environment sets. Then opens the task as an agent will see it and\n" +
			"proves that its git history holds the base alone. Train and eval want prepared tasks, grade does not. Engines and pull\n" +
			"limits are those of sandbox.docker; interrupted, what was prepared stays. Exit code 1 if a task could not be prepared.",
		Args: oneSet,
		RunE: func(c *cobra.Command, args []string) error {
			if jobs < 1 || jobs > 64 {
				return &usageError{fmt.Errorf("--jobs is %d; allowed are 1 to 64", jobs)}
			}
			cfg := configs.Default()
			if config.file != "" || len(config.set) > 0 {
				var err error
				if cfg, err = config.load(); err != nil {
					return err
				}
			}
			p, began := newProgress(c.ErrOrStderr()), time.Now()
			sum, err := prepareTasks(c.Context(), cfg.Sandbox.Docker, args[0], &prepare.Preparer{Jobs: jobs, Again: again, Progress: func(_, problem string, done, total int) {
				if problem != "" {
					p.line("%.1000s", problem)
				}
				p.count("prepared", done, total, time.Since(began))
			}})
			if err != nil {
				return err
			}
			return printPrepared(c, sum, asJSON)
		},
	}
	config.register(c, "")
	c.Flags().IntVar(&jobs, "jobs", 2, "tasks at the same time")
	c.Flags().BoolVar(&again, "again", false, "also tasks that are prepared, from their pinned images")
	c.Flags().BoolVar(&asJSON, "json", false, "print the summary as JSON")
	return c
}

// prepareTasks opens the engines for a Preparer and removes what it does not keep.
func prepareTasks(ctx context.Context, cfg docker.Config, set string, p *prepare.Preparer) (sum prepare.Summary, err error) {
	if p.Scratch, err = os.MkdirTemp("", "milepost-prepare-"); err != nil {
		return sum, milepost.Wrap("tasks prepare", milepost.KindUnavailable, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.Scratch)) }()
	d, err := docker.New(ctx, cfg)
	if err != nil {
		return sum, err
	}
	p.Images, p.Env = d, env.New(d)
	defer func() { err = errors.Join(err, p.Env.Close()) }()
	return p.Set(ctx, set)
}

func printPrepared(c *cobra.Command, sum prepare.Summary, asJSON bool) error {
	if asJSON {
		if err := printJSON(c.OutOrStdout(), sum); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(c.OutOrStdout(), "%d tasks prepared with %d bases from %d images, %d had their base already\n", sum.Prepared, sum.Bases, sum.Images, sum.Kept)
	}
	if n := len(sum.Problems); n > 0 {
		return milepost.E("tasks prepare", milepost.KindConflict, "%d of %d tasks could not be prepared; the first: %s", n, sum.Tasks, sum.Problems[0].Reason)
	}
	return nil
}

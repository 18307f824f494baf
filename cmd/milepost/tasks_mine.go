package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/mine"
)

func newTasksMakeMineCommand() *cobra.Command {
	var flags benchFlags
	var out string
	var cfg mine.Config
	c := &cobra.Command{
		Use:   "mine (--repo DIR | --old NAME==VERSION --new NAME==VERSION) --out DIR",
		Short: "Find tasks in a git history, or between two releases: a change of code whose tests fail before and pass after",
		Long: "The code's part of a commit is the reference patch, its tests are hidden, its message is the statement. Of two\n" +
			"releases the whole difference is a task, and what each changed test module needs of it; the changelog is the statement.\n" +
			"mined.jsonl in the set's folder tells what became of every candidate; an interrupted search goes on there.\n" +
			"--python must have pytest and what the project imports (tasks make env), but not the project.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if cfg.Cache, err = sdistCache(cfg.Cache); err != nil {
				return err
			}
			var stats mine.Stats
			err = makeSet(c, &flags, out, cfg.Validate, func(ctx context.Context, check *benchmarks.Checker) (tasks []*milepost.Task, err error) {
				tasks, stats, err = mine.Make(ctx, cfg, check, out, func(v mine.Verdict) { tellMined(c, v) })
				return tasks, err
			})
			if stats.Candidates > 0 {
				fmt.Fprintf(c.OutOrStdout(), "%d candidates, %d tasks\n", stats.Candidates, stats.Tasks)
				for _, r := range stats.List() {
					fmt.Fprintf(c.OutOrStdout(), "%6d  %s\n", stats.Reasons[r], r)
				}
			}
			return err
		},
	}
	flags.register(c)
	f := c.Flags()
	f.StringVar(&out, "out", "", "folder for the task set; must not hold one")
	f.StringVar(&cfg.Repo, "repo", "", "folder of a git repository")
	f.StringVar(&cfg.Revision, "revision", "HEAD", "newest commit that is looked at")
	f.IntVar(&cfg.MaxCommits, "max-commits", 500, "commits looked at, from the newest")
	f.StringVar(&cfg.Old, "old", "", "NAME==VERSION of the older release")
	f.StringVar(&cfg.New, "new", "", "NAME==VERSION of the newer one")
	f.StringVar(&cfg.OldArchive, "old-archive", "", ".tar.gz of the older release, in place of a download")
	f.StringVar(&cfg.NewArchive, "new-archive", "", "and of the newer one")
	f.IntVar(&cfg.Count, "count", 0, "tasks at most (0 = all)")
	f.IntVar(&cfg.MaxFiles, "max-files", 10, "changed files of code in a commit at most")
	f.IntVar(&cfg.MaxLines, "max-lines", 500, "changed lines of code in a commit at most")
	f.IntVar(&cfg.MinMessage, "min-message", 20, "letters of a message that says enough")
	f.IntVar(&cfg.Runs, "runs", 3, "how often each side is run")
	f.StringVar(&cfg.Split, "split", "", "train, validation or heldout")
	f.DurationVar(&cfg.Timeout, "timeout", 0, "of one run of the tests (default: ten times a good run, at least 10 s)")
	f.StringVar(&cfg.Image, "image", "local:python3", "environment identity written into the tasks")
	f.StringVar(&cfg.Cache, "cache", "", "folder of downloaded distributions (default: below the user's cache folder)")
	return c
}

// tellMined says on the error stream what became of a candidate that was run.
func tellMined(c *cobra.Command, v mine.Verdict) {
	switch {
	case v.Task != nil:
		fmt.Fprintf(c.ErrOrStderr(), "%s: a task, %d tests fail before it and %d pass on both sides\n", v.Candidate, len(v.Task.FailToPass), len(v.Task.PassToPass))
	case v.Detail != "":
		fmt.Fprintf(c.ErrOrStderr(), "%s: %s (%.200s)\n", v.Candidate, v.Reason, v.Detail)
	}
}

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

func newTasksScrubCommand() *cobra.Command {
	var base string
	var check, asJSON bool
	c := &cobra.Command{
		Use:   "scrub DIR",
		Short: "Take out of a git repository whatever came after its base commit, and prove it",
		Long: "DIR is a checkout, for example one that is about to be built into an image. Its .git becomes one that holds the base\n" +
			"commit and what that descends from: no remotes, tags, other branches, later commits, stashes, notes, reflogs, hooks,\n" +
			"alternates, worktrees, stores of submodules. Working files stay. Afterwards every object in the store is proven to be\n" +
			"reachable from the base. With --check nothing is changed. Exit code 1 if the repository is not scrubbed.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{fmt.Errorf("%d arguments; one folder is wanted", len(args))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			do := repo.Scrub
			if check {
				do = repo.ProveScrubbed
			}
			p, err := do(c.Context(), repo.Host{}, args[0], base)
			if len(p.Findings) == 0 && err != nil {
				return err
			}
			if err := printProof(c.OutOrStdout(), args[0], p, asJSON); err != nil {
				return err
			}
			if len(p.Findings) > 0 {
				return milepost.E("tasks scrub", milepost.KindConflict, "%w", err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&base, "base", "", "id of the base commit, which must be checked out (default: HEAD)")
	c.Flags().BoolVar(&check, "check", false, "prove only; change nothing")
	c.Flags().BoolVar(&asJSON, "json", false, "print the proof, or what was found, as JSON")
	return c
}

func printProof(out io.Writer, dir string, p repo.Proof, asJSON bool) error {
	if asJSON {
		return printJSON(out, p)
	}
	for _, f := range p.Findings {
		fmt.Fprintf(out, "%-8s %s: %s\n", f.Kind, f.Name, f.Detail)
	}
	if len(p.Findings) == 0 {
		fmt.Fprintf(out, "%s is scrubbed: all %d objects are reachable from %s, which has %d commits with those before it\n", dir, p.Objects, p.Base, p.Commits)
	}
	return nil
}

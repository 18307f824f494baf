package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost/benchmarks"
)

func newTasksSplitCommand() *cobra.Command {
	var out, ratios, by string
	var seed uint64
	c := &cobra.Command{
		Use:   "split SET --out DIR",
		Short: "Deal a task set out into parts, so that no repository is in two of them",
		Long:  "Each part is a folder below --out and a task set of its own. The same seed gives the same parts.",
		Args:  oneSet,
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				return &usageError{fmt.Errorf("--out is missing; it names the folder for the parts")}
			}
			if by != string(benchmarks.ByRepo) && by != string(benchmarks.ByTask) {
				return &usageError{fmt.Errorf("--by is %q; allowed are repo and task", by)}
			}
			parts, err := benchmarks.ParseRatios(ratios)
			if err != nil {
				return &usageError{err}
			}
			counts, err := benchmarks.Split(args[0], out, parts, benchmarks.By(by), seed)
			if err != nil {
				return err
			}
			for _, p := range parts {
				fmt.Fprintf(c.OutOrStdout(), "%s/%s: %d tasks\n", out, p.Name, counts[p.Name])
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "", "folder for the parts; none of them may hold a set")
	f.StringVar(&ratios, "ratios", "train=8,validation=1,heldout=1", "the parts and their shares of the tasks")
	f.StringVar(&by, "by", string(benchmarks.ByRepo), "what stays together: repo, or task (nothing does)")
	f.Uint64Var(&seed, "seed", 1, "any number")
	return c
}

func newTasksMixCommand() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "mix MIXTURE.yaml --out DIR",
		Short: "Make one task set of several, with weights and a curriculum by measured pass rate",
		Long: "The file names the sets and their weights:\n\n" +
			"  sets:\n    - {path: tasks/micro, weight: 3}\n    - {path: tasks/gym, weight: 1}\n" +
			"  curriculum: {rates: eval.json, min: .03, max: .97, shape: frontier, floor: .1, else: .5}\n\n" +
			"Each task of the new set carries its weight; weights sum to 1. Pass rates are {\"TASK\": RATE}, or what eval --json\n" +
			"prints. Shape frontier weighs a task of rate p by 4p(1-p), flat weighs all alike; tasks below min or above max are\n" +
			"left out; a task without a measurement is taken to have rate else.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{fmt.Errorf("%d arguments; one mixture file is wanted", len(args))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				return &usageError{fmt.Errorf("--out is missing; it names the folder for the task set")}
			}
			m, err := benchmarks.LoadMixture(args[0])
			if err != nil {
				return err
			}
			if m, err = benchmarks.Mix(m, out); err != nil {
				return err
			}
			for _, s := range m.Sets {
				fmt.Fprintf(c.OutOrStdout(), "%s: %d tasks, weight %g\n", s.Path, s.Tasks, s.Weight)
			}
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "", "folder for the task set; must not hold one")
	return c
}

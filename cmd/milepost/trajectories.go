package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/trajectories"
	"github.com/milepost-rl/milepost/rollout/toolcall"
	"github.com/milepost-rl/milepost/rollout/tools"
)

func newTrajectoriesCommand() *cobra.Command {
	c := &cobra.Command{Use: "trajectories", Short: "Trajectories of other agent systems, for rejection fine-tuning"}
	c.AddCommand(newTrajectoriesImportCommand(), newTrajectoriesShowCommand(), newTrajectoriesCheckCommand())
	return c
}

// trajectoryFormats names the forms, one a line.
func trajectoryFormats() string {
	var b strings.Builder
	for _, f := range trajectories.Formats {
		fmt.Fprintf(&b, "  %-16s %s\n", f.Name, f.About)
	}
	return "\n\nForms, recognised by themselves:\n" + b.String()
}

// trajectoryFlags are those of reading, common to all three commands.
func trajectoryFlags(c *cobra.Command, o *trajectories.Options) {
	f := c.Flags()
	f.StringVar(&o.Format, "tool-format", toolcall.Hermes, "how calls are written, as the policy will: "+strings.Join(toolcall.Names(), ", "))
	f.StringVar(&o.Kit, "scaffold", "", "tools that calls are held to and that are told: "+strings.Join(tools.Kits(), ", ")+" (default: the record's own)")
	f.StringVar(&o.Mask, "mask", trajectories.MaskFormat, "turns that stay as context and are not trained: format (no call, unknown tool, bad arguments, format errors), errors (these, and calls answered with an error), none")
}

func trajectoryArgs(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return &usageError{errors.New("no file; files or folders of trajectories are wanted")}
	}
	return nil
}

func newTrajectoriesImportCommand() *cobra.Command {
	o := trajectories.Options{}
	var report string
	var asJSON bool
	c := &cobra.Command{
		Use:   "import FILE|DIR... --out DIR",
		Short: "Make demonstrations of what SWE-agent, mini-swe-agent, OpenHands or a chat recorded",
		Long: "Reads trajectories, keeps those that resolved their task, and writes them as demonstrations for milepost rft --demos DIR:\n" +
			"each turn one call in the policy's format, turns that broke the form masked, conversations that are there twice dropped.\n" +
			"Whether a task was resolved stands in the record or, with --report, in the report of SWE-bench's harness. DIR/index.jsonl\n" +
			"names file and row of each demonstration." + trajectoryFormats(),
		Args: trajectoryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.From = args
			if o.Out == "" {
				return &usageError{errors.New("--out is missing; it names the folder for the demonstrations")}
			}
			if report != "" {
				var err error
				if o.Resolved, err = trajectories.ReadVerdicts(report); err != nil {
					return err
				}
			}
			sum, err := trajectories.Import(c.Context(), o)
			if err == nil && asJSON {
				return printJSON(c.OutOrStdout(), sum)
			}
			if err == nil {
				fmt.Fprintf(c.OutOrStdout(), "%s: %d demonstrations of %d trajectories, %d trained turns\n", o.Out, sum.Kept, sum.Read, sum.Turns)
				printTrajectories(c.OutOrStdout(), sum)
			}
			return err
		},
	}
	trajectoryFlags(c, &o)
	f := c.Flags()
	f.StringVar(&o.Out, "out", "", "folder for the demonstrations; must not hold any")
	f.StringVar(&report, "report", "", "report of SWE-bench's harness (of a run or of instances): which instances were resolved")
	f.BoolVar(&o.Unresolved, "unresolved", false, "keep also what was not resolved, or is not known to be")
	f.StringSliceVar(&o.Exits, "exit", nil, "keep these exit statuses alone, in the system's own words")
	f.IntVar(&o.MaxTokens, "max-tokens", 0, "leave longer conversations out, estimated at 4 bytes a token (rft.sft.max_tokens is exact); 0 = no bound")
	f.IntVar(&o.MaxTurns, "max-turns", 0, "leave conversations of more turns out; 0 = no bound")
	f.IntVar(&o.PerTask, "per-task", 0, "keep at most so many of a task, the first ones; 0 = no bound")
	f.BoolVar(&o.SkipInvalid, "skip-invalid", false, "leave faulty records out and list them, instead of ending at the first")
	f.BoolVar(&o.Tools, "tools", true, "demonstrations tell the chat template their tools, as policy.token.tools: template does")
	f.BoolVar(&asJSON, "json", false, "print what was imported as JSON")
	return c
}

func newTrajectoriesCheckCommand() *cobra.Command {
	o := trajectories.Options{SkipInvalid: true, Unresolved: true}
	c := &cobra.Command{
		Use:   "check FILE|DIR...",
		Short: "Read trajectories and say what is wrong with them, writing nothing",
		Args:  trajectoryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.From = args
			sum, err := trajectories.Import(c.Context(), o)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%d trajectories in %d files, %d of them without a verdict\n", sum.Read, sum.Files, sum.Unproven)
			printTrajectories(c.OutOrStdout(), sum)
			if sum.Faulty > 0 {
				return milepost.E("trajectories check", milepost.KindInvalid, "%d records are faulty", sum.Faulty)
			}
			return nil
		},
	}
	trajectoryFlags(c, &o)
	return c
}

func newTrajectoriesShowCommand() *cobra.Command {
	o := trajectories.Options{SkipInvalid: true, Unresolved: true}
	var id string
	c := &cobra.Command{
		Use:   "show FILE|DIR... [--id ID]",
		Short: "Show trajectories: one a line, or one whole, turn by turn, with what is masked and why",
		Args:  trajectoryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.From = args
			found := false
			o.Each = func(t *trajectories.Trajectory) {
				switch {
				case id == "":
					printTrajectoryLine(c.OutOrStdout(), t)
				case !found && (t.ID == id || t.Task == id):
					found = true
					printTrajectory(c.OutOrStdout(), t)
				}
			}
			sum, err := trajectories.Import(c.Context(), o)
			if err != nil {
				return err
			}
			for _, fault := range sum.Faults {
				fmt.Fprintln(c.ErrOrStderr(), "faulty:", fault)
			}
			if id != "" && !found {
				return milepost.E("trajectories show", milepost.KindNotFound, "no trajectory %q among %d", id, sum.Read)
			}
			return nil
		},
	}
	trajectoryFlags(c, &o)
	c.Flags().StringVar(&id, "id", "", "trajectory, or task of a trajectory, to show whole")
	return c
}

// printTrajectories prints what a summary counts, largest first within each list.
func printTrajectories(out io.Writer, s trajectories.Summary) {
	for _, list := range []struct {
		title  string
		counts map[string]int
	}{{"formats", s.Formats}, {"exit statuses", s.Exits}, {"left out", s.Left}, {"turns not trained", s.Masked}} {
		for _, name := range slices.Sorted(maps.Keys(list.counts)) {
			shown := name
			if shown == "" {
				shown = "(none stated)"
			}
			fmt.Fprintf(out, "%s: %d %s\n", list.title, list.counts[name], shown)
		}
	}
	for _, fault := range s.Faults {
		fmt.Fprintf(out, "faulty: %s\n", fault)
	}
}

func verdictWord(resolved *bool) string {
	switch {
	case resolved == nil:
		return "no verdict"
	case *resolved:
		return "resolved"
	}
	return "not resolved"
}

func printTrajectoryLine(out io.Writer, t *trajectories.Trajectory) {
	masked := 0
	for _, turn := range t.Turns {
		if turn.Masked != "" {
			masked++
		}
	}
	fmt.Fprintf(out, "%s\t%s\t%s\t%d turns, %d masked\t%s\t%s:%d\n", t.ID, t.Format, verdictWord(t.Resolved), len(t.Turns), masked, t.Exit, t.File, t.Row)
}

func printTrajectory(out io.Writer, t *trajectories.Trajectory) {
	printTrajectoryLine(out, t)
	for _, m := range t.Opening {
		fmt.Fprintf(out, "\n--- %s\n%s\n", m.Role, m.Text)
	}
	for i, turn := range t.Turns {
		fmt.Fprintf(out, "\n--- turn %d", i+1)
		if turn.Masked != "" {
			fmt.Fprintf(out, ", not trained: %s", turn.Masked)
		}
		fmt.Fprintf(out, "\n%s\n", turn.Text)
		if turn.Call != nil {
			fmt.Fprintf(out, "> %s %s\n", turn.Call.Name, turn.Call.Arguments)
		}
		if turn.Answered {
			fmt.Fprintf(out, "\n--- answer\n%s\n", turn.Observed)
		}
		for _, m := range turn.After {
			fmt.Fprintf(out, "\n--- %s\n%s\n", m.Role, m.Text)
		}
	}
}

package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/report"
)

// newReportCommand writes the report of a run folder, of a run that is going too.
func newReportCommand() *cobra.Command {
	var out string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "report RUN_DIR",
		Short: "Write report.html of a run and print its summary",
		Long: "Write the report of a run as one HTML file and print a summary. The run may be going, interrupted or done.\n" +
			"With --json the figures go to standard output as JSON, and a page is written only where --out names it.",
		Args: oneRunDir("report"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f := &orchestrator.Folder{Dir: args[0]}
			if !asJSON || out != "" {
				if err := report.Write(f, out); err != nil {
					return err
				}
			}
			d, err := report.Load(f)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return milepost.Wrap("report", milepost.KindUnavailable, enc.Encode(d))
			}
			if out == "" {
				out = f.Path("report.html")
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), d.Summary(out))
			return milepost.Wrap("report", milepost.KindUnavailable, err)
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "file to write (default RUN_DIR/report.html)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the figures as JSON")
	return cmd
}

// oneRunDir accepts exactly one argument.
func oneRunDir(command string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return milepost.E(command, milepost.KindInvalid, "%d arguments; allowed: one run folder", len(args))
		}
		return nil
	}
}

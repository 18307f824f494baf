package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// newGCCommand applies a run's own retention to its folder.
func newGCCommand() *cobra.Command {
	var dry, asJSON bool
	cmd := &cobra.Command{
		Use:   "gc RUN_DIR",
		Short: "Remove what the retention of a run does not keep",
		Long: "Remove the checkpoints, weights and batches that schedule.retention of the run's saved configuration does not\n" +
			"keep. What a resume needs, the best weights and those served last always stay. A run that is going is refused.",
		Args: oneRunDir("gc"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f := &orchestrator.Folder{Dir: args[0]}
			if _, err := f.Header(); err != nil {
				return err
			}
			keep, err := f.Retention()
			if err != nil {
				return err
			}
			removed, err := f.GC(keep, dry)
			if err != nil {
				return err
			}
			return printRemoved(cmd, removed, dry, asJSON)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the paths as JSON")
	return cmd
}

func printRemoved(cmd *cobra.Command, removed []orchestrator.Removed, dry, asJSON bool) error {
	out := cmd.OutOrStdout()
	if asJSON {
		if removed == nil {
			removed = []orchestrator.Removed{}
		}
		return milepost.Wrap("gc", milepost.KindUnavailable, json.NewEncoder(out).Encode(removed))
	}
	verb := "removed"
	if dry {
		verb = "would remove"
	}
	var sum int64
	for _, r := range removed {
		sum += r.Bytes
		if _, err := fmt.Fprintf(out, "%s %s (%.1f MB)\n", verb, r.Path, float64(r.Bytes)/1e6); err != nil {
			return milepost.Wrap("gc", milepost.KindUnavailable, err)
		}
	}
	_, err := fmt.Fprintf(out, "%s %d paths, %.1f MB\n", verb, len(removed), float64(sum)/1e6)
	return milepost.Wrap("gc", milepost.KindUnavailable, err)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/orchestrator"
)

func newTrainerCommand() *cobra.Command {
	c := &cobra.Command{Use: "trainer", Short: "The PyTorch trainer by itself"}
	c.AddCommand(newTrainerReplayCommand(), newTrainerServeCommand())
	return c
}

type replayOptions struct {
	set  []string
	save string
	json bool
}

func newTrainerReplayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay BATCH",
		Short: "Make one update of a run again",
		Long: "Loads the weights that a run had before the update of BATCH, a file RUN_DIR/batches/uNNNN.arrow, makes the update\n" +
			"with the run's saved configuration and --set on top of it, and prints its metrics. The run is not changed. An update\n" +
			"that a guard or a number that is not finite stopped fails in the same way here, and can be looked into: with other\n" +
			"bounds, a smaller learning rate, another loss.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return milepost.E("trainer replay", milepost.KindInvalid, "%d arguments; allowed: one batch file", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			metrics, err := replayBatch(cmd.Context(), args[0], o)
			if err != nil {
				return err
			}
			return printMetrics(cmd.OutOrStdout(), metrics, o.json)
		},
	}
	cmd.Flags().StringArrayVar(&o.set, "set", nil, "override one field of the run: section.field=value (repeatable)")
	cmd.Flags().StringVar(&o.save, "save", "", "write a checkpoint with the state after the update here")
	cmd.Flags().BoolVar(&o.json, "json", false, "print the metrics as JSON")
	return cmd
}

// replayBatch makes the update of a batch file with a trainer of its own.
func replayBatch(ctx context.Context, batch string, o replayOptions) (metrics map[string]float64, err error) {
	if left, err := os.ReadDir(o.save); o.save != "" && (err == nil && len(left) > 0 || err != nil && !os.IsNotExist(err)) {
		return nil, &usageError{fmt.Errorf("--save %s exists and is not empty; allowed: a directory that does not exist", o.save)}
	}
	folder, update, err := batchOf(batch)
	if err != nil {
		return nil, err
	}
	cfg, err := configs.Load(folder.Path("config.yaml"), o.set)
	if err != nil {
		return nil, err
	}
	recipe, err := folder.Recipe(update)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "milepost-replay-")
	if err != nil {
		return nil, milepost.Wrap("trainer replay", milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(dir)
	t, err := startTrainer(ctx, cfg, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.Load(ctx, recipe.Load); err != nil {
		return nil, err
	}
	for _, b := range append(recipe.Before, recipe.Batch) {
		if metrics, err = t.Update(ctx, b.Update, b.Path, b.SHA256); err != nil {
			return nil, err
		}
	}
	if o.save != "" {
		return metrics, t.Save(ctx, o.save)
	}
	return metrics, nil
}

// batchOf finds run and update of a batch file.
func batchOf(path string) (*orchestrator.Folder, int, error) {
	name := strings.TrimSuffix(filepath.Base(path), ".arrow")
	dir := filepath.Dir(absolute(path))
	update, err := strconv.Atoi(strings.TrimPrefix(name, "u"))
	if err != nil || !strings.HasPrefix(name, "u") || filepath.Base(dir) != "batches" {
		return nil, 0, milepost.E("trainer replay", milepost.KindInvalid, "%s is no batch of a run; allowed: RUN_DIR/batches/uNNNN.arrow", path)
	}
	f := &orchestrator.Folder{Dir: filepath.Dir(dir)}
	_, err = f.Header()
	return f, update, err
}

func printMetrics(out io.Writer, metrics map[string]float64, asJSON bool) error {
	if asJSON {
		return printJSON(out, metrics)
	}
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		if _, err := fmt.Fprintf(out, "%-22s %.6g\n", name, metrics[name]); err != nil {
			return milepost.Wrap("print metrics", milepost.KindUnavailable, err)
		}
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/credit/casefile"
	"github.com/milepost-rl/milepost/orchestrator"
)

// newCreditCommand is the parent of what a person asks of credit: how it came about.
func newCreditCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "credit", Short: "Re-derive and explain the credit of episodes"}
	cmd.AddCommand(newCreditRecomputeCommand(), newCreditExplainCommand())
	return cmd
}

func newCreditRecomputeCommand() *cobra.Command {
	var run string
	c := &cobra.Command{
		Use:   "recompute CASE.json | --run RUN_DIR",
		Short: "Compute the credit of a case, or of a run's episodes, and print it as JSON",
		Long: "Compute the credit of a case (- reads standard input), or of every training episode of a run by the run's own\n" +
			"configuration, and print the list that a case calls `expected`.\n" +
			"A_out is printed before any whitening over the update. Warnings go to standard error.",
		Args: func(_ *cobra.Command, args []string) error {
			if run != "" && len(args) > 0 {
				return milepost.E(opRecompute, milepost.KindInvalid, "--run and a case file exclude each other")
			}
			if run == "" && len(args) != 1 {
				return milepost.E(opRecompute, milepost.KindInvalid, "%d arguments; allowed: one case file, or - for standard input, or --run RUN_DIR", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if run != "" {
				return recomputeRun(run, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			in, err := openCase(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			defer in.Close()
			if err := recompute(in, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&run, "run", "", "take the recorded episodes of this run folder")
	return c
}

// recomputeRun prints one list over all updates of a run, in order.
func recomputeRun(dir string, out, warnings io.Writer) error {
	cfg, err := configs.Load(filepath.Join(dir, "config.yaml"), nil)
	if err != nil {
		return err
	}
	engine, err := credit.New(cfg.Credit)
	if err != nil {
		return err
	}
	var all []milepost.EpisodeCredit
	folder := &orchestrator.Folder{Dir: dir}
	err = folder.Recompute(engine, func(batch string, r credit.Result) error {
		for _, w := range r.Warnings {
			fmt.Fprintf(warnings, "warning: %s: %s\n", batch, w)
		}
		all = append(all, r.Episodes...)
		return nil
	})
	if err != nil {
		return err
	}
	return casefile.Encode(out, all)
}

const opRecompute = "credit recompute"

func openCase(name string, stdin io.Reader) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(stdin), nil
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.Wrap(opRecompute, milepost.KindNotFound, err)
	}
	return f, milepost.Wrap(opRecompute, milepost.KindUnavailable, err)
}

func recompute(in io.Reader, out, warnings io.Writer) error {
	c, err := casefile.Decode(in)
	if err != nil {
		return err
	}
	r, err := c.Recompute()
	if err != nil {
		return err
	}
	for _, w := range r.Warnings {
		fmt.Fprintln(warnings, "warning:", w)
	}
	return casefile.Encode(out, r.Episodes)
}

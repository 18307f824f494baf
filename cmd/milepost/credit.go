package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit/casefile"
)

// newCreditCommand is the parent of what a person asks of credit: how it came about.
func newCreditCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "credit", Short: "Re-derive the credit of episodes"}
	cmd.AddCommand(newCreditRecomputeCommand())
	return cmd
}

func newCreditRecomputeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "recompute CASE.json",
		Short: "Compute the credit of a case and print it as JSON",
		Long: "Compute the credit of a case (- reads standard input) and print the list that a case calls `expected`.\n" +
			"A_out is printed before any whitening over the update. Warnings go to standard error.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return milepost.E(opRecompute, milepost.KindInvalid, "%d arguments; allowed: one case file, or - for standard input", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
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

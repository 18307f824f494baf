// Command milepost is the whole program: it wires the concrete parts together and holds no logic of its own.
// One file a command; newRootCommand lists them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
)

// Exit codes of the program.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // the run can be resumed
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	code := run(ctx, newRootCommand(), os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes a command line and returns the exit code; errors go to the command's error stream.
func run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitDone
	case ctx.Err() != nil:
		fmt.Fprintln(root.ErrOrStderr(), "milepost: interrupted:", err)
		return exitInterrupted
	}
	fmt.Fprintln(root.ErrOrStderr(), "milepost:", err)
	var usage *usageError
	if errors.As(err, &usage) || milepost.KindOf(err) == milepost.KindInvalid {
		return exitUsage
	}
	return exitFailed
}

// usageError marks a command line that is wrong.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

// newRootCommand lists every command.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "milepost",
		Version:       programVersion(),
		Short:         "Train software-engineering agents by reinforcement learning with milestone credit (SWE-MILE)",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
	})
	root.AddCommand(
		newQuickstartCommand(), newTrainCommand(), newRFTCommand(), newEvalCommand(), newReportCommand(),
		newTasksCommand(), newTrajectoriesCommand(), newGradeCommand(), newCreditCommand(), newWorkerCommand(), newConfigCommand(), newGCCommand(), newDoctorCommand(),
		newPlanCommand(), newLaunchCommand(), newNATSCommand(), newBenchCommand(), newE2ERealCommand(), newAblateCommand(), newTrainerCommand(),
	)
	blameUser(root)
	return root
}

// blameUser makes wrong arguments of a command and of those below it wrong use: an unknown command too.
func blameUser(c *cobra.Command) {
	if c.HasSubCommands() && c.RunE == nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q", args[0])
			}
			return nil
		}
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			var usage *usageError
			if err == nil || errors.As(err, &usage) {
				return err
			}
			return &usageError{fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
		}
	}
	for _, sub := range c.Commands() {
		blameUser(sub)
	}
}

package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/shadow"
)

func newWorkerDeadCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "dead",
		Short: "Look at and replay probe requests that workers set aside",
		Long: `Look at and replay probe requests that workers set aside: those that cannot be read, and those that were handed out
probes.worker.max_deliveries times without a result, because they kill their workers. They are kept for a week.`,
	}
	c.AddCommand(newDeadListCommand(), newDeadShowCommand(), newDeadReplayCommand())
	return c
}

// deadFlags say where the dead letters are.
type deadFlags struct {
	nats   natsFlags
	prefix string
}

func (f *deadFlags) register(c *cobra.Command) {
	f.nats.register(c)
	c.Flags().StringVar(&f.prefix, "prefix", shadow.DefaultStreams().Prefix, "prefix of the streams (probes.prober.streams.prefix)")
}

// open connects to the server; the caller calls done.
func (f *deadFlags) open(c *cobra.Command) (d *shadow.DeadLetters, done func(), err error) {
	connect, err := f.nats.over(c, shadow.ConnectConfig{})
	if err != nil {
		return nil, nil, err
	}
	nc, err := shadow.Connect(connect)
	if err != nil {
		return nil, nil, err
	}
	if d, err = shadow.OpenDead(c.Context(), nc, f.prefix); err != nil {
		nc.Close()
		return nil, nil, err
	}
	return d, nc.Close, nil
}

// filterFlags choose dead letters.
type filterFlags struct {
	shadow.DeadFilter
	kind  string
	since time.Duration
}

func (f *filterFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.Run, "run", "", "only of this run")
	fl.StringVar(&f.kind, "kind", "", "only of this kind: baseline, verdict, step or recheck")
	fl.StringVar(&f.ID, "id", "", "only requests whose id has this part, such as an episode's id")
	fl.StringVar(&f.Reason, "reason", "", "only those whose reason has this part")
	fl.DurationVar(&f.since, "since", 0, "only those set aside within this time, such as 30m")
}

func (f *filterFlags) filter() shadow.DeadFilter {
	out := f.DeadFilter
	out.Kind = milepost.ProbeKind(f.kind)
	if f.since > 0 {
		out.After = time.Now().Add(-f.since)
	}
	return out
}

func newDeadListCommand() *cobra.Command {
	var at deadFlags
	var filter filterFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "list --nats URL",
		Short: "List requests that were set aside, oldest first",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, done, err := at.open(c)
			if err != nil {
				return err
			}
			defer done()
			list, err := d.List(c.Context(), filter.filter())
			if err != nil {
				return err
			}
			if asJSON {
				if list == nil {
					list = []shadow.DeadLetter{}
				}
				return printJSON(c.OutOrStdout(), list)
			}
			return printDead(c.OutOrStdout(), list)
		},
	}
	at.register(c)
	filter.register(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printDead(w io.Writer, list []shadow.DeadLetter) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SEQ\tTIME\tKIND\tRUN\tID\tBYTES\tREASON")
	for _, l := range list {
		id := l.ID
		if l.Fault != "" {
			id = "unreadable"
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%d\t%s\n", l.Seq, l.Time.Format(time.DateTime), l.Kind, l.Run, id, l.Bytes, l.Reason)
	}
	return milepost.Wrap("worker dead list", milepost.KindUnavailable, t.Flush())
}

func newDeadShowCommand() *cobra.Command {
	var at deadFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "show SEQ --nats URL",
		Short: "Show one request that was set aside; --json has its bytes too, in base64",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			seqs, err := sequences(args)
			if err != nil {
				return err
			}
			d, done, err := at.open(c)
			if err != nil {
				return err
			}
			defer done()
			l, err := d.Get(c.Context(), seqs[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), l)
			}
			return showDead(c.OutOrStdout(), l)
		},
	}
	at.register(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func showDead(w io.Writer, l *shadow.DeadLetter) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name string, v any) { fmt.Fprintf(t, "%s\t%v\n", name, v) }
	line("seq", l.Seq)
	line("set aside", l.Time.Format(time.RFC3339)+" by "+l.Worker)
	line("reason", l.Reason)
	line("kind", l.Kind)
	line("run", l.Run)
	line("bytes", l.Bytes)
	if l.Fault != "" {
		line("unreadable", l.Fault)
		line("begins with", strconv.Quote(string(l.Body[:min(len(l.Body), 200)])))
		return milepost.Wrap("worker dead show", milepost.KindUnavailable, t.Flush())
	}
	line("id", l.ID)
	line("task", l.Task)
	line("epoch", l.Epoch)
	line("attempt", l.Attempt)
	line("tree", l.Tree)
	for _, c := range l.Delta {
		if c.Deleted {
			line("changed", c.Path+" (deleted)")
		} else {
			line("changed", fmt.Sprintf("%s %o %s", c.Path, c.Mode, c.Blob))
		}
	}
	return milepost.Wrap("worker dead show", milepost.KindUnavailable, t.Flush())
}

func newDeadReplayCommand() *cobra.Command {
	var at deadFlags
	var filter filterFlags
	var all, keep bool
	c := &cobra.Command{
		Use:   "replay (SEQ... | --all [filters]) --nats URL",
		Short: "Hand requests that were set aside to the workers once more",
		Long: `Hand requests that were set aside to the workers once more. A request that is replayed is no longer listed, unless --keep
is given; if it fails again it comes back under a new number. Probes that are final do not change: the result answers
later requests of the same state in the run. Requests that cannot be read, or of a start of the run that is over, are
refused and stay.`,
		RunE: func(c *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return &usageError{errors.New("give either the numbers of what to replay or --all; see milepost worker dead list")}
			}
			if f := filter.filter(); !all && f != (shadow.DeadFilter{}) {
				return &usageError{errors.New("filters choose among --all; they do not go with numbers")}
			}
			seqs, err := sequences(args)
			if err != nil {
				return err
			}
			d, done, err := at.open(c)
			if err != nil {
				return err
			}
			defer done()
			if all {
				list, err := d.List(c.Context(), filter.filter())
				if err != nil {
					return err
				}
				for _, l := range list {
					seqs = append(seqs, l.Seq)
				}
			}
			return replayDead(c, d, seqs, keep)
		},
	}
	at.register(c)
	filter.register(c)
	c.Flags().BoolVar(&all, "all", false, "replay all that the filters choose")
	c.Flags().BoolVar(&keep, "keep", false, "leave what is replayed in the list")
	return c
}

// replayDead goes on past what is refused; the error names all of it.
func replayDead(c *cobra.Command, d *shadow.DeadLetters, seqs []uint64, keep bool) error {
	var failed error
	for _, seq := range seqs {
		l, err := d.Replay(c.Context(), seq, keep)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		fmt.Fprintf(c.OutOrStdout(), "replayed %d: %s of run %s\n", seq, l.ID, l.Run)
	}
	return failed
}

func sequences(args []string) ([]uint64, error) {
	out := make([]uint64, len(args))
	for i, a := range args {
		n, err := strconv.ParseUint(strings.TrimSpace(a), 10, 64)
		if err != nil || n == 0 {
			return nil, &usageError{fmt.Errorf("%q is not the number of a dead letter (the SEQ of milepost worker dead list)", a)}
		}
		out[i] = n
	}
	return out, nil
}

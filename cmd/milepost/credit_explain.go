package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
	"github.com/milepost-rl/milepost/credit/casefile"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/explain"
)

const opExplain = "credit explain"

// newCreditExplainCommand shows how the credit of one episode came about.
func newCreditExplainCommand() *cobra.Command {
	var run, file string
	var width int
	var asJSON bool
	c := &cobra.Command{
		Use:   "explain EPISODE --run RUN_DIR | --case CASE.json",
		Short: "Show how the credit of one episode came about, step by step",
		Long: "Show, for each step of an episode: the action, the files it exposed, the tests it fixed and broke, the potentials of\n" +
			"verification and navigation (φver, φnav), step reward r, backward credit b, format term f, process advantage p, outcome\n" +
			"advantage A_out, the advantage A, and why a probe was not trusted. Above: reward, baseline, group and weights; below: why\n" +
			"the group was kept or dropped. EPISODE is an id, or a begin or end that only one id has. The run may be going; its folder\n" +
			"is only read, and the credit shown is the recorded one. A case has none: its credit is computed (- reads standard input).",
		Args: func(_ *cobra.Command, args []string) error {
			if (run == "") == (file == "") {
				return milepost.E(opExplain, milepost.KindInvalid, "give one of --run RUN_DIR and --case CASE.json")
			}
			if len(args) != 1 {
				return milepost.E(opExplain, milepost.KindInvalid, "%d arguments; allowed: one episode id, or a begin or end of one", len(args))
			}
			if width != 0 && width < explain.MinWidth {
				return milepost.E(opExplain, milepost.KindInvalid, "--width is %d; allowed: %d or more, or 0 for that of the terminal", width, explain.MinWidth)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ep, err := explainOne(run, file, args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				enc := json.NewEncoder(out)
				enc.SetIndent("", "  ")
				return milepost.Wrap(opExplain, milepost.KindUnavailable, enc.Encode(ep))
			}
			return ep.Print(out, layout(out, width))
		},
	}
	c.Flags().StringVar(&run, "run", "", "take the episode of this run folder")
	c.Flags().StringVar(&file, "case", "", "take the episode of this case file")
	c.Flags().IntVar(&width, "width", 0, "columns of the table; 0: those of the terminal, 120 elsewhere")
	c.Flags().BoolVar(&asJSON, "json", false, "print the same as JSON")
	return c
}

func explainOne(run, file, id string, stdin io.Reader) (explain.Episode, error) {
	if run != "" {
		return explain.Load(&orchestrator.Folder{Dir: run}, id)
	}
	in, err := openCase(file, stdin)
	if err != nil {
		return explain.Episode{}, err
	}
	defer in.Close()
	ep, err := explainCase(in, id)
	if err != nil {
		return explain.Episode{}, fmt.Errorf("%s: %w", file, err)
	}
	return ep, nil
}

func explainCase(in io.Reader, id string) (explain.Episode, error) {
	c, err := casefile.Decode(in)
	if err != nil {
		return explain.Episode{}, err
	}
	r, err := c.Recompute()
	if err != nil {
		return explain.Episode{}, err
	}
	i, err := pickEpisode(c.Inputs, id)
	if err != nil {
		return explain.Episode{}, err
	}
	return explain.New(explain.Source{Rules: c.Config, Inputs: c.Inputs, Credits: r.Episodes}, i)
}

// pickEpisode is orchestrator.Folder.Find for a case.
func pickEpisode(inputs []credit.Input, id string) (int, error) {
	ids := make([]string, len(inputs))
	for i, in := range inputs {
		ids[i] = in.Episode.ID
	}
	i, err := orchestrator.MatchID(ids, id)
	return i, milepost.Wrap(opExplain, milepost.KindNotFound, err)
}

// layout fits the output: the terminal's width and colours there, plain text of a fixed width elsewhere. NO_COLOR is
// the convention of no-color.org.
func layout(out io.Writer, width int) explain.Layout {
	l := explain.Layout{Width: explain.DefaultWidth}
	if f, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			l.Width, l.Color = int(size.Col), os.Getenv("NO_COLOR") == "" && !strings.EqualFold(os.Getenv("TERM"), "dumb")
		}
	}
	if width > 0 {
		l.Width = width
	}
	return l
}

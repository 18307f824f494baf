package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// printBench writes the report for people; docs/bench.md explains the columns.
func printBench(out io.Writer, r benchReport) error {
	o := r.Options
	fmt.Fprintf(out, "%d cores, %s, load average %.1f before and %.1f after %.0f s\n", r.Machine.Cores, r.Machine.Go, r.Machine.LoadBefore, r.Machine.LoadAfter, r.Machine.Seconds)
	if len(r.Hidden) > 0 {
		fmt.Fprintf(out, "%d episodes of %d tasks, %d at once, a turn of the policy takes %s; %d slots a worker\n",
			o.Tasks*o.Attempts, o.Tasks, o.Concurrency, o.Turn, o.Slots)
	}
	for _, s := range r.Hidden {
		switch s.Tests {
		case testsWaiting:
			fmt.Fprintf(out, "\nTests that wait: the tasks' own and one that sleeps %s\n\n", time.Duration(o.Wait*float64(o.Turn)))
		case testsReal:
			fmt.Fprint(out, "\nTests that compute: the tasks' own alone\n\n")
		}
		if err := printBenchSection(out, s); err != nil {
			return err
		}
	}
	if err := printLoops(out, o, r.Loops); err != nil {
		return err
	}
	return printGoBenchmarks(out, r.Micro)
}

// printBenchSection writes what the variants cost, then what happened to their probes.
func printBenchSection(out io.Writer, s benchSection) error {
	times := [][]string{{"", "episodes", "to none", "barrier", "to none", "hidden", "unwaited", "overlap", "batches"}}
	probes := [][]string{{"", "queue", "run", "probes", "runs", "runs/s", "trusted", "late", "wire/run"}}
	for _, r := range s.Rows {
		var hidden *float64
		if r.Hidden != nil {
			hidden = &r.Hidden.Median
		}
		times = append(times, []string{r.Name, fmt.Sprintf("%.2f s", r.Episodes.Median), ratio(r.EpisodesRatio),
			fmt.Sprintf("%.2f s", r.Barrier.Median), ratio(r.BarrierRatio), share(hidden), share(r.HiddenShare), share(r.OverlapShare), fmt.Sprint(r.Batches)})
		probes = append(probes, []string{r.Name, fmt.Sprintf("%.0f ms", r.QueueMS), fmt.Sprintf("%.0f ms", r.RunMS), fmt.Sprintf("%.0f", r.Probes),
			fmt.Sprintf("%.0f", r.Runs), fmt.Sprintf("%.1f", r.RunsPerS), fmt.Sprintf("%.3f", r.TrustedShare), fmt.Sprint(r.Late), fmt.Sprintf("%.1f kB", r.WireProber/1000)})
	}
	if err := printTable(out, times); err != nil {
		return err
	}
	fmt.Fprintln(out)
	return printTable(out, probes)
}

// printTable writes rows with their cells to the right of their columns.
func printTable(out io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t")+"\t")
	}
	return milepost.Wrap("bench: print", milepost.KindUnavailable, t.Flush())
}

// share writes a share, "-" where there is none.
func share(s *float64) string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *s)
}

// ratio writes the median with its range.
func ratio(s spread) string {
	if s.Min == s.Max {
		return fmt.Sprintf("%.3f", s.Median)
	}
	return fmt.Sprintf("%.3f (%.3f-%.3f)", s.Median, s.Min, s.Max)
}

func printGoBenchmarks(out io.Writer, all []goBenchmark) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprint(out, "\nSingle parts (go test -bench)\n\n")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, b := range all {
		var more []string
		for _, unit := range slices.Sorted(maps.Keys(b.Values)) {
			if unit != "ns/op" {
				more = append(more, fmt.Sprintf("%.4g %s", b.Values[unit], unit))
			}
		}
		whole := "-" // a benchmark that reports parts alone
		if ns, ok := b.Values["ns/op"]; ok {
			whole = siTime(ns)
		}
		cells := append([]string{b.Package, b.Name, whole}, more...)
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return milepost.Wrap("bench: print", milepost.KindUnavailable, t.Flush())
}

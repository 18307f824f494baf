package evaluate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// maxRepos is how many repositories a table shows; result.json has all.
const maxRepos = 40

// shownK are the k of a table: all up to 5, then powers of two and the last; or those asked for.
func shownK(list []AtK, asked []int) []AtK {
	var out []AtK
	for i, a := range list {
		power := a.K&(a.K-1) == 0
		if len(asked) == 0 && (a.K <= 5 || power || i == len(list)-1) || slices.Contains(asked, a.K) {
			out = append(out, a)
		}
	}
	return out
}

// WriteTable shows a result to a person. asked are the k to show; empty = a choice.
func WriteTable(w io.Writer, r *Result, asked []int) error {
	id := r.Identity
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s: %d tasks (%s), %d attempts each\n", id.Model, id.Dataset.Source, id.Dataset.Tasks, id.Dataset.Fingerprint, r.Attempts)
	fmt.Fprintf(&b, "temperature %g, top_p %g, at most %d turns and %d sampled tokens; scaffold %s with %s (%s); seed %d; milepost %s\n", id.Sampling.Temperature, id.Sampling.TopP,
		id.Sampling.MaxTurns, id.Sampling.MaxTokens, id.Scaffold.Name, strings.Join(id.Scaffold.Tools, ", "), id.Scaffold.ToolFormat, id.Seed, id.Milepost)
	fmt.Fprintf(&b, "%d attempts graded, %d lost to infrastructure, %d not made", r.Graded, r.Infra, r.Open)
	if r.Retried > 0 {
		fmt.Fprintf(&b, "; %d losses made good", r.Retried)
	}
	b.WriteString("\n")
	for _, kind := range slices.Sorted(maps.Keys(r.LostBy)) {
		fmt.Fprintf(&b, "  lost to %s: %d\n", kind, r.LostBy[kind])
	}
	fmt.Fprintf(&b, "\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	figures(t, r, asked)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "(%s)\n\n", r.Method)
	writeSpent(&b, r)
	b.WriteString("\n")
	if err := writeRepos(&b, r); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// figures are the rows with intervals.
func figures(t io.Writer, r *Result, asked []int) {
	fmt.Fprintf(t, "\tvalue\t95 %% interval\ttasks\t\n")
	row := func(name string, i Interval) {
		fmt.Fprintf(t, "%s\t%.3f\t%.3f to %.3f\t%d\t\n", name, i.Value, i.Low, i.High, i.Tasks)
	}
	for _, a := range shownK(r.PassAtK, asked) {
		row(fmt.Sprintf("pass@%d", a.K), a.Interval)
	}
	for _, a := range shownK(r.ScoreAtK, asked) {
		row(fmt.Sprintf("score@%d", a.K), a.Interval)
	}
	if r.PassRate != nil {
		row("tests passed", *r.PassRate)
	}
	if s := r.Selected; s != nil {
		row(fmt.Sprintf("selected@%d", s.N), s.Interval)
	}
}

func writeSpent(b *strings.Builder, r *Result) {
	s := r.Spent
	if s.Attempts == 0 {
		return
	}
	n := float64(s.Attempts)
	fmt.Fprintf(b, "per attempt: %.1f turns, %.1f s", float64(s.Turns)/n, s.Wall/n)
	if s.Told > 0 {
		told := float64(s.Told)
		fmt.Fprintf(b, "; %.0f prompt tokens (%.0f cached), %.0f completion tokens", float64(s.Prompt)/told, float64(s.Cached)/told, float64(s.Completion)/told)
		if s.Told < s.Attempts {
			fmt.Fprintf(b, " over the %d attempts whose tokens are known", s.Told)
		}
	}
	fmt.Fprintf(b, "; %.0f s of work in %d sessions\n", r.Active, r.Sessions)
	if c := r.Cost; c != nil {
		fmt.Fprintf(b, "cost: %.4g, %.4g an attempt", c.Total, c.Each)
		if c.Resolved > 0 {
			fmt.Fprintf(b, ", %.4g a resolved one", c.Resolved)
		}
		fmt.Fprintf(b, " (per million tokens: %g input, %g output, %g cached)\n", c.Prices.Input, c.Prices.Output, c.Prices.Cached)
	}
	if r.Selected != nil {
		fmt.Fprintf(b, "selected: %s; %d tasks have none\n", r.Selected.Rule, r.Selected.Blind)
	}
}

// writeRepos is the table of repositories.
func writeRepos(b *strings.Builder, r *Result) error {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	priced := r.Cost != nil
	fmt.Fprintf(t, "repository\ttasks\tgraded\tlost\tpass@1\tpass@n\tturns\tseconds")
	if priced {
		fmt.Fprintf(t, "\tcost")
	}
	fmt.Fprintln(t)
	for i, row := range r.Repos {
		if i == maxRepos {
			fmt.Fprintf(t, "… and %d more in %s\n", len(r.Repos)-i, ResultFile)
			break
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.3f\t%.3f\t%.1f\t%.1f", row.Repo, row.Tasks, row.Graded, row.Lost, row.Rate, row.AtN, row.Turns, row.WallMean)
		switch {
		case priced && row.Cost != nil:
			fmt.Fprintf(t, "\t%.4g", *row.Cost)
		case priced:
			fmt.Fprintf(t, "\t?")
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// WriteComparison shows a comparison to a person.
func WriteComparison(w io.Writer, c *Comparison, asked []int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "A: %s on %s\nB: %s on %s\n", c.A.Model, c.A.Dataset.Source, c.B.Model, c.B.Dataset.Source)
	fmt.Fprintf(&b, "%d common tasks; left out: %d only in A, %d only in B, %d whose content differs\n", c.Common, c.OnlyA, c.OnlyB, len(c.Changed))
	for _, d := range c.Differ {
		fmt.Fprintf(&b, "  differs: %s\n", strings.Replace(d, ", now ", " in A, in B ", 1))
	}
	fmt.Fprintf(&b, "B is better on %d tasks, worse on %d, the same on %d\n\n", len(c.Better), len(c.Worse), c.Unchanged)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tA\tB\tB - A\t95 %% interval\ttasks\t\n")
	table := func(name string, list []Paired) {
		ks := make([]AtK, len(list))
		for i, p := range list {
			ks[i].K = p.K
		}
		for _, a := range shownK(ks, asked) {
			p := list[a.K-1]
			fmt.Fprintf(t, "%s@%d\t%.3f\t%.3f\t%+.3f\t%+.3f to %+.3f\t%d\t\n", name, p.K, p.A, p.B, p.Difference.Value, p.Difference.Low, p.Difference.High, p.Difference.Tasks)
		}
	}
	table("pass", c.PassAtK)
	table("score", c.ScoreAtK)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "(%s)\n", c.Method)
	_, err := io.WriteString(w, b.String())
	return err
}

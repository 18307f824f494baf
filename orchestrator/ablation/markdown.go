package ablation

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// grid is a table for people. align has a letter a column: l for text, r for numbers, which stand to the right.
type grid struct {
	head  []string
	align string
	rows  [][]string
}

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

// escape keeps a text inside its cell and free of mark-up.
var escape = strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;", "*", `\*`, "`", "\\`")

func (g grid) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "| %s |\n|", strings.Join(g.head, " | "))
	for _, a := range g.align {
		b.WriteString(map[rune]string{'l': "---|", 'r': "---:|"}[a])
	}
	b.WriteString("\n")
	for _, r := range g.rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(r, " | "))
	}
	b.WriteString("\n")
}

// WriteMarkdown writes the tables as Markdown.
func WriteMarkdown(w io.Writer, s Study, r Result) error {
	if err := r.of(s); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", escape.Replace(s.Name))
	if n := r.unfinished(); n != "" {
		fmt.Fprintf(&b, "> **%s.** Runs that have not ended enter no statistic.\n\n", n)
	}
	if r.Start != nil {
		fmt.Fprintf(&b, "Cold start: %s %% of %d held-out tasks resolved. ", rateOf(r.Start), r.Start.Tasks)
	}
	fmt.Fprintf(&b, "Reference arm: **%s**.\n\n", escape.Replace(s.Reference))
	mainTable(s, r, escape.Replace, code).markdown(&b)
	fmt.Fprintf(&b, "%s\n\n", escape.Replace(mainNote(s, r)))
	if len(r.Comparisons) > 0 {
		fmt.Fprintf(&b, "## Differences from %s\n\n", escape.Replace(s.Reference))
		comparisonTable(s, r, escape.Replace).markdown(&b)
	}
	b.WriteString("## Gain and learning speed\n\n")
	speedTable(s, r, escape.Replace).markdown(&b)
	b.WriteString("## Runs\n\n")
	runTable(s, escape.Replace).markdown(&b)
	if t := searchTable(s, escape.Replace); len(t.rows) > 0 {
		b.WriteString("## Search for the learning rate\n\n")
		t.markdown(&b)
	}
	if len(r.Warnings) > 0 {
		b.WriteString("## Warnings\n\n")
		for _, m := range r.Warnings {
			fmt.Fprintf(&b, "- %s\n", escape.Replace(m))
		}
		b.WriteString("\n")
	}
	b.WriteString("## Method\n\n")
	for _, p := range method(s, r) {
		fmt.Fprintf(&b, "- %s\n", escape.Replace(p))
	}
	if s.Command != "" {
		fmt.Fprintf(&b, "\nMade by:\n\n    %s\n", strings.ReplaceAll(s.Command, "\n", "\n    "))
	}
	_, err := io.WriteString(w, b.String())
	return milepost.Wrap("ablation: write Markdown", milepost.KindUnavailable, err)
}

// code marks a setting as code in a cell; a backtick has no place in one.
func code(s string) string {
	return "`" + strings.NewReplacer("`", "'", "|", `\|`, "\n", " ").Replace(s) + "`"
}

// mainTable is the one to look at first. text writes a name, set a setting, in the page's own mark-up.
func mainTable(s Study, r Result, text, set func(string) string) grid {
	level := s.Options.level()
	g := grid{align: "llrrrrrrrrrr", head: []string{"arm", "what it changes", "lr", "held-out final % [" + level + "]", "at equal tokens % [" + level + "]",
		"Δ at equal episodes [" + level + "]", "corrected p", "Δ at equal tokens [" + level + "]", "corrected p", "tokens (M)", "probes", "wall"}}
	for i, arm := range s.Arms {
		a := r.Arms[i]
		var settings []string
		for _, v := range arm.Settings {
			settings = append(settings, set(v))
		}
		about := strings.TrimSpace(text(arm.About) + " " + strings.Join(settings, " "))
		if about == "" {
			about = none
		}
		name := text(arm.Name)
		if a.Finished < a.Runs {
			name += fmt.Sprintf(" (%d of %d runs)", a.Finished, a.Runs)
		}
		cells := []string{name, about, learningRate(arm.Rate), rateOf(a.Final), rateOf(a.AtTokens)}
		for _, basis := range Bases {
			cells = append(cells, differenceCells(s, r, arm.Name, basis)...)
		}
		g.add(append(cells, costCells(a)...)...)
	}
	return g
}

// differenceCells are the difference and its corrected p.
func differenceCells(s Study, r Result, arm string, b Basis) []string {
	if arm == s.Reference {
		return []string{"reference", none}
	}
	c := r.Compare(arm, b)
	if c == nil {
		return []string{none, none}
	}
	return []string{gainOf(&c.Difference), probability(&c.Corrected)}
}

// costCells are tokens, probes and time; none without a finished run.
func costCells(a ArmResult) []string {
	if a.Finished == 0 {
		return []string{none, none, none}
	}
	return []string{millions(a.Cost.Tokens), strconv.FormatFloat(a.Cost.Probes, 'f', 0, 64), hours(a.Cost.Active)}
}

// comparisonTable has every comparison with both intervals and all p values.
func comparisonTable(s Study, r Result, text func(string) string) grid {
	level := s.Options.level()
	g := grid{align: "llrrrrrrrrrll", head: []string{"arm", "at equal", "seeds", "tasks", "Δ points", level + " bootstrap", level + " t over seeds", "p", "corrected p", "p of t", "corrected p of t", "per seed", "verdict"}}
	for _, c := range r.Comparisons {
		d := c.Difference
		var each []string
		for _, v := range d.PerSeed {
			each = append(each, points(v))
		}
		g.add(text(c.Arm), string(c.Basis), strconv.Itoa(len(d.Seeds)), strconv.Itoa(d.Tasks), points(d.Value), span(&d.Bootstrap), span(d.T),
			probability(&c.P), probability(&c.Corrected), probability(c.PT), probability(c.CorrectedT), strings.Join(each, " "), string(c.Verdict))
	}
	return g
}

// speedTable has what an arm gained and how soon.
func speedTable(s Study, r Result, text func(string) string) grid {
	level := s.Options.level()
	g := grid{align: "lrrrrrrr", head: []string{"arm", "gain over cold start [" + level + "]", "at equal episodes % [" + level + "]", "area over episodes %", "area over tokens %", "t over seeds, final %",
		"time to equal episodes", "× " + text(s.Reference) + " (per seed)"}}
	for i, a := range r.Arms {
		t := none
		if a.Final != nil {
			t = rateSpan(a.Final.T)
		}
		g.add(append([]string{text(a.Name), gainOf(a.Gain), rateOf(a.AtEpisodes), rateOf(a.AreaEpisodes), rateOf(a.AreaTokens), t}, paceCells(s, r, s.Arms[i])...)...)
	}
	return g
}

// runTable has every run, finished or not.
func runTable(s Study, text func(string) string) grid {
	g := grid{align: "lrrrrrrrl", head: []string{"arm", "seed", "final %", "updates", "episodes", "tokens (M)", "probes", "wall", "ended by"}}
	for _, a := range s.Arms {
		for _, r := range a.Runs {
			final, stop := none, text(r.Stop)
			if r.Final != nil {
				final = percent(meanOf(taskRates(*r.Final)))
			}
			if !r.Finished {
				stop = "unfinished"
			}
			g.add(text(a.Name), strconv.FormatInt(r.Seed, 10), final, strconv.Itoa(r.updates()), strconv.Itoa(r.Cost.Episodes), millions(float64(r.Cost.Tokens)),
				strconv.Itoa(r.Cost.Probes), hours(r.Cost.Active), stop)
		}
	}
	return g
}

// updates are the updates made.
func (r Run) updates() int {
	if len(r.Points) == 0 {
		return 0
	}
	return r.Points[len(r.Points)-1].Update
}

// searchTable has the trials of the search for the learning rate.
func searchTable(s Study, text func(string) string) grid {
	g := grid{align: "lrrrrl", head: []string{"arm", "lr", "seed", "score", "updates", "state"}}
	for _, a := range s.Arms {
		for _, t := range a.Search {
			g.add(text(a.Name), learningRate(t.Rate), strconv.FormatInt(t.Seed, 10), strconv.FormatFloat(t.Score, 'f', 4, 64), strconv.Itoa(t.Updates), t.state(a))
		}
	}
	return g
}

// state says whether a trial has ended and whether its rate was chosen.
func (t Trial) state(a Arm) string {
	switch {
	case !t.Finished:
		return "unfinished"
	case t.Rate == a.Rate:
		return "chosen"
	}
	return ""
}

package ablation

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator/chart"
)

//go:embed page.html.tmpl
var pageText string

//go:embed style.css
var styleText string

var page = template.Must(template.New("page").Parse(pageText))

// WriteHTML writes a page that needs nothing beside itself: tables, figures as SVG, how they were made.
func WriteHTML(w io.Writer, s Study, r Result) error {
	if err := r.of(s); err != nil {
		return err
	}
	plain := func(s string) string { return s }
	err := page.Execute(w, map[string]any{
		"S": s, "R": r, "Style": template.CSS(chart.Style + styleText), "Unfinished": r.unfinished(), "Start": rateOf(r.Start),
		"Main": mainTable(s, r, plain, plain).html(), "Comparisons": comparisonTable(s, r, plain).html(), "Speed": speedTable(s, r, plain).html(),
		"Runs": runTable(s, plain).html(), "Search": searchTable(s, plain).html(),
		"Overview": overview(s, r), "Multiples": multiples(s, r), "Differences": differences(s, r), "Finals": finals(s, r), "Costs": costs(s, r),
		"Caption": caption(s), "Note": mainNote(s, r), "Method": method(s, r),
	})
	return milepost.Wrap("ablation: write HTML", milepost.KindUnavailable, err)
}

// of refuses a result that is not the study's.
func (r Result) of(s Study) error {
	fits := len(r.Arms) == len(s.Arms) && r.Reference == s.Reference
	for i := 0; fits && i < len(s.Arms); i++ {
		fits = r.Arms[i].Name == s.Arms[i].Name
	}
	if !fits {
		return milepost.E("ablation: write", milepost.KindInvalid, "the result is of other arms than the study's; allowed: what Analyse made of this study")
	}
	return nil
}

// caption says what the curves are.
func caption(s Study) string {
	smooth := "not smoothed"
	if s.Options.Smooth > 1 {
		smooth = fmt.Sprintf("smoothed by a centred moving mean over %d updates, run by run, before they are averaged", s.Options.Smooth)
	}
	return "Lines are means over seeds, bands reach from the lowest to the highest seed. Held-out rates are measured values, at the mean token count of the seeds after that update; " +
		"training rates are the resolved share of an update's batch, " + smooth + ". A curve ends where the first of its runs ends; unfinished runs are drawn only for an arm without any finished one."
}

// htmlTable is a grid for the template.
type htmlTable struct {
	Head []htmlCell
	Rows [][]htmlCell
}

type htmlCell struct {
	Text  string
	Class string // num where the column is right-aligned; pos and neg for the verdicts
}

func (g grid) html() htmlTable {
	line := func(texts []string) []htmlCell {
		out := make([]htmlCell, len(texts))
		for i, t := range texts {
			out[i].Text = t
			switch {
			case g.align[i] == 'r':
				out[i].Class = "num"
			case Verdict(t) == Better:
				out[i].Class = "pos"
			case Verdict(t) == Worse:
				out[i].Class = "neg"
			}
		}
		return out
	}
	t := htmlTable{Head: line(g.head)}
	for _, r := range g.rows {
		t.Rows = append(t.Rows, line(r))
	}
	return t
}

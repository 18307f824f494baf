package ablation

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"

	"github.com/milepost-rl/milepost/orchestrator/chart"
)

// figure is a drawing with its words.
type figure struct {
	Title, Note string
	Legend      []legendItem
	SVG         template.HTML
}

type legendItem struct{ Class, Label string }

// palette is the number of colours in style.css; more arms share them.
const palette = 9

// class is the colour of an arm: ref for the reference, a0, a1, … for the others in their order.
func (s Study) class(name string) string {
	i := 0
	for _, a := range s.Arms {
		switch {
		case a.Name == name && name == s.Reference:
			return "ref"
		case a.Name == name:
			return fmt.Sprintf("a%d", i%palette)
		case a.Name != s.Reference:
			i++
		}
	}
	return "ref"
}

// updateLine and heldoutLine are an arm's curves; the horizontal axis is updates and million tokens.
func updateLine(s Study, a ArmResult, points []BandPoint, band bool) chart.Line {
	l := chart.Line{Label: a.Name, Class: s.class(a.Name), Band: band}
	for _, p := range points {
		l.Points = append(l.Points, chart.Point{X: float64(p.Update), Y: p.Mean, Low: p.Low, High: p.High})
	}
	return l
}

func heldoutLine(s Study, a ArmResult, band bool) chart.Line {
	l := chart.Line{Label: a.Name, Class: s.class(a.Name), Band: band}
	for _, p := range a.Heldout {
		l.Points = append(l.Points, chart.Point{X: p.Tokens / 1e6, Y: p.Mean, Low: p.Low, High: p.High})
	}
	return l
}

// curves are the held-out and the training curve of some arms, each a figure.
func curves(s Study, arms []ArmResult, title string, band bool, w, h float64) []figure {
	held := chart.Chart{Title: title + "held-out rate by M tokens", X: "million tokens", Fractions: true, W: w, H: h}
	train := chart.Chart{Title: title + "training rate by update", W: w, H: h}
	var legend []legendItem
	for _, a := range arms {
		held.Lines, train.Lines = append(held.Lines, heldoutLine(s, a, band)), append(train.Lines, updateLine(s, a, a.Train, band))
		legend = append(legend, legendItem{s.class(a.Name), a.Name})
	}
	return []figure{drawn(held, legend), drawn(train, legend)}
}

// drawn leaves the drawing out where there is nothing to draw.
func drawn(c chart.Chart, legend []legendItem) figure {
	f := figure{Title: c.Title, Legend: legend}
	if !c.Empty() {
		f.SVG = c.SVG()
	}
	return f
}

// overview shows the means of all arms together, and whether they still act.
func overview(s Study, r Result) []figure {
	const w, h = 520, 280
	edited := chart.Chart{Title: "episodes that changed anything, by update", W: w, H: h}
	var legend []legendItem
	for _, a := range r.Arms {
		edited.Lines = append(edited.Lines, updateLine(s, a, a.Edited, false))
		legend = append(legend, legendItem{s.class(a.Name), a.Name})
	}
	return append(curves(s, r.Arms, "", false, w, h), drawn(edited, legend))
}

// multiples show each arm with its band beside the reference with its own.
func multiples(s Study, r Result) []figure {
	var out []figure
	var ref []ArmResult
	for _, a := range r.Arms {
		if a.Name == s.Reference {
			ref = []ArmResult{a}
		}
	}
	for _, a := range r.Arms {
		if a.Name != s.Reference {
			out = append(out, curves(s, append([]ArmResult{a}, ref...), a.Name+": ", true, 0, 0)...)
		}
	}
	if len(out) == 0 {
		return curves(s, ref, "", true, 0, 0)
	}
	return out
}

// mark is a row of a forest plot: a value with a thick interval and, where there is one, a thin one.
type mark struct {
	label, class, text string
	value              float64
	inner              Interval
	outer              *Interval
	hollow             bool
}

// forest is a plot of estimates with intervals, one a row; values are rates or differences, shown in percent.
type forest struct {
	title string
	marks []mark
	at    *float64 // vertical line
	atIs  string   // what it stands for
}

// Size of a forest plot in its own units.
const (
	forestW, forestRow, forestL, forestR = 760.0, 24.0, 190.0, 170.0
)

// span covers the thick intervals, the line, and thin intervals as far as they do not dwarf these.
func (f forest) span() (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	if f.at != nil {
		lo, hi = *f.at, *f.at
	}
	for _, m := range f.marks {
		lo, hi = min(lo, m.inner.Low, m.value), max(hi, m.inner.High, m.value)
	}
	room := max(hi-lo, .02) / 2
	low, high := lo-room, hi+room
	for _, m := range f.marks {
		if m.outer != nil {
			lo, hi = min(lo, max(m.outer.Low, low)), max(hi, min(m.outer.High, high))
		}
	}
	if hi-lo < .02 {
		lo, hi = lo-.01, hi+.01
	}
	return lo, hi
}

// svg draws the plot; "" without marks.
func (f forest) svg() template.HTML {
	if len(f.marks) == 0 {
		return ""
	}
	lo, hi := f.span()
	ticks := chart.NiceTicks(lo, hi, 6)
	lo, hi = ticks[0], ticks[len(ticks)-1]
	x := func(v float64) float64 {
		return forestL + (forestW-forestL-forestR)*(min(max(v, lo), hi)-lo)/(hi-lo)
	}
	bottom := 6 + forestRow*float64(len(f.marks))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, forestW, bottom+22, html.EscapeString(f.title))
	for _, t := range ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="4" y2="%.1f"/><text class="tick" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`,
			x(t), x(t), bottom, x(t), bottom+14, minus(chart.Number(100*t)))
	}
	if f.at != nil {
		fmt.Fprintf(&b, `<line class="limit" x1="%.1f" x2="%.1f" y1="4" y2="%.1f"><title>%s</title></line>`, x(*f.at), x(*f.at), bottom, html.EscapeString(f.atIs))
	}
	for i, m := range f.marks {
		m.draw(&b, 6+forestRow*(float64(i)+.5), x)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

func (m mark) draw(b *strings.Builder, y float64, x func(float64) float64) {
	fmt.Fprintf(b, `<text class="rowlabel" x="%.1f" y="%.1f" text-anchor="end"><title>%s</title>%s</text>`, forestL-10, y+4, html.EscapeString(m.label), html.EscapeString(clip(m.label, 24)))
	if m.outer != nil {
		fmt.Fprintf(b, `<line class="outer %s" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, m.class, x(m.outer.Low), x(m.outer.High), y, y)
	}
	fmt.Fprintf(b, `<line class="inner %s" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, m.class, x(m.inner.Low), x(m.inner.High), y, y)
	shape := "dot"
	if m.hollow {
		shape = "hollow"
	}
	fmt.Fprintf(b, `<circle class="%s %s" cx="%.1f" cy="%.1f" r="4.5"><title>%s: %s</title></circle>`, shape, m.class, x(m.value), y, html.EscapeString(m.label), html.EscapeString(m.text))
	fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%.1f">%s</text>`, forestW-forestR+10, y+4, html.EscapeString(m.text))
}

// clip shortens a label to what fits beside a plot.
func clip(s string, runes int) string {
	r := []rune(s)
	if len(r) <= runes {
		return s
	}
	return string(r[:runes-1]) + "…"
}

// differences is the forest plot of all comparisons.
func differences(s Study, r Result) figure {
	zero := 0.0
	f := forest{title: "Difference from " + s.Reference + ", percentage points", at: &zero, atIs: "no difference"}
	for _, arm := range s.Arms {
		for _, b := range Bases {
			if c := r.Compare(arm.Name, b); c != nil {
				f.marks = append(f.marks, mark{label: arm.Name, class: s.class(arm.Name), value: c.Difference.Value, inner: c.Difference.Bootstrap, outer: c.Difference.T,
					hollow: b == AtTokens, text: fmt.Sprintf("%s, p %s", gainOf(&c.Difference), probability(&c.Corrected))})
			}
		}
	}
	return figure{Title: f.title, SVG: f.svg(), Note: fmt.Sprintf("Full dots: at %d training episodes; hollow dots: at %s M sampled tokens. Thick: %s two-level bootstrap; thin: %s t interval over seeds, cut where it leaves the axis. p is corrected.",
		r.Episodes, millions(float64(r.Tokens)), s.Options.level(), s.Options.level())}
}

// finals is the forest plot of the final rates.
func finals(s Study, r Result) figure {
	f := forest{title: "Held-out rate after training, percent"}
	note := "Thick: " + s.Options.level() + " two-level bootstrap; thin: t interval over seeds, cut where it leaves the axis."
	if r.Start != nil {
		f.at, f.atIs = &r.Start.Value, "cold start"
		note += " Dashed: the cold start, " + rateOf(r.Start) + "."
	}
	for _, a := range r.Arms {
		if a.Final != nil {
			f.marks = append(f.marks, mark{label: a.Name, class: s.class(a.Name), value: a.Final.Value, inner: a.Final.Bootstrap, outer: a.Final.T, text: rateOf(a.Final)})
		}
	}
	return figure{Title: f.title, Note: note, SVG: f.svg()}
}

package ablation

import (
	"fmt"
	"html"
	"html/template"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost/orchestrator/chart"
)

// costs are a bar chart each for tokens, probes and time.
func costs(s Study, r Result) []figure {
	type kind struct {
		title string
		of    func(MeanCost) float64
		text  func(MeanCost) string
	}
	var out []figure
	for _, k := range []kind{
		{"Sampled training tokens, millions a run", func(c MeanCost) float64 { return c.Tokens / 1e6 }, func(c MeanCost) string { return millions(c.Tokens) }},
		{"Step probes a run", func(c MeanCost) float64 { return c.Probes }, func(c MeanCost) string { return strconv.FormatFloat(c.Probes, 'f', 0, 64) }},
		{"Wall-clock time, hours a run", func(c MeanCost) float64 { return c.Active / 3600 }, func(c MeanCost) string { return hours(c.Active) }},
	} {
		var rows []costRow
		for _, a := range r.Arms {
			if a.Finished > 0 {
				rows = append(rows, costRow{a.Name, s.class(a.Name), k.text(a.Cost), k.of(a.Cost)})
			}
		}
		out = append(out, figure{Title: k.title, SVG: costBars(k.title, rows)})
	}
	return out
}

type costRow struct {
	label, class, text string
	value              float64
}

// costBars draws a bar a row from 0; "" without rows.
func costBars(title string, rows []costRow) template.HTML {
	if len(rows) == 0 {
		return ""
	}
	const w, rowH, left, right = 380.0, 22.0, 130.0, 56.0
	top := 0.0
	for _, r := range rows {
		top = max(top, r.value)
	}
	if top == 0 {
		top = 1
	}
	ticks := chart.NiceTicks(0, top, 3)
	x := func(v float64) float64 { return left + (w-left-right)*v/ticks[len(ticks)-1] }
	bottom := 4 + rowH*float64(len(rows))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, w, bottom+20, html.EscapeString(title))
	for _, t := range ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="2" y2="%.1f"/><text class="tick" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, x(t), x(t), bottom, x(t), bottom+13, chart.Number(t))
	}
	for i, r := range rows {
		y := 4 + rowH*float64(i)
		fmt.Fprintf(&b, `<text class="barlabel" x="%.1f" y="%.1f" text-anchor="end"><title>%s</title>%s</text>`, left-8, y+14, html.EscapeString(r.label), html.EscapeString(clip(r.label, 20)))
		fmt.Fprintf(&b, `<rect class="bar %s" x="%.1f" y="%.1f" width="%.1f" height="14" rx="2"/><text class="tick" x="%.1f" y="%.1f">%s</text>`, r.class, left, y+3, x(r.value)-left, x(r.value)+6, y+14, r.text)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

package report

import (
	"fmt"
	"html/template"
	"strings"

	"github.com/milepost-rl/milepost/orchestrator/chart"
)

// figure draws the held-out rates with their intervals on one axis; "" without an evaluation.
func (h Heldout) figure() template.HTML {
	type bar struct {
		label           string
		rate, low, high float64
		class           int
	}
	var rows []bar
	top := 0.0
	if h.Before != nil {
		rows = append(rows, bar{"before", h.Before.Rate, h.Before.Low, h.Before.High, 4})
		top = max(top, h.Before.High)
	}
	if h.After != nil {
		rows = append(rows, bar{"after", h.After.Rate, h.After.Low, h.After.High, 0})
		top = max(top, h.After.High)
	}
	if len(rows) == 0 {
		return ""
	}
	const w, rowH, left, right = 560.0, 34.0, 56.0, 16.0
	ticks := chart.NiceTicks(0, max(top, .05), 5)
	top = ticks[len(ticks)-1]
	height := rowH*float64(len(rows)) + 28
	x := func(v float64) float64 { return left + (w-left-right)*v/top }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="Resolved rate on held-out tasks with 95 %% intervals">`, w, height)
	for _, t := range ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="4" y2="%.1f"/><text class="tick" x="%.1f" y="%.1f" text-anchor="middle">%s %%</text>`,
			x(t), x(t), height-22, x(t), height-7, chart.Number(100*t))
	}
	for i, r := range rows {
		y := rowH*(float64(i)+.5) + 4
		fmt.Fprintf(&b, `<text class="rowlabel" x="%.1f" y="%.1f" text-anchor="end">%s</text>`, left-10, y+4, r.label)
		fmt.Fprintf(&b, `<rect class="fill s%d" x="%.1f" y="%.1f" width="%.1f" height="16" rx="2"><title>%s</title></rect>`, r.class, x(0), y-8, x(r.rate)-x(0), rate(r.rate))
		fmt.Fprintf(&b, `<path class="interval" d="M%.1f %.1fH%.1fM%.1f %.1fv12M%.1f %.1fv12"/>`, x(r.low), y, x(r.high), x(r.low), y-6, x(r.high), y-6)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

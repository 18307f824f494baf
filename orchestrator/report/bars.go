package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"

	"github.com/milepost-rl/milepost/orchestrator/chart"
)

// bars is the chart of the time of each update, stacked by its parts.
type bars struct {
	labels []string
	rows   []barRow
}

type barRow struct {
	update int
	parts  []float64 // seconds, as long as labels
}

func (d *Data) bars() bars {
	var out bars
	for _, t := range timings {
		out.labels = append(out.labels, t.label)
	}
	for _, m := range d.Metrics {
		row := barRow{update: m.Update, parts: make([]float64, len(timings))}
		for i, t := range timings {
			row.parts[i] = m.Values[t.metric]
		}
		out.rows = append(out.rows, row)
	}
	return out
}

// Empty reports whether there is nothing to draw.
func (b bars) Empty() bool { return len(b.rows) == 0 }

// Legend names each part with its mean and its share of the whole.
func (b bars) Legend() []string {
	sums, total := make([]float64, len(b.labels)), 0.0
	for _, r := range b.rows {
		for i, v := range r.parts {
			sums[i] += v
			total += v
		}
	}
	out := make([]string, len(b.labels))
	for i, l := range b.labels {
		share := 0.0
		if total > 0 {
			share = 100 * sums[i] / total
		}
		out[i] = fmt.Sprintf("%s: mean %s s, %.0f %%", l, chart.Number(sums[i]/float64(max(1, len(b.rows)))), share)
	}
	return out
}

// Size of the chart in its own units, its margins for the axes, and about how many marks its vertical axis has.
const (
	barsW, barsH                       = 1040.0, 220.0
	marginL, marginR, marginT, marginB = 46.0, 12.0, 10.0, 22.0
	yTicks                             = 4
)

// SVG draws one bar an update.
func (b bars) SVG() template.HTML {
	top := 0.0
	for _, r := range b.rows {
		sum := 0.0
		for _, v := range r.parts {
			sum += v
		}
		top = max(top, sum)
	}
	if top == 0 {
		top = 1
	}
	ticks := chart.NiceTicks(0, top, yTicks)
	top = ticks[len(ticks)-1]
	height := barsH - marginT - marginB
	y := func(v float64) float64 { return marginT + height*(1-v/top) }
	var s strings.Builder
	fmt.Fprintf(&s, `<svg viewBox="0 0 %g %g" role="img" aria-label="Time of each update">`, barsW, barsH)
	for _, t := range ticks {
		fmt.Fprintf(&s, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text class="tick" x="%g" y="%.1f" text-anchor="end">%s s</text>`,
			marginL, barsW-marginR, y(t), y(t), marginL-6, y(t)+3.5, chart.Number(t))
	}
	slot := (barsW - marginL - marginR) / float64(max(1, len(b.rows)))
	width := min(slot*.72, 46)
	every := int(math.Ceil(float64(len(b.rows)) / 40))
	for i, r := range b.rows {
		x := marginL + slot*(float64(i)+.5)
		sum := 0.0
		for k, v := range r.parts {
			fmt.Fprintf(&s, `<rect class="fill s%d" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>update %d, %s: %s s</title></rect>`,
				k, x-width/2, y(sum+v), width, y(sum)-y(sum+v), r.update, b.labels[k], chart.Number(v))
			sum += v
		}
		if i%every == 0 {
			fmt.Fprintf(&s, `<text class="tick" x="%.1f" y="%.1f" text-anchor="middle">%d</text>`, x, barsH-6, r.update)
		}
	}
	s.WriteString("</svg>")
	return template.HTML(s.String())
}

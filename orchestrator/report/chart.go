package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// point is one value; low and high are drawn as a whisker where whisker is set.
type point struct {
	x, y, low, high float64
	whisker         bool
}

// line is one curve of a chart.
type line struct {
	label  string
	points []point
}

// chart is a small line chart. Its colours are classes that style.css resolves, so that it follows the page's theme.
type chart struct {
	title, note string
	lines       []line
	limit       *float64 // border of the healthy range, drawn where it falls into the chart
	log, share  bool
}

// Size of a chart in its own units, and of the margins for the axes.
const (
	chartW, chartH                     = 340.0, 170.0
	marginL, marginR, marginT, marginB = 46.0, 12.0, 10.0, 22.0
	plotW, plotH                       = chartW - marginL - marginR, chartH - marginT - marginB
	logFloor                           = 1e-12 // a logarithmic axis shows smaller values here
	yTicks                             = 4
	xTicks                             = 6
)

// Title, Note and Empty are for the template.
func (c chart) Title() string { return c.title }

// Note is the chart's subtitle.
func (c chart) Note() string { return c.note }

// Empty reports whether there is nothing to draw.
func (c chart) Empty() bool {
	for _, l := range c.lines {
		if len(l.points) > 0 {
			return false
		}
	}
	return true
}

// Last is the last value of the first line, for people.
func (c chart) Last() string {
	if len(c.lines) == 0 || len(c.lines[0].points) == 0 {
		return ""
	}
	p := c.lines[0].points
	return number(p[len(p)-1].y)
}

// Legend names the lines; empty for a single one.
func (c chart) Legend() []string {
	var out []string
	for _, l := range c.lines {
		if l.label != "" {
			out = append(out, l.label)
		}
	}
	return out
}

// SVG draws the chart.
func (c chart) SVG() template.HTML {
	a := c.axes()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartW, chartH, html.EscapeString(c.title))
	a.draw(&b)
	if c.limit != nil && *c.limit >= a.y0 && *c.limit <= a.y1 {
		y := a.y(*c.limit)
		fmt.Fprintf(&b, `<line class="limit" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"><title>border of the healthy range: %s</title></line>`, marginL, chartW-marginR, y, y, number(*c.limit))
	}
	for i := len(c.lines) - 1; i >= 0; i-- {
		c.lines[i].draw(&b, a, i)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

func (l line) draw(b *strings.Builder, a axes, i int) {
	var path strings.Builder
	for _, p := range l.points {
		fmt.Fprintf(&path, "%.1f,%.1f ", a.x(p.x), a.y(p.y))
	}
	fmt.Fprintf(b, `<polyline class="line s%d" points="%s"/>`, i, strings.TrimSpace(path.String()))
	for _, p := range l.points {
		x, y := a.x(p.x), a.y(p.y)
		text := fmt.Sprintf("update %g: %s", p.x, number(p.y))
		if l.label != "" {
			text = l.label + ", " + text
		}
		if p.whisker {
			fmt.Fprintf(b, `<line class="whisker s%d" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, i, x, x, a.y(p.low), a.y(p.high))
			text += fmt.Sprintf(" (%s to %s)", number(p.low), number(p.high))
		}
		fmt.Fprintf(b, `<circle class="dot s%d" cx="%.1f" cy="%.1f" r="%g"><title>%s</title></circle>`, i, x, y, dotSize(len(l.points)), html.EscapeString(text))
	}
}

func dotSize(n int) float64 {
	if n > 60 {
		return 1.4
	}
	return 2.4
}

// axes maps values to the chart.
type axes struct {
	x0, x1, y0, y1 float64
	log            bool
	ticks          []float64
}

// axes spans the chart over all its points. A linear axis of values that are never negative begins at 0.
func (c chart) axes() axes {
	a := axes{x0: math.Inf(1), x1: math.Inf(-1), y0: math.Inf(1), y1: math.Inf(-1), log: c.log}
	for _, l := range c.lines {
		for _, p := range l.points {
			a.x0, a.x1 = min(a.x0, p.x), max(a.x1, p.x)
			a.y0, a.y1 = min(a.y0, p.y), max(a.y1, p.y)
			if p.whisker {
				a.y0, a.y1 = min(a.y0, p.low), max(a.y1, p.high)
			}
		}
	}
	if a.x0 > a.x1 {
		a.x0, a.x1, a.y0, a.y1 = 0, 1, 0, 1
	}
	if a.x0 == a.x1 {
		a.x0, a.x1 = a.x0-1, a.x1+1
	}
	switch {
	case c.log:
		a.y0 = math.Pow(10, math.Floor(math.Log10(max(a.y0, logFloor))))
		a.y1 = math.Pow(10, math.Ceil(math.Log10(max(a.y1, logFloor))))
		if a.y0 == a.y1 {
			a.y1 = a.y0 * 10
		}
		a.ticks = decades(a.y0, a.y1)
	default:
		a.y0 = min(a.y0, 0)
		if c.share && a.y1 > .5 {
			a.y1 = max(a.y1, 1)
		}
		if a.y0 == a.y1 {
			a.y1 = a.y0 + 1
		}
		a.ticks = niceTicks(a.y0, a.y1, yTicks)
		a.y0, a.y1 = min(a.y0, a.ticks[0]), max(a.y1, a.ticks[len(a.ticks)-1])
	}
	return a
}

func (a axes) x(v float64) float64 { return marginL + plotW*(v-a.x0)/(a.x1-a.x0) }

func (a axes) y(v float64) float64 {
	lo, hi := a.y0, a.y1
	if a.log {
		v, lo, hi = math.Log10(max(v, logFloor)), math.Log10(lo), math.Log10(hi)
	}
	return marginT + plotH*(1-(v-lo)/(hi-lo))
}

func (a axes) draw(b *strings.Builder) {
	for _, t := range a.ticks {
		y := a.y(t)
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/><text class="tick" x="%.1f" y="%.1f" text-anchor="end">%s</text>`,
			marginL, chartW-marginR, y, y, marginL-6, y+3.5, number(t))
	}
	for _, t := range niceTicks(a.x0, a.x1, xTicks) {
		if t < a.x0 || t > a.x1 || t != math.Trunc(t) {
			continue
		}
		fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%.1f" text-anchor="middle">%g</text>`, a.x(t), chartH-6, t)
	}
}

// niceTicks covers lo..hi with about n steps of 1, 2, 2.5 or 5 times a power of ten; both ends are covered.
func niceTicks(lo, hi float64, n int) []float64 {
	raw := (hi - lo) / float64(n)
	mag := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * mag
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*mag >= raw*(1-1e-9) {
			step = m * mag
			break
		}
	}
	var out []float64
	for i := math.Floor(lo/step + 1e-9); ; i++ {
		out = append(out, i*step)
		if i*step >= hi-step*1e-9 {
			return out
		}
	}
}

// decades are the powers of ten of lo..hi, thinned out to at most six.
func decades(lo, hi float64) []float64 {
	l, h := int(math.Round(math.Log10(lo))), int(math.Round(math.Log10(hi)))
	step := (h-l)/6 + 1
	var out []float64
	for e := l; e <= h; e += step {
		out = append(out, math.Pow(10, float64(e)))
	}
	return out
}

// number is a value for people: three significant digits, no trailing zeros, scientific where that is shorter.
func number(v float64) string {
	a := math.Abs(v)
	switch {
	case a < 1e-15:
		return "0"
	case a >= 1e6 || a < 1e-3:
		m, e, _ := strings.Cut(strconv.FormatFloat(v, 'e', 2, 64), "e")
		m = strings.TrimSuffix(strings.TrimRight(m, "0"), ".")
		n, _ := strconv.Atoi(e) // an exponent that FormatFloat wrote
		return fmt.Sprintf("%se%d", m, n)
	case a >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	digits := max(0, 2-int(math.Floor(math.Log10(a))))
	s := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	return s
}

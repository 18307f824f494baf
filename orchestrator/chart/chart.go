package chart

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Point is one value; Low and High are drawn as a whisker or as the edge of the line's band where those are on.
type Point struct {
	X, Y, Low, High float64
	Whisker         bool
}

// Line is one curve of a chart. Its colour is class s0, s1, … by its place in the chart, or Class.
type Line struct {
	Label  string
	Class  string
	Band   bool // fill from Low to High
	Points []Point
}

// Chart is a small line chart. Its colours are classes that style.css resolves, so that it follows the page's theme.
type Chart struct {
	Title, Note string
	Lines       []Line
	Limit       *float64 // border of the healthy range, drawn where it falls into the chart
	Log         bool     // logarithmic vertical axis
	Share       bool     // values above one half widen the axis to 1
	X           string   // what the horizontal axis counts, for tooltips; "" is update
	Fractions   bool     // the horizontal axis may be marked between whole numbers
	W, H        float64  // size in the chart's own units; 0 is 340 by 170
}

// Size of a chart in its own units where it sets none, and of the margins for the axes.
const (
	chartW, chartH                     = 340.0, 170.0
	marginL, marginR, marginT, marginB = 46.0, 12.0, 10.0, 22.0
	logFloor                           = 1e-12 // a logarithmic axis shows smaller values here
	yTicks                             = 4
	xTicks                             = 6
)

// Empty reports whether there is nothing to draw.
func (c Chart) Empty() bool {
	for _, l := range c.Lines {
		if len(l.Points) > 0 {
			return false
		}
	}
	return true
}

// Last is the last value of the first line, for people.
func (c Chart) Last() string {
	if len(c.Lines) == 0 || len(c.Lines[0].Points) == 0 {
		return ""
	}
	p := c.Lines[0].Points
	return Number(p[len(p)-1].Y)
}

// Legend names the lines; empty for a single one.
func (c Chart) Legend() []string {
	var out []string
	for _, l := range c.Lines {
		if l.Label != "" {
			out = append(out, l.Label)
		}
	}
	return out
}

// SVG draws the chart.
func (c Chart) SVG() template.HTML {
	a := c.axes()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, a.w, a.h, html.EscapeString(c.Title))
	a.draw(&b)
	if c.Limit != nil && *c.Limit >= a.y0 && *c.Limit <= a.y1 {
		y := a.y(*c.Limit)
		fmt.Fprintf(&b, `<line class="limit" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"><title>border of the healthy range: %s</title></line>`, marginL, a.w-marginR, y, y, Number(*c.Limit))
	}
	for i, l := range slices.Backward(c.Lines) {
		l.drawBand(&b, a, l.class(i))
	}
	for i, l := range slices.Backward(c.Lines) {
		l.draw(&b, a, l.class(i), c.x())
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// x is the word for the horizontal axis.
func (c Chart) x() string {
	if c.X == "" {
		return "update"
	}
	return c.X
}

func (l Line) class(i int) string {
	if l.Class == "" {
		return fmt.Sprintf("s%d", i)
	}
	return l.Class
}

// drawBand fills the line's band, below every line.
func (l Line) drawBand(b *strings.Builder, a axes, class string) {
	if !l.Band || len(l.Points) == 0 {
		return
	}
	var path []string
	for _, p := range l.Points {
		path = append(path, fmt.Sprintf("%.1f,%.1f", a.x(p.X), a.y(p.High)))
	}
	for _, p := range slices.Backward(l.Points) {
		path = append(path, fmt.Sprintf("%.1f,%.1f", a.x(p.X), a.y(p.Low)))
	}
	fmt.Fprintf(b, `<polygon class="band %s" points="%s"/>`, class, strings.Join(path, " "))
}

func (l Line) draw(b *strings.Builder, a axes, class, xName string) {
	var path strings.Builder
	for _, p := range l.Points {
		fmt.Fprintf(&path, "%.1f,%.1f ", a.x(p.X), a.y(p.Y))
	}
	fmt.Fprintf(b, `<polyline class="line %s" points="%s"/>`, class, strings.TrimSpace(path.String()))
	for _, p := range l.Points {
		x, y := a.x(p.X), a.y(p.Y)
		text := fmt.Sprintf("%s %.6g: %s", xName, p.X, Number(p.Y))
		if l.Label != "" {
			text = l.Label + ", " + text
		}
		if p.Whisker {
			fmt.Fprintf(b, `<line class="whisker %s" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, class, x, x, a.y(p.Low), a.y(p.High))
		}
		if p.Whisker || l.Band {
			text += fmt.Sprintf(" (%s to %s)", Number(p.Low), Number(p.High))
		}
		fmt.Fprintf(b, `<circle class="dot %s" cx="%.1f" cy="%.1f" r="%g"><title>%s</title></circle>`, class, x, y, dotSize(len(l.Points)), html.EscapeString(text))
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
	w, h           float64 // of the chart
	log            bool
	fractions      bool // marks between whole numbers of x
	ticks          []float64
}

// axes spans the chart over all its points. A linear axis of values that are never negative begins at 0.
func (c Chart) axes() axes {
	a := axes{x0: math.Inf(1), x1: math.Inf(-1), y0: math.Inf(1), y1: math.Inf(-1), log: c.Log, fractions: c.Fractions, w: cmp.Or(c.W, chartW), h: cmp.Or(c.H, chartH)}
	for _, l := range c.Lines {
		for _, p := range l.Points {
			a.x0, a.x1 = min(a.x0, p.X), max(a.x1, p.X)
			a.y0, a.y1 = min(a.y0, p.Y), max(a.y1, p.Y)
			if p.Whisker || l.Band {
				a.y0, a.y1 = min(a.y0, p.Low), max(a.y1, p.High)
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
	case c.Log:
		a.y0 = math.Pow(10, math.Floor(math.Log10(max(a.y0, logFloor))))
		a.y1 = math.Pow(10, math.Ceil(math.Log10(max(a.y1, logFloor))))
		if a.y0 == a.y1 {
			a.y1 = a.y0 * 10
		}
		a.ticks = decades(a.y0, a.y1)
	default:
		a.y0 = min(a.y0, 0)
		if c.Share && a.y1 > .5 {
			a.y1 = max(a.y1, 1)
		}
		if a.y0 == a.y1 {
			a.y1 = a.y0 + 1
		}
		a.ticks = NiceTicks(a.y0, a.y1, yTicks)
		a.y0, a.y1 = min(a.y0, a.ticks[0]), max(a.y1, a.ticks[len(a.ticks)-1])
	}
	return a
}

func (a axes) x(v float64) float64 { return marginL + (a.w-marginL-marginR)*(v-a.x0)/(a.x1-a.x0) }

func (a axes) y(v float64) float64 {
	lo, hi := a.y0, a.y1
	if a.log {
		v, lo, hi = math.Log10(max(v, logFloor)), math.Log10(lo), math.Log10(hi)
	}
	return marginT + (a.h-marginT-marginB)*(1-(v-lo)/(hi-lo))
}

func (a axes) draw(b *strings.Builder) {
	for _, t := range a.ticks {
		y := a.y(t)
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/><text class="tick" x="%.1f" y="%.1f" text-anchor="end">%s</text>`,
			marginL, a.w-marginR, y, y, marginL-6, y+3.5, Number(t))
	}
	for _, t := range NiceTicks(a.x0, a.x1, xTicks) {
		if t < a.x0 || t > a.x1 || !a.fractions && t != math.Trunc(t) {
			continue
		}
		mark := fmt.Sprintf("%g", t)
		if a.fractions {
			mark = Number(t)
		}
		fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, a.x(t), a.h-6, mark)
	}
}

// NiceTicks covers lo..hi with about n steps of 1, 2, 2.5 or 5 times a power of ten; both ends are covered.
func NiceTicks(lo, hi float64, n int) []float64 {
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

// Number is a value for people: three significant digits, no trailing zeros, scientific where that is shorter.
func Number(v float64) string {
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

package explain

import (
	"fmt"
	"io"
	"strings"

	"github.com/mattn/go-runewidth"

	milepost "github.com/milepost-rl/milepost"
)

// Widths of the terminal in columns. A narrower terminal than MinWidth gets lines of MinWidth.
const (
	MinWidth     = 72
	DefaultWidth = 120 // where the output is no terminal
)

// Layout is how the table is printed.
type Layout struct {
	Width int  // columns; at least MinWidth
	Color bool // ANSI colours
}

// mostNames is how many tests or files a line of the table names.
const mostNames = 8

// colours of the terminal.
const (
	green, red, faint, bold = "32", "31", "2", "1"
)

// printer collects lines of at most width columns. What it prints holds no control characters: every text of the agent
// went through flat.
type printer struct {
	Layout
	out strings.Builder
}

// Print writes the explanation as a table for a terminal.
func (e *Episode) Print(w io.Writer, l Layout) error {
	l.Width = max(l.Width, MinWidth)
	p := &printer{Layout: l}
	p.facts(e.Header())
	p.out.WriteByte('\n')
	if len(e.Steps) > 0 {
		p.table(e.Steps)
	}
	p.facts(e.Footer())
	_, err := io.WriteString(w, p.out.String())
	return milepost.Wrap("explain: print", milepost.KindUnavailable, err)
}

// facts prints labels in a column of their own and the lines wrapped beside them.
func (p *printer) facts(facts []Fact) {
	const indent = 10
	for _, f := range facts {
		label := f.Label
		for _, l := range f.Lines {
			for _, part := range wrap(flat(l), p.Width-indent) {
				p.out.WriteString(p.paint(bold, runewidth.FillRight(label, indent)) + part + "\n")
				label = ""
			}
		}
	}
}

// columns are the numbers of the table.
var columns = []struct {
	name  string
	value func(milepost.StepCredit) float64
}{
	{"φver", func(c milepost.StepCredit) float64 { return c.PhiVer }}, {"φnav", func(c milepost.StepCredit) float64 { return c.PhiNav }},
	{"r", func(c milepost.StepCredit) float64 { return c.R }}, {"b", func(c milepost.StepCredit) float64 { return c.B }},
	{"f", func(c milepost.StepCredit) float64 { return c.F }}, {"p", func(c milepost.StepCredit) float64 { return c.P }},
	{"A_out", func(c milepost.StepCredit) float64 { return c.AOut }}, {"A", func(c milepost.StepCredit) float64 { return c.Advantage }},
}

// table prints one row a step: the action and the numbers, then what it exposed, changed, fixed and broke.
func (p *printer) table(steps []Step) {
	cells, widths := make([][]string, len(steps)), make([]int, len(columns))
	total := 0
	for k, c := range columns {
		widths[k] = runewidth.StringWidth(c.name)
		for t := range steps {
			cells[t] = append(cells[t], Cell(c.value(steps[t].Credit)))
			widths[k] = max(widths[k], runewidth.StringWidth(cells[t][k]))
		}
		total += widths[k] + 1
	}
	index := max(2, len(fmt.Sprint(len(steps)-1)))
	action := max(p.Width-total-index-1, 12)
	head := runewidth.FillLeft("#", index) + " " + runewidth.FillRight("action", action)
	for k, c := range columns {
		head += " " + runewidth.FillLeft(c.name, widths[k])
	}
	p.out.WriteString(p.paint(bold, head) + "\n")
	for t := range steps {
		s := &steps[t]
		lines := wrap(s.Tool+" "+s.Arguments, action)
		p.out.WriteString(runewidth.FillLeft(fmt.Sprint(s.Index), index) + " " + runewidth.FillRight(lines[0], action))
		for k, c := range columns {
			p.out.WriteString(" " + p.signed(c.value(s.Credit), runewidth.FillLeft(cells[t][k], widths[k])))
		}
		p.out.WriteByte('\n')
		for _, l := range lines[1:min(len(lines), 3)] {
			p.out.WriteString(strings.Repeat(" ", index+1) + l + "\n")
		}
		p.details(s, index+1)
	}
	p.out.WriteByte('\n')
}

// details prints the lines below a row.
func (p *printer) details(s *Step, indent int) {
	var shown []string
	for _, x := range s.Exposed {
		text := string(x.Level) + " " + x.Path
		if !x.Counted {
			text += " (not counted)"
		}
		shown = append(shown, text)
	}
	for _, l := range []struct{ color, label, text string }{
		{red, "not valid", s.Violation},
		{"", "exposed", some(shown)},
		{"", "changed", some(s.Changed)},
		{p.trust(s), "probe", s.Probe},
		{green, "fixed", named(s.Fixed)},
		{red, "broken", named(s.Broken)},
		{faint, "note", strings.Join(s.Notes, "; ")},
	} {
		if l.text == "" {
			continue
		}
		const label = 10
		lead := runewidth.FillRight(l.label, label)
		for _, part := range wrap(l.text, p.Width-indent-2-label) {
			p.out.WriteString(strings.Repeat(" ", indent+2) + p.paint(l.color, lead+part) + "\n")
			lead = strings.Repeat(" ", label)
		}
	}
}

// trust is the colour of what a probe found.
func (p *printer) trust(s *Step) string {
	if s.Note.Probed && !s.Note.Trusted {
		return red
	}
	return ""
}

// named counts tests and names them by the ends of their ids.
func named(tests []string) string {
	if len(tests) == 0 {
		return ""
	}
	short := make([]string, len(tests))
	for i, t := range tests {
		short[i] = shorten(t)
	}
	return fmt.Sprintf("%d: %s", len(tests), some(short))
}

// shorten keeps the end of a test id, which tells tests apart.
func shorten(test string) string {
	const most = 48
	if runewidth.StringWidth(test) <= most {
		return test
	}
	return runewidth.TruncateLeft(test, runewidth.StringWidth(test)-most+1, "…")
}

// some joins texts, at most mostNames of them.
func some(texts []string) string {
	if len(texts) > mostNames {
		return strings.Join(texts[:mostNames], ", ") + fmt.Sprintf(" and %d more", len(texts)-mostNames)
	}
	return strings.Join(texts, ", ")
}

// Cell is a credit value with its sign; a dot stands for zero, so that what moves catches the eye.
func Cell(v float64) string {
	if v < 5e-4 && v > -5e-4 {
		return "·"
	}
	return strings.Replace(fmt.Sprintf("%+.3f", v), "-", "−", 1)
}

func (p *printer) signed(v float64, text string) string {
	switch {
	case v >= 5e-4:
		return p.paint(green, text)
	case v <= -5e-4:
		return p.paint(red, text)
	}
	return p.paint(faint, text)
}

// paint colours a text where the output is coloured.
func (p *printer) paint(code, text string) string {
	if !p.Color || code == "" || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// wrap breaks a text of one line at its spaces into lines of at most width columns; a longer word is broken where it
// must. The result has at least one line.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
		case runewidth.StringWidth(line)+1+runewidth.StringWidth(word) <= width:
			line += " " + word
			continue
		default:
			lines = append(lines, line)
		}
		parts := strings.Split(runewidth.Wrap(word, width), "\n")
		lines, line = append(lines, parts[:len(parts)-1]...), parts[len(parts)-1]
	}
	return append(lines, line)
}

package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/chart"
	"github.com/milepost-rl/milepost/orchestrator/explain"
)

//go:embed page.html.tmpl
var pageText string

//go:embed style.css
var styleText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"rate": rate, "signed": signed, "number": chart.Number, "credit": explain.Cell, "line": explain.OneLine, "full": func(s string) string { return explain.Clip(s, fullLimit) }, "sign": signClass, "duration": duration,
	"bytes": byteSize, "diff": diffLines, "join": strings.Join, "base": filepath.Base, "shape": shape,
	"metric": func(m map[string]float64, name string) string {
		v, ok := m[name]
		if !ok {
			return "–"
		}
		return chart.Number(v)
	},
}).Parse(pageText))

// Write renders the report of a run folder to path, whole or not at all; path "" is report.html in the folder.
func Write(f *orchestrator.Folder, path string) error {
	const op = "report: write"
	d, err := Load(f)
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	if err := d.Render(&buf); err != nil {
		return err
	}
	if path == "" {
		path = f.Path("report.html")
	}
	return milepost.Wrap(op, milepost.KindUnavailable, orchestrator.WriteWhole(path, buf.Bytes()))
}

// Render writes the page.
func (d *Data) Render(w io.Writer) error {
	type shownPanel struct {
		Title  string
		Charts []chart.Chart
	}
	var shown []shownPanel
	for _, p := range panels {
		if p.only != "" && len(series(d.Metrics, p.only, "").Points) == 0 {
			continue
		}
		s := shownPanel{Title: p.title}
		for _, c := range p.curves {
			s.Charts = append(s.Charts, d.chart(c))
		}
		shown = append(shown, s)
	}
	err := page.Execute(w, map[string]any{"D": d, "Style": template.CSS(chart.Style + styleText), "Panels": shown, "Bars": d.bars(), "Interval": d.Heldout.figure()})
	return milepost.Wrap("report: render", milepost.KindUnavailable, err)
}

func rate(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func signed(v float64) string { return fmt.Sprintf("%+.1f", 100*v) }

func signClass(v float64) string {
	switch {
	case v >= 5e-4:
		return "pos"
	case v <= -5e-4:
		return "neg"
	}
	return "zero"
}

func duration(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Minute {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	d = d.Round(time.Second)
	if d < time.Hour {
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}

func byteSize(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"kB", "MB", "GB", "TB"} {
		if v < 1000 {
			break
		}
		v, unit = v/1000, u
	}
	return chart.Number(v) + " " + unit
}

type diffLine struct{ Class, Text string }

// diffLines gives each line of a patch its class.
func diffLines(patch string) []diffLine {
	var out []diffLine
	for l := range strings.SplitSeq(strings.TrimRight(patch, "\n"), "\n") {
		c := ""
		switch {
		case strings.HasPrefix(l, "diff "), strings.HasPrefix(l, "index "), strings.HasPrefix(l, "--- "), strings.HasPrefix(l, "+++ "):
			c = "head"
		case strings.HasPrefix(l, "@@"):
			c = "hunk"
		case strings.HasPrefix(l, "+"):
			c = "add"
		case strings.HasPrefix(l, "-"):
			c = "del"
		}
		out = append(out, diffLine{c, l})
	}
	return out
}

// shape is how an evaluation was made.
func shape(e *orchestrator.Evaluation) string {
	s := fmt.Sprintf("%d tasks, %d attempts", len(e.Tasks), e.Graded)
	if e.Infra > 0 {
		s += fmt.Sprintf(", %d lost to infrastructure", e.Infra)
	}
	return s
}

package report

import (
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/chart"
)

// Summary is the report in a few lines for the terminal.
func Summary(f *orchestrator.Folder) (string, error) {
	d, err := Load(f)
	if err != nil {
		return "", err
	}
	return d.Summary(f.Path("report.html")), nil
}

// Summary is the report in a few lines; path is where the page lies.
func (d *Data) Summary(path string) string {
	var b strings.Builder
	row := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-9s %s\n", label, fmt.Sprintf(format, args...))
	}
	for _, e := range []struct {
		label string
		eval  *orchestrator.Evaluation
	}{{"before", d.Heldout.Before}, {"after", d.Heldout.After}} {
		if e.eval == nil {
			row(e.label, "not evaluated on held-out tasks")
			continue
		}
		row(e.label, "%s resolved on held-out (95 %% interval %s to %s; %s)", rate(e.eval.Rate), rate(e.eval.Low), rate(e.eval.High), shape(e.eval))
	}
	if g := d.Heldout.Gain; g != nil {
		times := ""
		if d.Heldout.Before.Rate > 0 {
			times = fmt.Sprintf("; %.1f times the rate before", d.Heldout.After.Rate/d.Heldout.Before.Rate)
		}
		row("gain", "%s points, paired by task (95 %% interval %s to %s: %s%s)", signed(g.Value), signed(g.Low), signed(g.High), g.Verdict(), times)
	}
	skipped := ""
	if n := len(d.Skipped); n > 0 {
		skipped = fmt.Sprintf(", %d of them without signal and skipped", n)
	}
	stop := d.Stop
	if stop == "" {
		stop = "the run has not ended"
	}
	row("updates", "%d%s (%s)", d.Updates, skipped, stop)
	row("time", "%s", duration(d.Active))
	row("hidden", "%s", orNone(d.Hidden, rate, " of verification time, the run did not wait for it"))
	row("gap", "%s", orNone(d.GapMax, chart.Number, " mean |logprob(sampler) - logprob(trainer)| at most, over the updates"))
	row("warnings", "%d", len(d.Warnings))
	row("report", "%s", path)
	return b.String()
}

func orNone(v *float64, format func(float64) string, rest string) string {
	if v == nil {
		return "not measured"
	}
	return format(*v) + rest
}

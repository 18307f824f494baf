package ablation

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost/orchestrator/chart"
)

// none stands where there is no number.
const none = "–"

// minus puts the sign of the trade for the hyphen.
func minus(s string) string { return strings.ReplaceAll(s, "-", "−") }

// percent is a rate with one decimal, without its unit.
func percent(v float64) string { return fmt.Sprintf("%.1f", 100*v) }

// rateSpan is an interval of a rate in percent, cut at 0 and 100.
func rateSpan(i *Interval) string {
	if i == nil {
		return none
	}
	return fmt.Sprintf("[%s, %s]", percent(max(0, i.Low)), percent(min(1, i.High)))
}

// points is a difference of rates in percentage points, with its sign; a difference that rounds to 0 has none.
func points(v float64) string {
	if math.Abs(v) < 5e-4 {
		return "0.0"
	}
	return minus(fmt.Sprintf("%+.1f", 100*v))
}

// rateOf is "41.7 [35.0, 48.3]", in percent.
func rateOf(e *Estimate) string {
	if e == nil {
		return none
	}
	return fmt.Sprintf("%s [%s, %s]", percent(e.Value), percent(e.Bootstrap.Low), percent(e.Bootstrap.High))
}

// gainOf is "+3.2 [−1.0, +7.5]", in percentage points.
func gainOf(e *Estimate) string {
	if e == nil {
		return none
	}
	return points(e.Value) + " " + span(&e.Bootstrap)
}

// span is an interval of differences, in percentage points.
func span(i *Interval) string {
	if i == nil {
		return none
	}
	return fmt.Sprintf("[%s, %s]", points(i.Low), points(i.High))
}

// probability is a p value with two significant digits.
func probability(p *float64) string {
	if p == nil {
		return none
	}
	return strconv.FormatFloat(*p, 'g', 2, 64)
}

// millions is a count of tokens in millions.
func millions(v float64) string { return chart.Number(v / 1e6) }

// hours is a time as h:mm.
func hours(seconds float64) string {
	m := int(math.Round(seconds / 60))
	return fmt.Sprintf("%d:%02d", m/60, m%60)
}

func learningRate(v float64) string {
	if v == 0 {
		return none
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// level is the confidence as "95 %".
func (o Options) level() string { return strconv.FormatFloat(100*o.Confidence, 'g', 4, 64) + " %" }

// words name the correction.
func (c Correction) words() string {
	return map[Correction]string{CorrectHolm: "Holm's", CorrectBH: "Benjamini and Hochberg's", CorrectNone: "no"}[c]
}

// unfinished is the note that a study with open runs carries; "" where all have ended.
func (r Result) unfinished() string {
	if r.Finished == r.Runs {
		return ""
	}
	return fmt.Sprintf("unfinished: %d of %d runs have ended", r.Finished, r.Runs)
}

// seedNote says how coarse the seed level of the bootstrap is; "" without a comparison.
func (r Result) seedNote() string {
	n, most := math.MaxInt, 0
	for _, c := range r.Comparisons {
		n, most = min(n, len(c.Difference.Seeds)), max(most, len(c.Difference.Seeds))
	}
	switch {
	case most == 0:
		return ""
	case most == 1:
		return "With one seed there is no seed level: the intervals hold the spread over tasks only and say nothing of other seeds, and there is no t interval."
	case n < 6:
		seeds, resamples := fmt.Sprint(n), fmt.Sprintf("%d distinct resamples", pow(n, n))
		if n < most {
			seeds, resamples = fmt.Sprintf("%d to %d", n, most), "as many distinct resamples as n to the power of n, 27 for 3 seeds"
		}
		return fmt.Sprintf("With %s seeds the seed level of the bootstrap is coarse: it has %s, and its intervals come out too narrow where seeds differ by much more than single attempts do. "+
			"The t interval over seeds stands beside it for that reason; it takes the tasks as given and needs the differences of the seeds to be about normal.", seeds, resamples)
	}
	return fmt.Sprintf("The seed level of the bootstrap has at least %d seeds.", n)
}

func pow(n, k int) int {
	out := 1
	for range k {
		out *= n
	}
	return out
}

// mainNote says below the main table what its differences are.
func mainNote(s Study, r Result) string {
	correction := s.Options.Correction.words() + " correction"
	return fmt.Sprintf("Δ: percentage points to %s, paired by seed and by task, [two-level bootstrap]; p after %s. Equal episodes: %d; equal tokens: %s M. Tokens, probes and wall: mean a run. How it is computed, and what few seeds can show, stands under Method.",
		s.Reference, correction, r.Episodes, millions(float64(r.Tokens)))
}

// method describes the statistics, a paragraph each.
func method(s Study, r Result) []string {
	o := s.Options
	out := []string{
		"Held-out rate: mean over tasks of the share of resolved attempts, then over seeds. Point estimates are means over the finished runs.",
		fmt.Sprintf("Intervals in brackets: %s percentile intervals of a two-level bootstrap (%d resamples). A replicate draws seeds, and tasks that serve all seeds and arms alike; "+
			"differences are paired by seed and by task before they are drawn.", o.level(), o.Resamples),
	}
	if n := r.seedNote(); n != "" {
		out = append(out, n)
	}
	family := "p values: two-sided, from the same bootstrap, one added to counts and replicates; the smallest that can come out is " +
		strconv.FormatFloat(2/float64(o.Resamples+1), 'g', 2, 64) + "."
	if o.Correction == CorrectNone {
		family += " They are not corrected for multiple comparisons."
	} else {
		family += fmt.Sprintf(" Corrected p: %s correction over all arms' comparisons with %s on the same budget, of the bootstrap and of t each by itself; a comparison without t counts among those of t as 1.", o.Correction.words(), s.Reference)
	}
	return append(out, family,
		fmt.Sprintf("Verdicts: better or worse need corrected p values of at most %s from both the bootstrap and t over seeds; with the first alone it is \"leans\".", strconv.FormatFloat(1-o.Confidence, 'g', 2, 64)),
		fmt.Sprintf("Equal episodes: %d training episodes; equal tokens: %s M sampled training tokens. Both are the most that every finished run reached; each run's held-out curve is "+
			"interpolated linearly, task by task, and begins at the cold start where that was measured.", r.Episodes, millions(float64(r.Tokens))),
		"Area: mean of the held-out curve from 0 up to the equal count. Tokens, probes and wall-clock time (h:mm, evaluations included) are means over the finished runs and leave out the search for the learning rate.",
		"Time to equal episodes (h:mm:ss): how long a run was up until it had trained on them, evaluations between updates included, the last one not; beside it, how many times as long as the reference's run of the same seed, geometric mean.")
}

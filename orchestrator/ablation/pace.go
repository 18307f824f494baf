package ablation

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// timeTo is for how long [s] a run had been up when it had n training episodes, by its updates and linear between them; false
// where it ended before. Evaluations between updates are in it.
func (r Run) timeTo(n int) (float64, bool) {
	var before Point
	for _, p := range r.Points {
		if p.Episodes >= n {
			if p.Episodes == before.Episodes {
				return p.Active, n > 0
			}
			share := float64(n-before.Episodes) / float64(p.Episodes-before.Episodes)
			return before.Active + share*(p.Active-before.Active), n > 0
		}
		before = p
	}
	return 0, false
}

// timesTo are the times of an arm's finished runs, by seed.
func (a Arm) timesTo(n int) map[int64]float64 {
	out := map[int64]float64{}
	for _, r := range a.finished() {
		if t, ok := r.timeTo(n); ok {
			out[r.Seed] = t
		}
	}
	return out
}

// paceCells are an arm's mean time to the count of episodes that all runs reached, and by how much it took longer than the
// reference's run of the same seed: geometric mean, then seed by seed.
func paceCells(s Study, r Result, arm Arm) []string {
	times := arm.timesTo(r.Episodes)
	if len(times) == 0 {
		return []string{none, none}
	}
	sum := 0.0
	for _, t := range times {
		sum += t
	}
	mean := clock(sum / float64(len(times)))
	if arm.Name == s.Reference {
		return []string{mean, "reference"}
	}
	reference := s.Arms[slices.IndexFunc(s.Arms, func(a Arm) bool { return a.Name == s.Reference })].timesTo(r.Episodes)
	var each []string
	logs := 0.0
	for _, run := range arm.finished() {
		t, base := times[run.Seed], reference[run.Seed]
		if t > 0 && base > 0 {
			each = append(each, ratio(t/base))
			logs += math.Log(t / base)
		}
	}
	if len(each) == 0 {
		return []string{mean, none}
	}
	return []string{mean, fmt.Sprintf("%s (%s)", ratio(math.Exp(logs/float64(len(each)))), strings.Join(each, " "))}
}

func ratio(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// clock is a time as h:mm:ss.
func clock(seconds float64) string {
	n := int(math.Round(seconds))
	return fmt.Sprintf("%d:%02d:%02d", n/3600, n/60%60, n%60)
}

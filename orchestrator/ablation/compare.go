package ablation

import (
	"fmt"
	"slices"
)

// rows are per-task shares of an arm's runs, by seed.
type rows map[int64]map[string]float64

// table holds the seeds and the tasks that all of them have. ok is false where that is nothing.
func (r rows) table(seeds []int64) (t table, ok bool) {
	t.seeds = seeds
	t.tasks = r.common(seeds)
	for _, s := range seeds {
		row := make([]float64, len(t.tasks))
		for k, id := range t.tasks {
			row[k] = r[s][id]
		}
		t.values = append(t.values, row)
	}
	return t, len(t.seeds) > 0 && len(t.tasks) > 0
}

// seeds are the seeds in ascending order.
func (r rows) seeds() []int64 {
	var out []int64
	for s := range r {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// common are the tasks that every one of the seeds has, sorted.
func (r rows) common(seeds []int64) []string {
	if len(seeds) == 0 {
		return nil
	}
	var out []string
	for id := range r[seeds[0]] {
		if !slices.ContainsFunc(seeds, func(s int64) bool { _, ok := r[s][id]; return !ok }) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// minus pairs two arms: the differences over the seeds and tasks that both have.
func (r rows) minus(ref rows) rows {
	out := rows{}
	for s, tasks := range r {
		other, ok := ref[s]
		if !ok {
			continue
		}
		d := map[string]float64{}
		for id, v := range tasks {
			if w, ok := other[id]; ok {
				d[id] = v - w
			}
		}
		out[s] = d
	}
	return out
}

// compare makes the comparisons of one basis and corrects them as one family.
func (a *analysis) compare(b Basis) {
	ref := a.rows[b][a.study.Reference]
	var out []Comparison
	var p []float64
	for _, arm := range a.study.Arms {
		if arm.Name == a.study.Reference {
			continue
		}
		own := a.rows[b][arm.Name]
		d := own.minus(ref)
		t, ok := d.table(d.seeds())
		if !ok {
			a.warn("%s cannot be compared with %s at %s: they share no seed and task%s", arm.Name, a.study.Reference, b.words(), whyNone(own, ref))
			continue
		}
		if len(own) > len(t.seeds) || len(ref) > len(t.seeds) {
			a.warn("%s against %s (%s): seeds that both have: %d, of %d and %d", arm.Name, a.study.Reference, b.words(), len(t.seeds), len(own), len(ref))
		}
		if len(t.tasks) < a.result.Tasks {
			a.warn("%s against %s (%s): held-out tasks that every run of both has: %d, of %d", arm.Name, a.study.Reference, b.words(), len(t.tasks), a.result.Tasks)
		}
		c := Comparison{Arm: arm.Name, Basis: b}
		c.Difference, c.P = t.estimate(a.study.Options)
		_, c.PT = student(c.Difference.PerSeed, a.study.Options.Confidence)
		out, p = append(out, c), append(p, c.P)
	}
	byT := correct(pOfT(out), a.study.Options.Correction)
	for i, q := range correct(p, a.study.Options.Correction) {
		out[i].Corrected = q
		if out[i].PT != nil {
			out[i].CorrectedT = &byT[i]
		}
		out[i].Verdict = verdict(out[i], 1-a.study.Options.Confidence)
	}
	a.result.Comparisons = append(a.result.Comparisons, out...)
}

// pOfT is the family of t tests; 1 where t has nothing to go on.
func pOfT(comparisons []Comparison) []float64 {
	out := make([]float64, len(comparisons))
	for i, c := range comparisons {
		out[i] = 1
		if c.PT != nil {
			out[i] = *c.PT
		}
	}
	return out
}

func whyNone(own, ref rows) string {
	switch {
	case len(ref) == 0:
		return " (the reference has no finished run there)"
	case len(own) == 0:
		return " (the arm has no finished run there)"
	}
	return ""
}

// verdict needs both tests to be corrected: where seeds are few and far apart the p of the bootstrap is far too small, so
// that t alone decides, and t uncorrected would call 18 % of families of five equal arms different (TestEqualArms).
func verdict(c Comparison, level float64) Verdict {
	d := c.Difference
	switch confirmed := c.CorrectedT != nil && *c.CorrectedT <= level; {
	case c.Corrected > level:
		return Same
	case d.Value > 0 && confirmed:
		return Better
	case d.Value > 0:
		return LeansBetter
	case confirmed:
		return Worse
	}
	return LeansWorse
}

// words name the basis in a sentence.
func (b Basis) words() string {
	return "equal " + string(b)
}

func (a *analysis) warn(format string, args ...any) {
	a.result.Warnings = append(a.result.Warnings, fmt.Sprintf(format, args...))
}

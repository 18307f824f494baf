package credit

import "github.com/milepost-rl/milepost"

// Navigation potential. Source: SWE-MILE, arXiv 2609.32631, as fixed by credit.md: the mean over the relevant files
// (those the reference patch modifies or deletes) of the highest exposure so far. Only exposures of high confidence
// from an action that executed count; it never falls; without relevant files it is 0.

// navigator walks one episode. It is reused; reset starts a new one.
type navigator struct {
	plan  *plan
	m     *Milestone
	seen  []float64 // per relevant file: highest exposure
	total float64
}

func (n *navigator) reset(p *plan, m *Milestone) {
	n.plan, n.m, n.total = p, m, 0
	if cap(n.seen) < len(p.relevant) {
		n.seen = make([]float64, len(p.relevant))
	}
	n.seen = n.seen[:len(p.relevant)]
	clear(n.seen)
}

// step returns the potential after the step and its change.
func (n *navigator) step(s *milepost.Step) (phi, change float64) {
	files := float64(len(n.seen))
	if files == 0 {
		return 0, 0
	}
	before := n.total / files
	for i := range s.Exposures {
		if f, ok := n.plan.counts(s, &s.Exposures[i]); ok {
			n.expose(f, s.Exposures[i].Level)
		}
	}
	phi = n.total / files
	return phi, phi - before
}

// counts returns the relevant file that an exposure of a step shows; ok is false where it does not count.
func (p *plan) counts(s *milepost.Step, x *milepost.Exposure) (file int, ok bool) {
	if !s.Executed || x.Confidence != "high" {
		return 0, false
	}
	file, ok = p.relevant[x.Path]
	return file, ok
}

func (n *navigator) expose(file int, shown milepost.ExposureLevel) {
	level := 0.0
	switch shown {
	case milepost.ExposureSearch:
		level = n.m.Search
	case milepost.ExposureRead:
		level = n.m.Read
	}
	if level > n.seen[file] {
		n.total += level - n.seen[file]
		n.seen[file] = level
	}
}

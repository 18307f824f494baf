package orchestrator

import (
	"math"
	"math/rand/v2"

	milepost "github.com/milepost-rl/milepost"
)

// Weights and curriculum: which training task comes next where tasks do not all weigh the same.
//
// Each task has a share: its weight times the curriculum's factor, over the sum of those that are not retired. At every
// draw each task's credit grows by its share; the one with the most credit, of those that this update has not used, is
// drawn and pays 1. So a task's draws stay within about one of what its share asks for, whatever else happens: a task that
// an update may not use twice makes up for it, and a positive share is served again and again. Credits begin at random, so
// that the order is the seed's.
//
// All of it follows from the journaled events: the measured rates are those of judged groups (dynamic sampling) or of
// finalised updates.

// The shapes of a curriculum.
const (
	ShapeFlat     = "flat"
	ShapeFrontier = "frontier"
	ShapeWindow   = "window"
)

// Curriculum changes the shares of tasks by their measured pass rate. That of a task is the mean of the posterior
// Beta(1+passed, 1+failed) over its graded training episodes, older ones counting less; 1/2 before any.
type Curriculum struct {
	Shape  string  `yaml:"shape"`  // flat: weights alone; frontier: 4p(1-p), most where half the attempts pass (the variance of the outcome); window: 1 within width of target, floor elsewhere
	Target float64 `yaml:"target"` // pass rate in the middle of the window, 0 to 1
	Width  float64 `yaml:"width"`  // how far from target a rate may be, more than 0, to 1
	Floor  float64 `yaml:"floor"`  // least factor, more than 0, to 1: hard and easy tasks still come, and are measured again
	Memory float64 `yaml:"memory"` // what an older group's episodes count for when a task's next group is measured, 0 to 1: policies change
}

// DefaultCurriculum leaves tasks to their weights.
func DefaultCurriculum() Curriculum {
	return Curriculum{Shape: ShapeFlat, Target: .5, Width: .3, Floor: .1, Memory: .7}
}

// Validate names the first field that is out of range and what is allowed.
func (c Curriculum) Validate() error {
	const op = "orchestrator: schedule"
	if c.Shape != ShapeFlat && c.Shape != ShapeFrontier && c.Shape != ShapeWindow {
		return milepost.E(op, milepost.KindInvalid, "schedule.curriculum.shape is %q; allowed: flat, frontier, window", c.Shape)
	}
	for _, f := range []struct {
		name  string
		value float64
		open  bool // 0 is not allowed
	}{{"target", c.Target, false}, {"width", c.Width, true}, {"floor", c.Floor, true}, {"memory", c.Memory, false}} {
		switch {
		case f.value >= 0 && f.value <= 1 && (f.value > 0 || !f.open):
		case f.open:
			return milepost.E(op, milepost.KindInvalid, "schedule.curriculum.%s is %g; allowed: more than 0, to 1", f.name, f.value)
		default:
			return milepost.E(op, milepost.KindInvalid, "schedule.curriculum.%s is %g; allowed: 0 to 1", f.name, f.value)
		}
	}
	return nil
}

// Factor is what a task of the given pass rate has its weight multiplied by, from Floor to 1.
func (c Curriculum) Factor(rate float64) float64 {
	switch c.Shape {
	case ShapeFrontier:
		return max(4*rate*(1-rate), c.Floor)
	case ShapeWindow:
		if math.Abs(rate-c.Target) > c.Width {
			return c.Floor
		}
	}
	return 1
}

// measured is what is known of a task's pass rate: sums over its graded episodes, older ones counting less.
type measured struct{ passed, graded float64 }

// rate is the mean of the posterior.
func (k measured) rate() float64 { return (1 + k.passed) / (2 + k.graded) }

// TaskRate is how the graded episodes of a task's group ended.
type TaskRate struct {
	Task   string `json:"task"`
	Graded int    `json:"graded"`
	Passed int    `json:"passed"`
}

// measure takes in how a group of a task ended.
func (m *Machine) measure(task string, graded, passed float64) {
	if graded <= 0 || m.cfg.Curriculum.Shape == ShapeFlat {
		return
	}
	old := m.draw.measured[task]
	keep := m.cfg.Curriculum.Memory
	m.draw.measured[task] = measured{keep*old.passed + passed, keep*old.graded + graded}
}

// PassRate is the measured pass rate of a training task, by which a curriculum goes; 1/2 before any measurement.
func (m *Machine) PassRate(task string) float64 { return m.draw.measured[task].rate() }

// weighted reports whether tasks are drawn by shares.
func (m *Machine) weighted() bool {
	if m.cfg.Curriculum.Shape != ShapeFlat {
		return true
	}
	for _, w := range m.tasks.Weights {
		if w != m.tasks.Weights[0] {
			return true
		}
	}
	return false
}

// share is a task's part before the sum is made 1; 0 for a retired one.
func (m *Machine) share(i int) float64 {
	task := m.tasks.Train[i]
	if m.draw.retired[task] {
		return 0
	}
	w := 1.0
	if len(m.tasks.Weights) > 0 {
		w = m.tasks.Weights[i]
	}
	return w * m.cfg.Curriculum.Factor(m.PassRate(task))
}

// maxCredit and minCredit bound what a task may save up while it cannot be drawn, and owe where there was no other.
const (
	maxCredit = 1
	minCredit = -2
)

// nextWeighted draws a task by the shares. There must be one that is neither retired nor used for this update.
func (m *Machine) nextWeighted() string {
	d := &m.draw
	if d.credit == nil {
		r := rand.New(rand.NewPCG(uint64(m.seedOf("tasks", "weighted")), 1))
		d.credit = make([]float64, len(m.tasks.Train))
		for i := range d.credit {
			d.credit[i] = -r.Float64()
		}
	}
	shares, sum := make([]float64, len(d.credit)), 0.0
	for i := range shares {
		shares[i] = m.share(i)
		sum += shares[i]
	}
	best := -1
	for i, s := range shares {
		if s == 0 {
			continue
		}
		d.credit[i] = min(d.credit[i]+s/sum, maxCredit)
		if !m.sampling.used[m.tasks.Train[i]] && (best < 0 || d.credit[i] > d.credit[best]) {
			best = i
		}
	}
	d.credit[best] = max(d.credit[best]-1, minCredit)
	return m.tasks.Train[best]
}

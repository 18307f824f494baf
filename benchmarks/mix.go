package benchmarks

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"

	milepost "github.com/milepost-rl/milepost"
)

// MixFile is the name of the file, beside [TasksFile], that says how a mixture was made.
const MixFile = "mixture.yaml"

// Mixture describes a set made of several. Each task of it carries its weight (Task.Weight): the share of its set,
// divided among the set's tasks, times what the curriculum says. Weights sum to 1.
type Mixture struct {
	Sets       []MixSet   `yaml:"sets"`       // the sets, at least one
	Curriculum Curriculum `yaml:"curriculum"` // how measured pass rates change the weights
}

// MixSet is one set of a mixture.
type MixSet struct {
	Path   string  `yaml:"path"`   // folder of the set; relative to the mixture file
	Weight float64 `yaml:"weight"` // share of the set, relative to the others; more than 0
	Tasks  int     `yaml:"tasks"`  // filled in: tasks of it that are in the mixture
}

// Curriculum changes weights by the pass rate of each task, as measured by an evaluation.
type Curriculum struct {
	Rates string  `yaml:"rates"` // file of pass rates, relative to the mixture file: {"TASK": RATE}, {"TASK": [REWARD, ...]}, or an evaluation of Milepost's (its field tasks); "" = no curriculum
	Min   float64 `yaml:"min"`   // tasks with a lower rate are left out, 0 to 1
	Max   float64 `yaml:"max"`   // tasks with a higher rate are left out, 0 to 1; 0 = 1
	Shape string  `yaml:"shape"` // flat: all that are left weigh the same; frontier: 4p(1-p), most where half the attempts pass
	Floor float64 `yaml:"floor"` // least factor of shape frontier, 0 to 1, so that hard and easy tasks still come
	Else  float64 `yaml:"else"`  // rate that is assumed of tasks without a measurement, 0 to 1
}

// DefaultCurriculum keeps every task at its set's weight.
func DefaultCurriculum() Curriculum { return Curriculum{Max: 1, Shape: "flat", Floor: .1, Else: .5} }

// LoadMixture reads a mixture file, strictly: unknown fields are errors. Paths become absolute.
func LoadMixture(path string) (Mixture, error) {
	const op = "benchmarks: mixture"
	b, err := os.ReadFile(path)
	if err != nil {
		return Mixture{}, milepost.Wrap(op, kindOfOpen(err), err)
	}
	m := Mixture{Curriculum: DefaultCurriculum()}
	if err := yaml.UnmarshalWithOptions(b, &m, yaml.Strict()); err != nil {
		return Mixture{}, milepost.E(op, milepost.KindInvalid, "%s: %w", path, err)
	}
	dir := filepath.Dir(path)
	for i := range m.Sets {
		if p := m.Sets[i].Path; p != "" && !filepath.IsAbs(p) {
			m.Sets[i].Path = filepath.Join(dir, p)
		}
	}
	if p := m.Curriculum.Rates; p != "" && !filepath.IsAbs(p) {
		m.Curriculum.Rates = filepath.Join(dir, p)
	}
	if err := m.Validate(); err != nil {
		return Mixture{}, milepost.E(op, milepost.KindInvalid, "%s: %w", path, plain(err))
	}
	return m, nil
}

// Validate names the first field that is out of range.
func (m *Mixture) Validate() error {
	const op = "benchmarks: mixture"
	if len(m.Sets) == 0 {
		return milepost.E(op, milepost.KindInvalid, "sets: empty; at least one set is wanted")
	}
	for i, s := range m.Sets {
		if s.Path == "" {
			return milepost.E(op, milepost.KindInvalid, "sets[%d].path: empty", i)
		}
		if !(s.Weight > 0) || math.IsInf(s.Weight, 0) {
			return milepost.E(op, milepost.KindInvalid, "sets[%d].weight: %v; a number of more than 0 is wanted", i, s.Weight)
		}
	}
	c := m.Curriculum
	for _, f := range []struct {
		name  string
		value float64
	}{{"min", c.Min}, {"max", c.Max}, {"floor", c.Floor}, {"else", c.Else}} {
		if !(f.value >= 0 && f.value <= 1) {
			return milepost.E(op, milepost.KindInvalid, "curriculum.%s: %v; allowed are 0 to 1", f.name, f.value)
		}
	}
	if c.Max > 0 && c.Min > c.Max {
		return milepost.E(op, milepost.KindInvalid, "curriculum.min: %v is above max, %v", c.Min, c.Max)
	}
	if c.Shape != "flat" && c.Shape != "frontier" {
		return milepost.E(op, milepost.KindInvalid, "curriculum.shape: %q is not one of flat, frontier", c.Shape)
	}
	return nil
}

// Factor is what the curriculum multiplies the weight of a task of the given pass rate by; 0 = left out.
func (c Curriculum) Factor(rate float64) float64 {
	most := c.Max
	if most == 0 {
		most = 1
	}
	switch {
	case rate < c.Min || rate > most:
		return 0
	case c.Shape == "frontier":
		return max(4*rate*(1-rate), c.Floor)
	}
	return 1
}

// Mix writes the mixture as a task set into out, with the mixture and the sets' certificates beside it, and returns it with the numbers of tasks
// filled in. A task id may be in one set alone. The sets are read twice, and never whole in memory.
func Mix(m Mixture, out string) (Mixture, error) {
	const op = "benchmarks: mix"
	if err := m.Validate(); err != nil {
		return Mixture{}, err
	}
	rates, err := m.Curriculum.load()
	if err != nil {
		return Mixture{}, err
	}
	factor := func(id string) float64 {
		if rates == nil {
			return 1
		}
		rate, ok := rates[id]
		if !ok {
			rate = m.Curriculum.Else
		}
		return m.Curriculum.Factor(rate)
	}
	sums, err := m.weigh(factor)
	if err != nil {
		return Mixture{}, err
	}
	w, err := NewWriter(out)
	if err != nil {
		return Mixture{}, err
	}
	defer w.Abort()
	all := 0.0
	for _, s := range m.Sets {
		all += s.Weight
	}
	ids, from := map[string]bool{}, make([]string, len(m.Sets))
	for i, s := range m.Sets {
		from[i] = s.Path
		err := eachWithRow(s.Path, func(t *milepost.Task, row *Row) error {
			f := factor(t.ID)
			if f == 0 {
				return nil
			}
			t.Weight = s.Weight / all * f / sums[i]
			ids[t.ID] = true
			return w.Add(t, row)
		})
		if err != nil {
			return Mixture{}, err
		}
	}
	if err := carryCertificates(w.Dir(), ids, from...); err != nil {
		return Mixture{}, err
	}
	b, err := yaml.Marshal(m)
	if err != nil {
		return Mixture{}, milepost.Wrap(op, milepost.KindInternal, err)
	}
	if err := WriteWhole(filepath.Join(w.Dir(), MixFile), b); err != nil {
		return Mixture{}, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return m, w.Commit()
}

// weigh sums the factors of each set, fills in its number of tasks, and finds ids that are in two sets.
func (m *Mixture) weigh(factor func(string) float64) ([]float64, error) {
	const op = "benchmarks: mix"
	sums, seen := make([]float64, len(m.Sets)), map[string]int{}
	m.Sets = append([]MixSet(nil), m.Sets...) // the caller's stay as they are
	for i := range m.Sets {
		s := &m.Sets[i]
		s.Tasks = 0
		err := Each(s.Path, func(t *milepost.Task) error {
			if other, twice := seen[t.ID]; twice {
				return milepost.E(op, milepost.KindConflict, "task %s is in %s and in %s", t.ID, m.Sets[other].Path, s.Path)
			}
			seen[t.ID] = i
			if f := factor(t.ID); f > 0 {
				sums[i] += f
				s.Tasks++
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if s.Tasks == 0 {
			return nil, milepost.E(op, milepost.KindInvalid, "sets[%d]: no task of %s has a pass rate from %v to %v", i, s.Path, m.Curriculum.Min, m.Curriculum.Max)
		}
	}
	return sums, nil
}

// load reads the file of pass rates; nil where there is none.
func (c Curriculum) load() (map[string]float64, error) {
	if c.Rates == "" {
		return nil, nil
	}
	const op = "benchmarks: pass rates"
	b, err := os.ReadFile(c.Rates)
	if err != nil {
		return nil, milepost.Wrap(op, kindOfOpen(err), err)
	}
	rates, err := parseRates(b)
	if err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: %w", c.Rates, err)
	}
	return rates, nil
}

// parseRates reads rates by task, or rewards by task whose positive share is the rate, at the top or in field tasks.
func parseRates(b []byte) (map[string]float64, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, fmt.Errorf(`an object {"TASK": RATE} is wanted: %w`, err)
	}
	if inner, ok := raw["tasks"]; ok {
		raw = nil
		if err := json.Unmarshal(inner, &raw); err != nil {
			return nil, fmt.Errorf("field tasks: an object of rewards by task is wanted: %w", err)
		}
	}
	out := make(map[string]float64, len(raw))
	for id, v := range raw {
		var rate float64
		var rewards []float64
		switch {
		case json.Unmarshal(v, &rate) == nil:
		case json.Unmarshal(v, &rewards) == nil && len(rewards) > 0:
			for _, r := range rewards {
				if r >= 1 {
					rate += 1 / float64(len(rewards))
				}
			}
			rate = min(rate, 1)
		case json.Unmarshal(v, &rewards) == nil: // never graded: not measured
			continue
		default:
			return nil, fmt.Errorf("task %q: a rate from 0 to 1, or a list of rewards, is wanted", id)
		}
		if !(rate >= 0 && rate <= 1) {
			return nil, fmt.Errorf("task %q: rate %v; allowed are 0 to 1", id, rate)
		}
		out[id] = rate
	}
	return out, nil
}

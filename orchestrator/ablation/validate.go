package ablation

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// Validate names the first place of the study that cannot be analysed and what is allowed; errors are of kind invalid.
func (s Study) Validate() error {
	if err := s.Options.Validate(); err != nil {
		return err
	}
	var names []string
	for i, a := range s.Arms {
		switch {
		case strings.TrimSpace(a.Name) == "":
			return invalid(fmt.Sprintf("arm %d", i+1), "has no name")
		case slices.Contains(names, a.Name):
			return invalid(fmt.Sprintf("arm %q", a.Name), "occurs twice; names of arms must differ")
		}
		names = append(names, a.Name)
		if err := a.validate(); err != nil {
			return err
		}
	}
	if !slices.Contains(names, s.Reference) {
		return invalid("reference", "%q is no arm; allowed: %s", s.Reference, strings.Join(names, ", "))
	}
	if s.Start != nil {
		return checkEvaluation("start", *s.Start)
	}
	return nil
}

func invalid(place, format string, args ...any) error {
	return milepost.E("ablation: study", milepost.KindInvalid, "%s: %s", place, fmt.Sprintf(format, args...))
}

func (a Arm) validate() error {
	place := fmt.Sprintf("arm %q", a.Name)
	if err := finite(place, "learning rate", a.Rate); err != nil {
		return err
	}
	for i, t := range a.Search {
		at := fmt.Sprintf("%s, trial %d", place, i+1)
		if err := finite(at, "learning rate", t.Rate); err != nil {
			return err
		}
		if err := finite(at, "score", t.Score); err != nil {
			return err
		}
	}
	seen := map[int64]bool{}
	for _, r := range a.Runs {
		at := fmt.Sprintf("%s, seed %d", place, r.Seed)
		if seen[r.Seed] {
			return invalid(at, "occurs twice; an arm has one run a seed")
		}
		seen[r.Seed] = true
		if err := r.validate(at); err != nil {
			return err
		}
	}
	return nil
}

func (r Run) validate(place string) error {
	if r.Finished && r.Final == nil {
		return invalid(place, "has finished without an evaluation on held-out tasks after training")
	}
	if r.Final != nil {
		if err := checkEvaluation(place+", final evaluation", *r.Final); err != nil {
			return err
		}
	}
	if err := finite(place, "cost", r.Cost.Active); err != nil {
		return err
	}
	var last Point
	for i, p := range r.Points {
		at := fmt.Sprintf("%s, update %d", place, p.Update)
		if p.Update < 0 || i > 0 && p.Update <= last.Update {
			return invalid(at, "follows update %d; updates must ascend from 0", last.Update)
		}
		if p.Episodes < last.Episodes || p.Tokens < last.Tokens {
			return invalid(at, "has %d episodes and %d tokens after %d and %d; both are cumulative", p.Episodes, p.Tokens, last.Episodes, last.Tokens)
		}
		if err := p.validate(at); err != nil {
			return err
		}
		last = p
	}
	return nil
}

func (p Point) validate(place string) error {
	if err := share(place, "train", p.Train); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"active", p.Active}, {"reward", p.Reward}, {"turns", p.Turns}, {"submitted rate", p.SubmittedRate},
		{"entropy", p.Entropy}, {"groups without signal", p.GroupsWithoutSignal},
	} {
		if err := finite(place, f.name, f.value); err != nil {
			return err
		}
	}
	if (p.Heldout == nil) != (len(p.Tasks) == 0) {
		return invalid(place, "has a held-out rate or held-out tasks without the other")
	}
	if p.Heldout == nil {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(p.Tasks)) {
		if err := share(place, "held-out task "+id, p.Tasks[id]); err != nil {
			return err
		}
	}
	if m := meanOf(p.Tasks); !(math.Abs(m-*p.Heldout) <= 1e-9) {
		return invalid(place, "has a held-out rate of %v; the mean of its tasks is %v", *p.Heldout, m)
	}
	return nil
}

func checkEvaluation(place string, e orchestrator.Evaluation) error {
	if len(e.Tasks) == 0 {
		return invalid(place, "has no graded attempt at any task; it has to be made again")
	}
	for _, id := range slices.Sorted(maps.Keys(e.Tasks)) {
		rewards := e.Tasks[id]
		if len(rewards) == 0 {
			return invalid(place, "task %q has no attempts", id)
		}
		for _, v := range rewards {
			if err := share(place, "task "+id, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func finite(place, name string, v float64) error {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return invalid(place, "%s is %v; allowed: a finite number", name, v)
	}
	return nil
}

func share(place, name string, v float64) error {
	if !(v >= 0 && v <= 1) {
		return invalid(place, "%s is %v; allowed: 0 to 1", name, v)
	}
	return nil
}

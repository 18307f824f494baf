package credit

import (
	"math"

	"github.com/milepost-rl/milepost"
)

// The criteria of dynamic sampling.
const (
	CriterionOutcome   = "outcome"   // keep a group whose outcome rewards differ (DAPO, arXiv 2503.14476; SWE-MILE)
	CriterionAdvantage = "advantage" // keep a group in which some |A| > 1e-9: milestone credit may teach where outcomes agree
)

// Sampling says which groups are worth an update, what takes the place of those that are not, and when a task retires.
// Source: SWE-MILE, arXiv 2609.32631, and DAPO, arXiv 2503.14476. Here are the rules; dispatching and cancelling belong to
// the scheduler.
type Sampling struct {
	Criterion  string  `yaml:"criterion" json:"criterion"`   // which groups train: advantage (some |A_t| > 1e-9) or outcome (rewards differ); the rest is dropped
	Replace    bool    `yaml:"replace" json:"replace"`       // dropped groups are replaced by groups of further tasks until schedule.groups_per_update are kept
	Oversample float64 `yaml:"oversample" json:"oversample"` // groups dispatched at once per group needed; what is under way once enough are kept is cancelled
	MaxGroups  int     `yaml:"max_groups" json:"max_groups"` // groups sampled for one update at most; it then trains on what was kept; 0 = 10 times schedule.groups_per_update
	EasyRate   float64 `yaml:"easy_rate" json:"easy_rate"`   // pass rate from which a task is easy
	EasyAfter  int     `yaml:"easy_after" json:"easy_after"` // dropped groups after which an easy task retires: it is drawn no more; 0 = never
	HardRate   float64 `yaml:"hard_rate" json:"hard_rate"`   // pass rate up to which a task is hard
	HardAfter  int     `yaml:"hard_after" json:"hard_after"` // dropped groups after which a hard task retires; 0 = never
}

// DefaultSampling returns the paper's numbers for a kind of task.
func DefaultSampling(kind milepost.TaskKind) Sampling {
	s := Sampling{Criterion: CriterionOutcome, Replace: true, Oversample: 1.5, EasyRate: .97, EasyAfter: 1, HardRate: .03, HardAfter: 2}
	if kind == milepost.RepoGeneration {
		s.Oversample, s.HardAfter = 2, 3
	}
	return s
}

// PlainSampling drops groups without any advantage and does no more: nothing is replaced, oversampled or retired.
func PlainSampling() Sampling {
	return Sampling{Criterion: CriterionAdvantage, Oversample: 1, EasyRate: .97, HardRate: .03}
}

// Dynamic reports whether groups must be judged one by one while others are under way.
func (s Sampling) Dynamic() bool {
	return s.Replace || s.Oversample > 1 || s.EasyAfter > 0 || s.HardAfter > 0
}

// Dispatch is how many groups are dispatched at once where so many are still needed.
func (s Sampling) Dispatch(needed int) int {
	return int(math.Ceil(s.Oversample*float64(needed) - 1e-9)) // 1.1 x 10 is 11, whatever its last bit
}

// Bound is how many groups may be sampled for an update of so many; 10 times is DAPO's max_num_gen_batches.
func (s Sampling) Bound(groupsPerUpdate int) int {
	if s.MaxGroups > 0 {
		return s.MaxGroups
	}
	return 10 * groupsPerUpdate
}

// Validate returns an error of kind invalid that names the field and what is allowed.
func (s Sampling) Validate() error {
	if err := oneOf("sampling.criterion", s.Criterion, CriterionOutcome, CriterionAdvantage); err != nil {
		return err
	}
	for _, f := range []field{
		{"sampling.oversample", s.Oversample, rule{"a number from 1 to 10", 1, 10}},
		{"sampling.easy_rate", s.EasyRate, unit}, {"sampling.hard_rate", s.HardRate, unit},
	} {
		if err := f.check(); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name  string
		value int
		words string
	}{
		{"sampling.max_groups", s.MaxGroups, "0 (10 times groups_per_update) or a positive whole number"},
		{"sampling.easy_after", s.EasyAfter, "0 (never) or a positive whole number"},
		{"sampling.hard_after", s.HardAfter, "0 (never) or a positive whole number"},
	} {
		if f.value < 0 {
			return fieldError(f.name, f.value, f.words)
		}
	}
	return nil
}

// Keep applies the criterion to one group: inputs are its episodes, credits their credit in the same order.
func (s Sampling) Keep(inputs []Input, credits []milepost.EpisodeCredit) bool {
	if s.Criterion == CriterionAdvantage {
		return HasAdvantage(credits)
	}
	return OutcomesDiffer(inputs)
}

// Retired says whether a task is to be drawn no more: passRate over the episodes of its latest group, rejections by
// dynamic sampling so far, that group's included.
func (s Sampling) Retired(passRate float64, rejections int) bool {
	return s.EasyAfter > 0 && passRate >= s.EasyRate && rejections >= s.EasyAfter ||
		s.HardAfter > 0 && passRate <= s.HardRate && rejections >= s.HardAfter
}

// OutcomesDiffer reports whether the episodes of a group earned different outcome rewards; excluded ones do not count.
func OutcomesDiffer(inputs []Input) bool {
	var rewards []float64
	for _, in := range inputs {
		if !excluded(in.Episode) {
			rewards = append(rewards, in.Episode.Outcome.Reward)
		}
	}
	return !allEqual(rewards)
}

// HasAdvantage reports whether some step of a group has |A| > 1e-9.
func HasAdvantage(credits []milepost.EpisodeCredit) bool {
	for i := range credits {
		for t := range credits[i].Steps {
			if math.Abs(credits[i].Steps[t].Advantage) > signal {
				return true
			}
		}
	}
	return false
}

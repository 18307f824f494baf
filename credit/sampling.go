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

// Sampling says which groups are worth an update and when a task retires. Source: SWE-MILE, arXiv 2609.32631. The
// oversampling itself and the cancelling of surplus belong to the scheduler.
type Sampling struct {
	Criterion  string  `yaml:"criterion" json:"criterion"`   // outcome or advantage
	Oversample float64 `yaml:"oversample" json:"oversample"` // groups dispatched per group needed
	EasyRate   float64 `yaml:"easy_rate" json:"easy_rate"`   // pass rate from which a task is easy
	EasyAfter  int     `yaml:"easy_after" json:"easy_after"` // rejections after which an easy task retires
	HardRate   float64 `yaml:"hard_rate" json:"hard_rate"`   // pass rate up to which a task is hard
	HardAfter  int     `yaml:"hard_after" json:"hard_after"` // rejections after which a hard task retires
}

// DefaultSampling returns the paper's numbers for a kind of task.
func DefaultSampling(kind milepost.TaskKind) Sampling {
	s := Sampling{Criterion: CriterionOutcome, Oversample: 1.5, EasyRate: .97, EasyAfter: 1, HardRate: .03, HardAfter: 2}
	if kind == milepost.RepoGeneration {
		s.Oversample, s.HardAfter = 2, 3
	}
	return s
}

// Validate returns an error of kind invalid that names the field and what is allowed.
func (s Sampling) Validate() error {
	if err := oneOf("sampling.criterion", s.Criterion, CriterionOutcome, CriterionAdvantage); err != nil {
		return err
	}
	for _, f := range []field{
		{"sampling.oversample", s.Oversample, rule{"a number from 1 to 100", 1, 100}},
		{"sampling.easy_rate", s.EasyRate, unit}, {"sampling.hard_rate", s.HardRate, unit},
	} {
		if err := f.check(); err != nil {
			return err
		}
	}
	if s.EasyAfter < 1 {
		return fieldError("sampling.easy_after", s.EasyAfter, "a whole number from 1")
	}
	if s.HardAfter < 1 {
		return fieldError("sampling.hard_after", s.HardAfter, "a whole number from 1")
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
// dynamic sampling so far.
func (s Sampling) Retired(passRate float64, rejections int) bool {
	return passRate >= s.EasyRate && rejections >= s.EasyAfter || passRate <= s.HardRate && rejections >= s.HardAfter
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

package orchestrator

import (
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// Config is the schedule of a run: how much is sampled, when it is evaluated, when it ends.
type Config struct {
	// Mode is sync (generation, barrier, update, push, in turn) or async (rollouts go on meanwhile; section async).
	Mode  string `yaml:"mode"`
	Async Async  `yaml:"async"` // bounds the staleness of what mode async trains on

	GroupsPerUpdate int `yaml:"groups_per_update"` // tasks sampled for one update; with sampling.replace, groups that train
	GroupSize       int `yaml:"group_size"`        // episodes of each
	Concurrency     int `yaml:"concurrency"`       // episodes under way at once
	MaxRetries      int `yaml:"max_retries"`       // times an episode lost to infrastructure is run again

	MaxUpdates int           `yaml:"max_updates"` // stop after this many updates
	MaxWall    time.Duration `yaml:"max_wall"`    // start no update after this much active time; 0 = no bound
	MaxTokens  int64         `yaml:"max_tokens"`  // start no update after so many sampled training tokens; 0 = no bound
	EvalEvery  int           `yaml:"eval_every"`  // validate after every so many updates; 0 = never
	Patience   int           `yaml:"patience"`    // stop after so many validations without a better rate; 0 = never

	EvalSamples       int `yaml:"eval_samples"`       // attempts per held-out task
	ValidationSamples int `yaml:"validation_samples"` // attempts per validation task
	// EvalBefore is false where the weights that the run starts from were measured elsewhere: neither the held-out tasks
	// nor the validation tasks are then tried before the first update.
	EvalBefore bool `yaml:"eval_before"`
	// Final says which weights the last evaluation measures: best (by validation; the last where there is none) or last.
	Final string `yaml:"final"`
	// EvalSeed draws the evaluations, so that runs of several seeds share them; 0 = run.seed.
	EvalSeed int64 `yaml:"eval_seed"`

	// Sampling says which groups train, what replaces the others, and when a task is drawn no more.
	Sampling credit.Sampling `yaml:"sampling"`
	// Curriculum says how measured pass rates change how often a task is drawn. Weights of a mixture hold in any case.
	Curriculum Curriculum `yaml:"curriculum"`
	// Barrier bounds how long a finished batch waits for its probes; what is late then is untrusted, not zero.
	Barrier time.Duration `yaml:"barrier"`
	// CheckpointEvery is the number of updates between trainer checkpoints; batches since the last are replayed on resume.
	CheckpointEvery int `yaml:"checkpoint_every"`
	// Retention says what is kept of checkpoints, weights and batches.
	Retention Retention `yaml:"retention"`
}

// The weights that the last evaluation measures.
const (
	FinalBest = "best"
	FinalLast = "last"
)

// DefaultConfig returns the schedule of the paper's bug-repair runs (SWE-MILE, arXiv 2609.32631: 16 rollouts by 12 groups).
func DefaultConfig() Config {
	return Config{
		Mode: ModeSync, Async: DefaultAsync(),
		GroupsPerUpdate: 12, GroupSize: 16, Concurrency: 32, MaxRetries: 2,
		MaxUpdates: 200, EvalEvery: 10, EvalSamples: 4, ValidationSamples: 1, EvalBefore: true, Final: FinalBest,
		Sampling: credit.PlainSampling(), Curriculum: DefaultCurriculum(), Barrier: 2 * time.Minute, CheckpointEvery: 1, Retention: DefaultRetention(),
	}
}

// Validate names the first field that is out of range and what is allowed.
func (c Config) Validate() error {
	const op = "orchestrator: schedule"
	if c.Mode != ModeSync && c.Mode != ModeAsync {
		return milepost.E(op, milepost.KindInvalid, "schedule.mode is %q; allowed: sync, async", c.Mode)
	}
	if err := c.Async.Validate(); err != nil {
		return err
	}
	for _, f := range []struct {
		name     string
		got, min int
	}{
		{"groups_per_update", c.GroupsPerUpdate, 1}, {"group_size", c.GroupSize, 1}, {"concurrency", c.Concurrency, 1},
		{"max_retries", c.MaxRetries, 0}, {"max_updates", c.MaxUpdates, 0}, {"eval_every", c.EvalEvery, 0},
		{"patience", c.Patience, 0}, {"eval_samples", c.EvalSamples, 1}, {"validation_samples", c.ValidationSamples, 1},
		{"checkpoint_every", c.CheckpointEvery, 1},
	} {
		if f.got < f.min {
			return milepost.E(op, milepost.KindInvalid, "schedule.%s is %d; allowed: %d or more", f.name, f.got, f.min)
		}
	}
	if c.MaxWall < 0 || c.Barrier <= 0 {
		return milepost.E(op, milepost.KindInvalid, "schedule.max_wall must not be negative and schedule.barrier must be positive (got %v, %v)", c.MaxWall, c.Barrier)
	}
	if c.MaxTokens < 0 {
		return milepost.E(op, milepost.KindInvalid, "schedule.max_tokens is %d; allowed: 0 (no bound) or more", c.MaxTokens)
	}
	if c.Final != FinalBest && c.Final != FinalLast {
		return milepost.E(op, milepost.KindInvalid, "schedule.final is %q; allowed: best, last", c.Final)
	}
	if err := c.Sampling.Validate(); err != nil {
		return err
	}
	if err := c.Curriculum.Validate(); err != nil {
		return err
	}
	if n := c.Sampling.MaxGroups; n != 0 && n < c.GroupsPerUpdate {
		return milepost.E(op, milepost.KindInvalid, "schedule.sampling.max_groups is %d; allowed: 0, or %d (schedule.groups_per_update) and more", n, c.GroupsPerUpdate)
	}
	if c.Sampling.Replace && c.Sampling.Criterion == credit.CriterionOutcome && c.GroupSize < 2 {
		return milepost.E(op, milepost.KindInvalid, "schedule.group_size is 1; allowed: 2 or more where schedule.sampling replaces groups by outcome, since one outcome never differs")
	}
	return c.Retention.Validate()
}

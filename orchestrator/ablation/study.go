package ablation

import (
	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// Study is everything that the tables and figures of an ablation are made of.
type Study struct {
	Name      string                   // title of the pages
	Command   string                   // makes the study again
	Reference string                   // the arm that the others are compared with
	Start     *orchestrator.Evaluation // held-out evaluation of the shared cold start; nil if it was not made
	Arms      []Arm                    // in the order of the spec
	Options   Options
}

// Options are the choices of the analysis.
type Options struct {
	Resamples  int        `yaml:"resamples"`  // bootstrap replicates
	Confidence float64    `yaml:"confidence"` // of every interval, above .5 and below 1; 1 − confidence is the level of the verdicts
	Seed       uint64     `yaml:"seed"`       // of the resampling
	Correction Correction `yaml:"correction"` // for multiple comparisons: holm, bh or none
	Smooth     int        `yaml:"smooth"`     // width in updates of the centred moving mean over training curves, odd; 1 = none
}

// Correction is a rule for multiple comparisons.
type Correction string

// The corrections.
const (
	CorrectHolm Correction = "holm" // family-wise error (Holm 1979)
	CorrectBH   Correction = "bh"   // false discovery rate (Benjamini and Hochberg 1995)
	CorrectNone Correction = "none"
)

// DefaultOptions are 10,000 resamples, 95 % intervals, Holm's correction and training curves smoothed over 5 updates.
func DefaultOptions() Options {
	return Options{Resamples: 10000, Confidence: .95, Seed: 1, Correction: CorrectHolm, Smooth: 5}
}

// Validate names the first option that is out of range and what is allowed; errors are of kind invalid.
func (o Options) Validate() error {
	const op = "ablation: options"
	switch {
	case o.Resamples < 100 || o.Resamples > 1e6:
		return milepost.E(op, milepost.KindInvalid, "resamples is %d; allowed: 100 to 1000000", o.Resamples)
	case !(o.Confidence > .5 && o.Confidence < 1):
		return milepost.E(op, milepost.KindInvalid, "confidence is %v; allowed: above 0.5 and below 1", o.Confidence)
	case o.Correction != CorrectHolm && o.Correction != CorrectBH && o.Correction != CorrectNone:
		return milepost.E(op, milepost.KindInvalid, "correction is %q; allowed: holm, bh, none", o.Correction)
	case o.Smooth < 1 || o.Smooth%2 == 0:
		return milepost.E(op, milepost.KindInvalid, "smooth is %d; allowed: 1 (no smoothing) or a larger odd number", o.Smooth)
	}
	return nil
}

// Arm is one configuration under study.
type Arm struct {
	Name, About string
	Settings    []string // what it changes: section.field=value
	Rate        float64  // chosen learning rate
	Search      []Trial  // runs by which Rate was chosen; they enter no comparison
	Runs        []Run    // one a seed
}

// Trial is one run of the search for the learning rate.
type Trial struct {
	Rate     float64
	Seed     int64
	Score    float64 // what was compared: higher is better
	Updates  int     // updates made
	Dir      string
	Finished bool
}

// Run is one training run of an arm.
type Run struct {
	Seed        int64
	Dir         string
	Stop        string // why it ended; "" where it has not
	Finished    bool   // an unfinished run enters no statistic
	Final       *orchestrator.Evaluation
	FinalUpdate int     // the update after which the weights of Final came to be
	Points      []Point // by update, ascending; update 0 where the run measured the weights that it began with
	Cost        Cost
}

// Point is the state of a run after an update. Counts are cumulative from the run's start.
type Point struct {
	Update   int
	Episodes int                // training episodes, without those lost to infrastructure
	Tokens   int64              // sampled for training
	Active   float64            // seconds that the run was up
	Train    float64            // resolved share of the update's batch; 0 at update 0
	Reward   float64            // mean reward of the batch
	Heldout  *float64           // held-out rate measured after this update; nil if it was not
	Tasks    map[string]float64 // resolved share of each held-out task; set with Heldout, which is its mean

	// Health of the batch, by the names of docs/metrics.md.
	Turns               float64  // turns_mean
	SubmittedRate       float64  // submitted_rate
	EditedRate          *float64 // edited_rate; nil in runs of a program that did not record it
	Entropy             float64  // entropy, in nats; 0 where the update was skipped
	GroupsWithoutSignal float64  // groups_without_signal
}

// Cost is what a run took.
type Cost struct {
	Episodes int     // training episodes, without those lost to infrastructure
	Tokens   int64   // sampled for training
	Probes   int     // step probes of the training episodes
	Active   float64 // seconds that the run was up, evaluations included
}

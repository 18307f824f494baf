package ablation

// Basis is the budget at which arms are compared.
type Basis string

// The bases.
const (
	AtEpisodes Basis = "episodes" // the largest count of training episodes that every finished run reached
	AtTokens   Basis = "tokens"   // the largest count of sampled training tokens that every finished run reached
)

// Bases are all of them, in the order in which they are reported.
var Bases = []Basis{AtEpisodes, AtTokens}

// Interval is closed.
type Interval struct{ Low, High float64 }

// Contains reports whether v lies in the interval.
func (i Interval) Contains(v float64) bool { return i.Low <= v && v <= i.High }

// Estimate is a mean over seeds and tasks with its uncertainty. Rates are in [0,1], differences in [-1,1].
type Estimate struct {
	Value     float64
	Bootstrap Interval  // percentiles of the two-level bootstrap over seeds and tasks
	T         *Interval // Student's t over seeds, the tasks taken as given; nil with fewer than two seeds or without spread
	Seeds     []int64   // that it is the mean over
	Tasks     int       // that it is the mean over
	PerSeed   []float64 // as long as Seeds
}

// Result is what a study shows.
type Result struct {
	Reference   string
	Finished    int // runs that ended, of
	Runs        int
	Episodes    int   // the count of AtEpisodes; 0 while no run has ended
	Tokens      int64 // the count of AtTokens; 0 while no run has ended
	Tasks       int   // held-out tasks that occur in any evaluation
	Start       *Estimate
	Arms        []ArmResult  // in the order of the study
	Comparisons []Comparison // of each basis in turn, in the order of the study; what could not be compared is left out and told in Warnings
	Warnings    []string     // everything a reader has to know: unfinished runs, unpaired seeds and tasks, curves too short
}

// ArmResult is what the finished runs of one arm show. An estimate is nil where no finished run has what it needs.
type ArmResult struct {
	Name           string
	Runs, Finished int
	Final          *Estimate // of the evaluation after training, whatever each run had used up
	Gain           *Estimate // Final over the cold start, paired by task
	AtEpisodes     *Estimate
	AtTokens       *Estimate
	AreaEpisodes   *Estimate // mean held-out rate over the first Result.Episodes episodes
	AreaTokens     *Estimate // mean held-out rate over the first Result.Tokens tokens
	Cost           MeanCost
	Train          []BandPoint // resolved share of the training batches, smoothed, by update
	Edited         []BandPoint // share of their episodes that changed anything, smoothed, by update
	Heldout        []BandPoint // held-out rate, by sampled tokens
}

// MeanCost is the mean over an arm's finished runs, and what the search for its learning rate took beside them.
type MeanCost struct {
	Episodes, Tokens, Probes float64
	Active                   float64 // seconds
	Trials, TrialUpdates     int     // of the search, sums
}

// BandPoint is one place of a curve over the seeds of an arm.
type BandPoint struct {
	Update          int
	Episodes        float64 // mean over the runs
	Tokens          float64 // mean over the runs
	Mean, Low, High float64 // mean, smallest and largest of the runs
	Runs            int
}

// Verdict says in words what a comparison shows at the level of the study.
type Verdict string

// The verdicts. Better and worse need both tests, each corrected over all comparisons on the same basis: the p of the
// bootstrap and that of t over seeds at most the level. Where only the first holds, too few seeds (or seeds too far
// apart) stand behind it.
const (
	Better      Verdict = "better"
	LeansBetter Verdict = "leans better"
	Same        Verdict = "not told apart"
	LeansWorse  Verdict = "leans worse"
	Worse       Verdict = "worse"
)

// Comparison is one arm minus the reference, paired by seed and by task.
type Comparison struct {
	Arm        string
	Basis      Basis
	Difference Estimate // its Seeds and Tasks are those that both arms have
	P          float64  // two-sided, of the bootstrap
	Corrected  float64  // P corrected over the comparisons on the same basis
	PT         *float64 // two-sided, of the paired t test over seeds; nil where Difference.T is
	CorrectedT *float64 // PT corrected like P; a comparison without one counts in the family as 1
	Verdict    Verdict
}

// Compare finds the comparison of an arm on a basis; nil where there is none.
func (r Result) Compare(arm string, b Basis) *Comparison {
	for i, c := range r.Comparisons {
		if c.Arm == arm && c.Basis == b {
			return &r.Comparisons[i]
		}
	}
	return nil
}

package orchestrator

import (
	"context"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// Rollouts runs one episode to its end. The error is for misuse and cancellation only: infrastructure failure is an
// episode with status infra_error. When ctx ends the episode ends soon, with status cancelled and what it has so far, and
// nothing of it runs any more once Run returned.
type Rollouts interface {
	Run(ctx context.Context, task *milepost.Task, spec EpisodeSpec) (*milepost.Episode, error)
}

// Probes are the results of shadow probing.
type Probes interface {
	// Baseline runs the untouched tree of the task, once per task and run.
	Baseline(ctx context.Context, task *milepost.Task) (*milepost.Probe, error)
	// Fill is the finalising barrier: it sets Step.Probe and Outcome.Verdict of the episodes from what came back within
	// the bound. What is late has status late and is not trusted.
	Fill(ctx context.Context, episodes []*milepost.Episode, bound time.Duration) error
	// Stats are running totals by name; see shadow.Stats.
	Stats() map[string]float64
}

// Row is one training sequence: a sample of an episode with a mask and an advantage for each token. All slices have
// the sample's length T.
type Row struct {
	Episode    string
	Tokens     []int32
	Logprobs   []float32 // the sampler's
	Versions   []int32   // -1 where not sampled
	Mask       []bool    // trained tokens: those the policy sampled
	Advantages []float32 // 0 where not trained; constant over the tokens of a step, but where the estimator has values

	Values  []float32 // a value head's before the update, 0 where not trained; nil where the estimator needs no values
	Returns []float32 // what the value head learns; nil where Values is nil

	Routes *milepost.Routes // experts of the first tokens; nil where the run does not replay them
}

// Learner is the trainer.
type Learner interface {
	// WriteBatch stores rows at path and returns the file's SHA-256.
	WriteBatch(path string, rows []Row) (string, error)
	// Update does one update step on a stored batch and returns its metrics by name.
	Update(ctx context.Context, update int, path, sha256 string) (map[string]float64, error)
	// Save writes a checkpoint with a commit marker into a new directory; Load continues from one, or from a model.
	Save(ctx context.Context, dir string) error
	Load(ctx context.Context, dir string) error
	// Export writes the weights for the servers into a new directory.
	Export(ctx context.Context, dir string) error
}

// Valuer is a Learner with a value head; one is needed where the estimator is one with values (credit.NeedsValues).
type Valuer interface {
	// Values returns, for each row of a batch as WriteBatch stored it, the value of each trained token in order, by the
	// weights of now. It is called before the advantages are known, once an update, or under dynamic sampling once a group;
	// never twice at the same time.
	Values(ctx context.Context, path, sha256 string) ([][]float32, error)
}

// Weights brings weights to every server and proves by a canary that they took.
type Weights interface {
	// Push serves the weights in dir as the given version and returns its metrics by name.
	Push(ctx context.Context, version int32, dir string) (map[string]float64, error)
}

// Deps are the parts a run is made of.
type Deps struct {
	Rollouts Rollouts
	Probes   Probes
	Learner  Learner
	Weights  Weights
	Now      func() time.Time

	// Unbounded says that Rollouts bounds by itself how many episodes run at once, as workers on other machines do; otherwise
	// schedule.concurrency of them do.
	Unbounded bool
	Workers   func() map[string]float64 // running totals of rollout workers by name (docs/metrics.md); nil where there are none
	Report    func(Status)              // called from one goroutine at a time whenever something changes; may be nil

	// Recorded is called with every line of metrics.jsonl once it is there, in order, one at a time; it must return at once.
	// May be nil.
	Recorded func(MetricsLine)
}

// Status is what a person watching a run is told.
type Status struct {
	Phase      Phase
	Update     int
	MaxUpdates int
	Done       int // episodes ended of the current batch
	Total      int // episodes of the current batch
	Version    int32
	Since      time.Duration      // time in this phase
	Line       string             // a line worth keeping, or ""
	Metrics    map[string]float64 // of the update or evaluation that Line tells of
}

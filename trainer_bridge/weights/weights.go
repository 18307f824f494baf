package weights

import (
	"context"
	"time"

	"github.com/milepost-rl/milepost/internal/vllm"
)

// Weights are what a push makes servers serve: a directory in Hugging Face format, under a version.
type Weights struct {
	Version int32
	Dir     string // absolute
}

// Method is one way to bring weights into a server. A pusher calls it for several servers at once, never twice at once
// for the same one; what one server does must neither fail nor hold up another beyond the method's own bounds.
type Method interface {
	// Name is the method's value in the configuration and in reports.
	Name() string
	// Exclusive reports whether only one server may be updated at a time; the others sample on until their turn.
	Exclusive() bool
	// Check refuses weights that the method cannot bring to any server (kinds invalid, not_found); it contacts none.
	Check(Weights) error
	// Prepare does what can be done while the server still samples, to keep the pause short. An error counts as the
	// server's.
	Prepare(ctx context.Context, server *vllm.Client, w Weights) error
	// Load puts the weights into the server, whose scheduler is paused and whose requests under way are kept. After an
	// error what the server holds is unknown; it is loaded again, or gets no request.
	Load(ctx context.Context, server *vllm.Client, w Weights) error
}

// Gate keeps requests from a replica while its weights change, and samples of weights that the canary did not see from
// the run; policy.Pool is one. Methods of kind Beside call neither Shut nor, but in the end, Quarantine. For each url of a push Shut comes first, and then at most one of the others; before each
// further attempt Quarantine and Shut come once more. A replica for which neither of the others came (the caller left, or
// the trainer failed, which says nothing of the replica) stays shut.
type Gate interface {
	// Shut is called before anything changes.
	Shut(url string)
	// Approve: the canary agreed to this version on this replica.
	Approve(url string, version int32)
	// Quarantine: the replica failed, or serves other weights than it says; nothing that it samples is to be trusted until
	// a later push approves it.
	Quarantine(url string, version int32, why error)
}

// Report says what a push did; times are nanoseconds in JSON.
type Report struct {
	Version   int32            `json:"version"`
	Dir       string           `json:"dir"`
	Method    string           `json:"method"`
	Endpoints []EndpointReport `json:"endpoints"`
	Pause     time.Duration    `json:"pause"` // longest pause of an endpoint
	Load      time.Duration    `json:"load"`  // longest load of an endpoint
	Total     time.Duration    `json:"total"` // with the canary
	Cold      Gap              `json:"cold"`  // over all approved endpoints, empty prefix cache
	Warm      Gap              `json:"warm"`  // the same again, prefixes cached
	Bound     float64          `json:"bound"` // that the mean gap of an endpoint must not exceed
	// RolledBack is the version that was put back where no replica took this one; -1 = none.
	RolledBack int32 `json:"rolled_back"`
}

// EndpointReport is the part of one server, of its last attempt.
type EndpointReport struct {
	URL         string        `json:"url"`
	Pause       time.Duration `json:"pause"` // from pause to resume
	Load        time.Duration `json:"load"`  // of it, the method's Load
	Cold        Gap           `json:"cold"`  // canary with an empty prefix cache
	Warm        Gap           `json:"warm"`  // the same again, prefixes cached
	Attempts    int           `json:"attempts"`
	Approved    bool          `json:"approved"`
	Quarantined bool          `json:"quarantined"`
	Error       string        `json:"error,omitempty"` // of the last attempt that failed
}

// Gap is the difference of two logprobs of the same sampled tokens.
type Gap struct {
	Mean   float64 `json:"mean"` // of the absolute difference
	Max    float64 `json:"max"`
	Tokens int     `json:"tokens"`
}

// join is the gap over both.
func (g Gap) join(h Gap) Gap {
	n := g.Tokens + h.Tokens
	if n == 0 {
		return g
	}
	return Gap{
		Mean: (g.Mean*float64(g.Tokens) + h.Mean*float64(h.Tokens)) / float64(n),
		Max:  max(g.Max, h.Max), Tokens: n,
	}
}

// Metrics are the figures of a run's metrics file.
func (r Report) Metrics() map[string]float64 {
	gap := r.Cold.join(r.Warm)
	repeats, quarantined := 0, 0
	for _, e := range r.Endpoints {
		repeats += max(0, e.Attempts-1)
		if e.Quarantined {
			quarantined++
		}
	}
	return map[string]float64{
		"push_version": float64(r.Version), "push_pause_seconds": r.Pause.Seconds(), "push_load_seconds": r.Load.Seconds(), "push_seconds": r.Total.Seconds(),
		"push_repeats": float64(repeats), "push_quarantined": float64(quarantined),
		"canary_gap_mean": gap.Mean, "canary_gap_max": gap.Max, "canary_tokens": float64(gap.Tokens),
		"canary_gap_cold": r.Cold.Mean, "canary_gap_warm": r.Warm.Mean,
	}
}

// sum fills in what is over all endpoints.
func (r *Report) sum() {
	for _, e := range r.Endpoints {
		r.Pause, r.Load = max(r.Pause, e.Pause), max(r.Load, e.Load)
		if e.Approved {
			r.Cold, r.Warm = r.Cold.join(e.Cold), r.Warm.join(e.Warm)
		}
	}
}

package weights

import (
	"context"
	"time"
)

// Pusher brings weights to every server.
type Pusher interface {
	// Push makes every server serve the weights in dir under the given version, and returns after the canary passed on
	// each. Kinds: KindInvalid for a bad version, KindNotFound where dir has no weights, KindUnavailable where a server
	// failed, KindConflict where it holds requests that it must not, KindCorrupt where the canary found other weights
	// than the trainer's. The report is valid, as far as it got, with an error too.
	Push(ctx context.Context, version int32, dir string) (Report, error)
}

// Gate keeps new requests from the servers while weights change; policy.Pool is one.
type Gate interface {
	Pause()
	Resume()
}

// Report says what a push did.
type Report struct {
	Version   int32            `json:"version"`
	Dir       string           `json:"dir"`
	Endpoints []EndpointReport `json:"endpoints"`
	Pause     time.Duration    `json:"pause"` // longest pause of an endpoint
	Total     time.Duration    `json:"total"` // with the canary
	Gap       Gap              `json:"gap"`   // over all endpoints, cold and warm
	Bound     float64          `json:"bound"` // that Gap.Mean of an endpoint must not exceed
}

// EndpointReport is the part of one server.
type EndpointReport struct {
	URL    string        `json:"url"`
	Pause  time.Duration `json:"pause"`  // from pause to resume
	Reload time.Duration `json:"reload"` // of it
	Cold   Gap           `json:"cold"`   // canary with an empty prefix cache
	Warm   Gap           `json:"warm"`   // the same again, prefixes cached
	Error  string        `json:"error,omitempty"`
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
	return map[string]float64{
		"push_version": float64(r.Version), "push_pause_seconds": r.Pause.Seconds(), "push_seconds": r.Total.Seconds(),
		"canary_gap_mean": r.Gap.Mean, "canary_gap_max": r.Gap.Max, "canary_tokens": float64(r.Gap.Tokens),
	}
}

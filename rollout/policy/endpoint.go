package policy

import (
	"time"

	"github.com/milepost-rl/milepost/internal/vllm"
)

// endpoint is one server of a pool with its circuit. All fields but client are guarded by Pool.mu.
//
// The circuit: closed while fails < OpenAfter; then open until openUntil, in which time it gets no request; then
// half-open: one request (trial) is let through, whose end closes or opens it again.
type endpoint struct {
	client    *vllm.Client
	running   int // requests under way
	fails     int // consecutive failures
	openUntil time.Time
	trial     bool // a half-open trial is under way
	last      error
	done      int64
	failed    int64
}

type circuit string

const (
	closed   circuit = "closed"
	open     circuit = "open"
	halfOpen circuit = "half-open"
)

func (e *endpoint) circuit(now time.Time, openAfter int) circuit {
	switch {
	case e.fails < openAfter:
		return closed
	case now.Before(e.openUntil):
		return open
	}
	return halfOpen
}

// room reports whether the endpoint may take a request now, and whether it is worth waiting for where it may not.
func (e *endpoint) room(now time.Time, openAfter, most int) (free, worthIt bool) {
	switch e.circuit(now, openAfter) {
	case closed:
		return e.running < most, true
	case halfOpen:
		return !e.trial && e.running < most, true
	}
	return false, false
}

// EndpointStats is the state of one endpoint.
type EndpointStats struct {
	URL     string `json:"url"`
	Circuit string `json:"circuit"` // closed, open or half-open
	Running int    `json:"running"`
	Done    int64  `json:"done"`   // requests answered
	Failed  int64  `json:"failed"` // requests that failed by the endpoint's fault
	Last    string `json:"last_error,omitempty"`
}

package policy

import (
	"context"
	"math"
	"time"

	"github.com/milepost-rl/milepost/internal/vllm"
)

// State is where an endpoint stands. Joining leads to open by Approve; open to shut and back at every push; Quarantine
// leads out of any, and Approve back.
type State string

// The states of an endpoint.
const (
	StateJoining     State = "joining"     // no weights were pushed to it yet
	StateOpen        State = "open"        // samples
	StateShut        State = "shut"        // weights change, or it is leaving: what is under way goes on, nothing is begun
	StateQuarantined State = "quarantined" // the canary disagreed, or the push failed
)

// NoVersion is the approved version of an endpoint that nothing was approved of.
const NoVersion int32 = -1

// trusted is the approved version of an endpoint that is open for whatever it serves.
const trusted int32 = math.MaxInt32

// passing is what becomes of an answer.
type passing int

const (
	passes passing = iota
	waits          // its newest token is not approved yet
	fails          // it holds a token of a version that never was approved in the term
	voids          // its term is over
)

// judge says what becomes of an answer of the request's term whose tokens were sampled under these versions.
func (s EndpointState) judge(oldest, newest int32) passing {
	switch {
	case newest > s.Approved:
		return waits
	case oldest < s.Since:
		return fails
	}
	return passes
}

// EndpointState is what a pool knows of an endpoint that a pool on another machine has to know, too.
type EndpointState struct {
	URL      string `json:"url"`
	State    State  `json:"state"`
	Approved int32  `json:"approved"`      // newest weight version whose tokens may leave; NoVersion at first
	Since    int32  `json:"since"`         // oldest one: the first that was approved in the term
	Term     uint64 `json:"term"`          // changes whenever what is under way at the endpoint stops being trusted
	Why      string `json:"why,omitempty"` // of quarantined
}

// EndpointStats is the state of one endpoint with its figures.
type EndpointStats struct {
	EndpointState
	Circuit string `json:"circuit"` // closed, open or half-open
	Running int    `json:"running"` // requests under way, answers that are held included
	Held    int    `json:"held"`    // answers that wait for Approve
	Done    int64  `json:"done"`    // requests answered
	Failed  int64  `json:"failed"`  // requests that failed by the endpoint's fault
	Last    string `json:"last_error,omitempty"`
}

// endpoint is one server of a pool with its circuit. All fields but client are guarded by Pool.mu.
//
// The circuit: closed while fails < OpenAfter; then open until openUntil, in which time it gets no request; then
// half-open: one request (trial) is let through, whose end closes or opens it again.
type endpoint struct {
	EndpointState
	client  *vllm.Client
	member  life          // from Add to Remove; requests that sample nothing end with it
	trust   life          // one term; requests that sample end with it
	pushing bool          // shut by a push that neither Approve nor Quarantine has ended
	leaving bool          // Approve opens it no more
	news    chan struct{} // closed and replaced when approved changes or nothing runs any more

	running   int // requests under way
	held      int
	fails     int // consecutive failures
	openUntil time.Time
	trial     bool // a half-open trial is under way
	last      error
	done      int64
	failed    int64
}

// life is a span of time that ends once: a context, with what ends it.
type life struct {
	context.Context
	end context.CancelFunc
}

func newLife() life {
	ctx, end := context.WithCancel(context.Background())
	return life{ctx, end}
}

// tell wakes those who wait for the endpoint's news.
func (e *endpoint) tell() {
	close(e.news)
	e.news = make(chan struct{})
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

// room reports whether the circuit lets a request go to the endpoint now, and whether it is worth waiting for where it
// does not.
func (e *endpoint) room(now time.Time, openAfter, most int) (free, worthIt bool) {
	switch e.circuit(now, openAfter) {
	case closed:
		return e.running < most, true
	case halfOpen:
		return !e.trial && e.running < most, true
	}
	return false, false
}

package logs

import (
	"iter"
	"strings"
)

// Status is what a log says of one test. The five constants are the regular ones; a parser that takes the first word
// of a line as the status, as the referee's pytest parsers do, may report another word ("ERRORS", "FAILED:"), which counts
// neither as passed nor as failed.
type Status string

// The regular states.
const (
	Passed  Status = "PASSED"
	Failed  Status = "FAILED"
	Skipped Status = "SKIPPED"
	Errored Status = "ERROR"
	XFail   Status = "XFAIL"
)

// MaxResults bounds the distinct tests of one log. The largest public task lists some 20,000; a log with more than this
// is an attempt to fill memory, and [Parse] refuses it.
const MaxResults = 1 << 20

// Results maps test names to states, in the order in which the log first named them. The zero value is empty and ready.
// It is not safe for concurrent change.
type Results struct {
	names  []string
	states map[string]Status
	full   bool // a test beyond MaxResults was dropped
}

// Set notes the state of a test; a test reported again keeps its place and takes the new state.
func (r *Results) Set(name string, s Status) {
	if r.states == nil {
		r.states = map[string]Status{}
	}
	if _, ok := r.states[name]; !ok {
		if len(r.names) == MaxResults {
			r.full = true
			return
		}
		name = strings.Clone(name) // it is cut from the log, which must not stay in memory for it
		r.names = append(r.names, name)
	}
	switch s { // constants take no copy
	case Passed, Failed, Skipped, Errored, XFail:
	default:
		s = Status(strings.Clone(string(s)))
	}
	r.states[name] = s
}

// Get returns the state of a test and whether the log named it.
func (r *Results) Get(name string) (Status, bool) {
	s, ok := r.states[name]
	return s, ok
}

// Len is the number of tests.
func (r *Results) Len() int { return len(r.names) }

// All yields names and states in order of first appearance.
func (r *Results) All() iter.Seq2[string, Status] {
	return func(yield func(string, Status) bool) {
		for _, n := range r.names {
			if !yield(n, r.states[n]) {
				return
			}
		}
	}
}

// Any reports whether some test has one of the states.
func (r *Results) Any(states ...Status) bool {
	for _, s := range r.states {
		for _, want := range states {
			if s == want {
				return true
			}
		}
	}
	return false
}

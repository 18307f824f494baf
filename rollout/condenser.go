package rollout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

// The values of Condenser.Kind.
const (
	CondenseNone         = "none"         // the whole history, as long as the context holds it
	CondenseObservations = "observations" // old observations become one line that says how much is gone
	CondenseWindow       = "window"       // old turns leave, call and observation
)

// Condenser says what of the history a policy still sees. A turn is what was sampled and the observation that answered it.
// The opening (system message and task) always stays, and so does what was sampled under observations.
//
// A policy never trains on a history it did not see: where the condenser changes what stood before a turn, the token-exact
// model begins a new training sample, whose prompt is what the server was sent.
type Condenser struct {
	// Kind is none, observations (SWE-agent's last_n_observations, OpenHands' observation masking) or window (recent turns).
	Kind string `yaml:"kind"`
	// Keep is the number of latest turns that stay whole.
	Keep int `yaml:"keep"`
	// First is the number of first turns that stay whole besides.
	First int `yaml:"first"`
	// Every condenses once every so many turns, so that Keep to Keep+Every-1 turns stay whole: each change of the history
	// costs the server's prefix cache and begins a training sample.
	Every int `yaml:"every"`
}

// DefaultCondenser keeps everything; its numbers are SWE-agent's five observations, changed every fifth turn.
func DefaultCondenser() Condenser { return Condenser{Kind: CondenseNone, Keep: 5, Every: 5} }

// Condensers lists the kinds.
func Condensers() []string { return []string{CondenseNone, CondenseObservations, CondenseWindow} }

// Validate reports the first field that is out of range, by its YAML name.
func (c Condenser) Validate() error {
	bad := func(format string, args ...any) error {
		return milepost.E("rollout: condenser", milepost.KindInvalid, format, args...)
	}
	switch {
	case !slices.Contains(Condensers(), c.Kind):
		return bad("kind: %q is not one of %s", c.Kind, strings.Join(Condensers(), ", "))
	case c.Keep < 1:
		return bad("keep: %d is not at least 1; the policy must see what its last call did", c.Keep)
	case c.First < 0:
		return bad("first: %d is negative", c.First)
	case c.Every < 1:
		return bad("every: %d is not at least 1", c.Every)
	}
	return nil
}

// Fate is what a condenser does to one turn of the history.
type Fate int8

// The fates of a turn.
const (
	FateKept    Fate = iota // call and observation as they were
	FateMasked              // the call as it was, the observation replaced by [Masked]
	FateDropped             // neither
)

// Fates gives the fate of each of the turns so far, oldest first. It depends on their number alone, so a history only ever
// loses more.
func (c Condenser) Fates(turns int) []Fate {
	out := make([]Fate, turns)
	fate := FateKept
	switch c.Kind {
	case CondenseObservations:
		fate = FateMasked
	case CondenseWindow:
		fate = FateDropped
	default: // none, and the zero value
		return out
	}
	for i := c.First; i < turns/c.Every*c.Every-c.Keep; i++ {
		out[i] = fate
	}
	return out
}

// Masked is what stands in the place of an observation that was masked; the wording is SWE-agent's.
func Masked(observation string) string {
	n := strings.Count(strings.TrimSuffix(observation, "\n"), "\n") + 1
	return fmt.Sprintf("Old environment output: (%d lines omitted)", n)
}

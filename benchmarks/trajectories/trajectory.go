package trajectories

import (
	"fmt"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// Trajectory is one attempt of another system, as a conversation in which each turn makes at most one call.
type Trajectory struct {
	ID       string // unique in its file as far as its system makes it so
	Task     string // instance id; "" where the record names none
	Format   string // the name of its Format
	File     string
	Row      int
	Exit     string          // exit status in the system's own words; "" where it states none
	Resolved *bool           // nil where the record does not say
	Tools    []toolcall.Spec // nil where the record does not tell its tools
	Opening  []Message       // system and user
	Turns    []Turn
}

// Message is one message of the opening, or one that follows an observation.
type Message struct {
	Role string // system or user
	Text string
}

// Turn is one answer of the policy and what answered it.
type Turn struct {
	Text     string         // what it said beside the call, its thinking included
	Call     *toolcall.Call // nil where it made none. Arguments are as recorded, JSON or not
	Answered bool           // false for the last turn of a trajectory that ends with it
	Observed string
	ByUser   bool      // the answer was a message of the user, not of a tool
	After    []Message // messages of the user behind the answer
	Masked   string    // why the turn is not trained; "" where it is
}

// message is one message of a recorded chat, before it is held to anything.
type message struct {
	role   string // system, user, assistant, tool
	text   string
	calls  []toolcall.Call
	callID string // of a tool's answer
	fault  string // of a tool's or user's answer: why the turn before was faulty, in the system's own record
	masked bool   // of an assistant's turn: the record says that it is not to be trained
	at     string // where it stands in the record, for messages
}

// recorded is what a Format makes of a record.
type recorded struct {
	id, task, exit string
	resolved       *bool
	tools          []toolcall.Spec
	messages       []message
}

// fieldError is a fault of one field of a record.
type fieldError struct {
	field string
	err   error
}

func (e *fieldError) Error() string { return fmt.Sprintf("field %s: %v", e.field, e.err) }
func (e *fieldError) Unwrap() error { return e.err }

// field makes a fault of a field.
func field(name, format string, args ...any) error {
	return &fieldError{name, fmt.Errorf(format, args...)}
}

// faultIn places a fault: file, row and, where it is known, the trajectory.
func faultIn(r record, id string, err error) error {
	at := fmt.Sprintf("%s: row %d", r.file, r.row)
	if id != "" {
		at += fmt.Sprintf(" (%s)", id)
	}
	return milepost.E("trajectories: read", milepost.KindInvalid, "%s: %w", at, err)
}

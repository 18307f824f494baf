package milepost

import (
	"context"
	"errors"
	"fmt"
)

// Kind says what sort of failure an [Error] is. The set is closed; callers branch on it.
type Kind string

// The kinds of failure. Only the ones for which [Kind.Infra] holds are worth a retry.
const (
	KindInvalid     Kind = "invalid"     // the input is wrong; the message names the place and what is allowed
	KindNotFound    Kind = "not_found"   // something named does not exist
	KindConflict    Kind = "conflict"    // another owner, epoch or version got there first
	KindLimit       Kind = "limit"       // a budget of the task or episode is spent (turns, tokens, output, context)
	KindTimeout     Kind = "timeout"     // the task's own command ran past its time
	KindMemory      Kind = "memory"      // the task's own command was killed for its memory
	KindDenied      Kind = "denied"      // policy forbids it (protected path, network, path outside the workspace)
	KindUnavailable Kind = "unavailable" // infrastructure: an endpoint, server, sandbox or disk failed
	KindCanceled    Kind = "canceled"    // the caller gave up
	KindCorrupt     Kind = "corrupt"     // stored or received data contradicts its own hash or schema
	KindInternal    Kind = "internal"    // a bug in Milepost
)

// Infra reports whether the failure is the infrastructure's and not the task's or the caller's (design: infrastructure
// failure is not a wrong answer; only it is retried).
func (k Kind) Infra() bool { return k == KindUnavailable || k == KindCorrupt || k == KindInternal }

// Error is the one error type that crosses package borders: the operation, its kind and what happened. It is wrapped
// once, where the failure is understood, and survives the wire as its three fields (after upspin/errors).
type Error struct {
	Op   string // what was being done, as "package: verb", for example "env: exec"
	Kind Kind
	Err  error // what happened, in words for a person
}

// Error returns "op: message (kind)".
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %s", e.Op, e.Kind)
	}
	return fmt.Sprintf("%s: %v", e.Op, e.Err)
}

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

// E makes an error of the given operation and kind from a format, as fmt.Errorf does.
func E(op string, kind Kind, format string, args ...any) error {
	return &Error{Op: op, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Wrap gives err an operation and kind unless it already is an [*Error], which is returned as it is: errors are
// wrapped once. A cancelled or expired context keeps its meaning whatever kind is asked for. Wrap(nil) is nil.
func Wrap(op string, kind Kind, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	if errors.Is(err, context.Canceled) {
		kind = KindCanceled
	}
	return &Error{Op: op, Kind: kind, Err: err}
}

// KindOf returns the kind of err: that of the outermost [*Error] in its chain, [KindCanceled] for a cancelled context,
// "" for nil and [KindInternal] for anything else.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	if errors.Is(err, context.Canceled) {
		return KindCanceled
	}
	return KindInternal
}

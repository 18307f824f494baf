package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// act finds the call of a turn, carries it out and fills the step in. answer is what the model is to see. An error is
// the infrastructure's or the caller's; the step says then how far it came.
func (l *loop) act(caller, ctx context.Context, turn Turn, step *milepost.Step) (answer ToolResult, submitted bool, err error) {
	began := l.deps.Clock.Now()
	call, violation, why, shape := l.call(turn)
	step.Action.Tool, step.Action.Arguments = call.Name, call.Arguments
	if violation != "" {
		step.Violation, step.Observed = violation, l.tools.Fault(why, shape)
	} else {
		submitted, err = l.execute(caller, ctx, call, step)
		l.linger(ctx)
	}
	step.ToolTime = l.deps.Clock.Now().Sub(began)
	return ToolResult{CallID: call.ID, Tool: call.Name, Text: step.Observed}, submitted, err
}

// call finds the one call of a turn and holds it against the tools, or says which form it broke and how; shape shows how a
// call looks where that helps.
//
// A turn must hold exactly one call: with more than one none is executed, since the policy could not see what the first
// did before it wrote the second. A turn that was cut off is not executed either, whatever it holds.
func (l *loop) call(turn Turn) (call ToolCall, violation milepost.Violation, why, shape string) {
	calls := turn.Calls
	var err error
	if calls == nil {
		shape = l.format.Shape()
		calls, err = l.format.Parse(turn.Text)
	}
	switch {
	case turn.Finish == FinishLength:
		return ToolCall{}, milepost.ViolationParse, fmt.Sprintf("the turn was cut off after %d tokens", turn.Tokens), shape
	case err != nil:
		return ToolCall{}, milepost.ViolationParse, toolcall.Why(err), shape
	case len(calls) == 0:
		return ToolCall{}, milepost.ViolationParse, "no tool call found", shape
	case len(calls) > 1:
		return ToolCall{}, milepost.ViolationParse, fmt.Sprintf("%d calls in one turn; make exactly one", len(calls)), ""
	}
	call = calls[0]
	call.Arguments = bytes.TrimSpace(call.Arguments)
	if len(call.Arguments) == 0 {
		call.Arguments = json.RawMessage("{}") // how some endpoints write a call without arguments
	}
	if !json.Valid(call.Arguments) || call.Arguments[0] != '{' {
		call.Arguments = nil
		return call, milepost.ViolationParse, fmt.Sprintf("the arguments of %s are not a JSON object", call.Name), ""
	}
	if why := l.tools.Check(call); why != "" {
		return call, milepost.ViolationSchema, why, ""
	}
	return call, "", "", ""
}

// execute runs a well-formed call and settles what it did to the repository.
func (l *loop) execute(caller, ctx context.Context, call ToolCall, step *milepost.Step) (submitted bool, err error) {
	mark := l.session.Mark()
	result, err := l.tools.Run(ctx, l.session, call)
	outOfTime := err != nil && context.Cause(ctx) == errWall
	if err != nil && !outOfTime {
		step.Valid, step.Observed = true, "[not finished]"
		return false, err
	}
	step.Executed = result.Violation == ""
	step.Violation, step.Observed, step.Exposures = result.Violation, result.Text, result.Exposures
	if outOfTime {
		step.Observed = "[stopped: the episode's time is over]"
	}
	if l.tools.Tool(call.Name).Writes() {
		var s settled
		if s, err = l.settle(caller, call.Name); err != nil {
			step.Valid, step.Exposures = true, nil
			return false, err
		}
		if s.rolled != "" {
			l.session.Rewind(mark)
			step.Observed, step.Exposures = l.tools.Bound(s.rolled), nil // its output is not shown
		}
		if s.violation != "" {
			step.Violation = s.violation
		}
		step.Changed, step.Tree = s.changed, l.repo.now.tree
	}
	step.Valid = step.Violation == ""
	return result.Submit, nil
}

// linger waits for ToolWait, or until the episode is over.
func (l *loop) linger(ctx context.Context) {
	if l.cfg.ToolWait == 0 {
		return
	}
	over := make(chan struct{})
	stop := l.deps.Clock.AfterFunc(l.cfg.ToolWait, func() { close(over) })
	defer stop()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// validText is text that JSON can hold.
func validText(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

package trajectories

import (
	"slices"

	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// build holds recorded messages to what a conversation is: a system message at most and first, a task, then turns of the
// policy, each answered before the next. A turn of several calls becomes as many turns, each with its own answer: that is
// how Milepost's loop has a policy act.
func build(r recorded) (*Trajectory, error) {
	t := &Trajectory{ID: r.id, Task: r.task, Exit: r.exit, Resolved: r.resolved, Tools: r.tools}
	rest := r.messages
	for len(rest) > 0 && rest[0].role != "assistant" {
		m := rest[0]
		switch {
		case m.role == "system" && len(t.Opening) > 0:
			return nil, field(m.at, "a system message behind others; allowed: first")
		case m.role == "tool":
			return nil, field(m.at, "a tool's result before any call")
		}
		t.Opening, rest = append(t.Opening, Message{m.role, m.text}), rest[1:]
	}
	if !slices.ContainsFunc(t.Opening, func(m Message) bool { return m.Role == "user" }) {
		return nil, field("messages", "no user message before the first turn; allowed: the task first")
	}
	if len(rest) == 0 {
		return nil, field("messages", "no assistant message; allowed: at least one")
	}
	for len(rest) > 0 {
		var turns []Turn
		var err error
		if turns, rest, err = exchange(rest); err != nil {
			return nil, err
		}
		t.Turns = append(t.Turns, turns...)
	}
	return t, nil
}

// exchange takes one assistant message and what answers it off the front.
func exchange(m []message) (turns []Turn, rest []message, err error) {
	said := m[0]
	if said.role != "assistant" {
		return nil, nil, field(said.at, "a message of %s where the assistant's next turn is wanted", said.role)
	}
	if len(said.calls) == 0 {
		turns = []Turn{{Text: said.text}}
	}
	for i := range said.calls {
		turns = append(turns, Turn{Call: &said.calls[i]})
	}
	turns[0].Text = said.text
	if said.masked {
		turns[0].Masked = "the record masks it"
	}
	rest = m[1:]
	for len(rest) > 0 && rest[0].role != "assistant" {
		a := rest[0]
		rest = rest[1:]
		if err := answer(turns, a); err != nil {
			return nil, nil, err
		}
	}
	unanswered := slices.IndexFunc(turns, func(t Turn) bool { return !t.Answered })
	switch {
	case unanswered < 0:
		return turns, rest, nil
	case len(rest) == 0: // the trajectory ends here
		return turns[:unanswered+1], nil, nil
	case turns[unanswered].Call != nil:
		return nil, nil, field(said.at, "call %d, to %q, has no result before the next turn", unanswered+1, turns[unanswered].Call.Name)
	}
	return nil, nil, field(rest[0].at, "the assistant speaks twice in a row; allowed: an answer between")
}

// answer gives an answer to the turn it belongs to.
func answer(turns []Turn, a message) error {
	switch a.role {
	case "system":
		return field(a.at, "a system message behind others; allowed: first")
	case "user":
		last := len(turns) - 1
		if turns[last].Answered {
			turns[last].After = append(turns[last].After, Message{a.role, a.text})
		} else if turns[0].Call == nil || a.fault != "" { // what was refused as a whole is answered as a whole
			turns[last].Answered, turns[last].ByUser, turns[last].Observed = true, true, a.text
			for i := range turns[:last] {
				turns[i].Answered, turns[i].ByUser, turns[i].Observed = true, true, a.text
			}
		} else {
			return field(a.at, "a user message where the result of the call to %q is wanted", turns[last].Call.Name)
		}
		if a.fault != "" {
			for i := range turns {
				turns[i].Masked = a.fault
			}
		}
		return nil
	}
	i := slices.IndexFunc(turns, func(t Turn) bool {
		inText := t.Call == nil && a.callID == "" // a call may stand in the text: [Trajectory.findCalls] sees to it that one does
		return !t.Answered && (inText || t.Call != nil && (a.callID == "" || t.Call.ID == a.callID))
	})
	if i < 0 {
		return field(a.at, "a tool's result for call %q, which the turn before did not make, or which has one", a.callID)
	}
	turns[i].Answered, turns[i].Observed = true, a.text
	if a.fault != "" {
		turns[i].Masked = a.fault
	}
	return nil
}

// calls reports whether any turn makes a call.
func (t *Trajectory) calls() bool {
	return slices.ContainsFunc(t.Turns, func(turn Turn) bool { return turn.Call != nil })
}

// spec finds the description of a tool.
func spec(tools []toolcall.Spec, name string) (toolcall.Spec, bool) {
	i := slices.IndexFunc(tools, func(s toolcall.Spec) bool { return s.Name == name })
	if i < 0 {
		return toolcall.Spec{}, false
	}
	return tools[i], true
}

package grade

import (
	milepost "github.com/milepost-rl/milepost"
)

// Holding counts the PASS_TO_PASS tests of a task that pass by the log of a run alone. Neither other tests nor the status
// of the test command, to which they contribute, have a say, so nothing of a test outside the list shows in the number.
// A run that came to no evaluation, or whose log cannot be read, holds none, and reason says why. The error is for a task
// whose log nobody can read (KindInvalid).
func Holding(t *milepost.Task, ev *Evidence) (n int, reason string, err error) {
	if ev.Fault != "" {
		return 0, string(ev.Fault) + ": " + ev.Reason, nil
	}
	parse, err := parserOf(t)
	if err != nil {
		return 0, "", err
	}
	part, ok := between(ev.Log)
	if !ok {
		part = ev.Log // it was ended before the end marker: what it printed counts
	}
	r, err := parse(part)
	if err != nil {
		return 0, "the log cannot be read: " + err.Error(), nil
	}
	for _, name := range t.PassToPass {
		if s, ok := stateOf(name, r); ok && passing(s) {
			n++
		}
	}
	return n, "", nil
}

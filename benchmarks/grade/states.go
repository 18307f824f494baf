package grade

import (
	"strings"

	"github.com/milepost-rl/milepost/benchmarks/grade/logs"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
)

// Source of the rules: swebench 5.0.2, harness/grading.py.

// passing reports whether a state counts as a pass: XFAIL, an expected failure, does.
func passing(s logs.Status) bool { return s == logs.Passed || s == logs.XFail }

// stateOf looks a test up. A name with an open bracket is one that the data set cut off inside its parameters (676 names
// of SWE-bench Verified, issue 290): the first test it is the beginning of stands for it, if all of those agree on passing.
func stateOf(name string, r *logs.Results) (logs.Status, bool) {
	if s, ok := r.Get(name); ok {
		return s, true
	}
	if strings.Count(name, "[") <= strings.Count(name, "]") {
		return "", false
	}
	var first logs.Status
	found := false
	for test, s := range r.All() {
		if !strings.HasPrefix(test, name) {
			continue
		}
		if !found {
			first, found = s, true
		} else if passing(s) != passing(first) {
			return "", false
		}
	}
	return first, found
}

// sort puts a test into success or failure of a list. A test that is missing has failed; one whose state is no regular one is in
// neither list.
func sort(s *predictions.Tests, name string, ok func(logs.Status) bool, r *logs.Results) {
	switch state, found := stateOf(name, r); {
	case found && ok(state):
		s.Success = append(s.Success, name)
	case !found || state == logs.Failed || state == logs.Errored || state == logs.Skipped:
		s.Failure = append(s.Failure, name)
	}
}

// byStates is the rule pass_and_fail: a FAIL_TO_PASS test must pass, a PASS_TO_PASS test must pass or be skipped.
func byStates(f2p, p2p []string, r *logs.Results) *predictions.TestsStatus {
	out := newTestsStatus()
	for _, name := range f2p {
		sort(&out.FailToPass, name, passing, r)
	}
	for _, name := range p2p {
		sort(&out.PassToPass, name, func(s logs.Status) bool { return passing(s) || s == logs.Skipped }, r)
	}
	return out
}

// byFailures is the rule fail_only: a test fails where the log says FAILED of it, exactly by its name.
func byFailures(f2p, p2p []string, r *logs.Results) *predictions.TestsStatus {
	out := newTestsStatus()
	for _, list := range []struct {
		names []string
		to    *predictions.Tests
	}{{f2p, &out.FailToPass}, {p2p, &out.PassToPass}} {
		for _, name := range list.names {
			if s, _ := r.Get(name); s == logs.Failed {
				list.to.Failure = append(list.to.Failure, name)
			} else {
				list.to.Success = append(list.to.Success, name)
			}
		}
	}
	return out
}

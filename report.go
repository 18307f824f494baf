package milepost

import (
	"fmt"
	"slices"
)

// TestState is the state of one test in one run of a task's tests.
type TestState uint8

// The states. An expected failure counts as passed, an unexpected pass as failed.
const (
	NotRun  TestState = iota // the run never reported it; never dropped from a report
	Passed                   // passed, or failed as expected
	Failed                   // failed, or passed unexpectedly
	Errored                  // error outside the assertion (set-up, collection, crash)
	Skipped
)

var testStateNames = [...]string{"NOT_RUN", "PASSED", "FAILED", "ERROR", "SKIPPED"}

const testStateLetters = "NPFES"

// String returns the state's name as in the case format: PASSED FAILED ERROR SKIPPED NOT_RUN.
func (s TestState) String() string {
	if int(s) < len(testStateNames) {
		return testStateNames[s]
	}
	return fmt.Sprintf("TestState(%d)", uint8(s))
}

// ParseTestState is the inverse of [TestState.String].
func ParseTestState(name string) (TestState, error) {
	for i, n := range testStateNames {
		if n == name {
			return TestState(i), nil
		}
	}
	return NotRun, E("milepost: parse test state", KindInvalid, "test state %q is not one of %v", name, testStateNames)
}

// TestReport is the outcome of one run: element i is the state of test i of the task's interned test list
// (Task.Tests). A nil report means that no run was had. In JSON it is a string of one letter a test: N P F E S.
type TestReport []TestState

// MarshalText writes one letter a test.
func (r TestReport) MarshalText() ([]byte, error) {
	out := make([]byte, len(r))
	for i, s := range r {
		if int(s) >= len(testStateLetters) {
			return nil, E("milepost: marshal test report", KindInvalid, "test %d has no valid state (%d)", i, s)
		}
		out[i] = testStateLetters[s]
	}
	return out, nil
}

// UnmarshalText is the inverse of MarshalText.
func (r *TestReport) UnmarshalText(text []byte) error {
	out := make(TestReport, len(text))
	for i, c := range text {
		switch c {
		case 'N':
			out[i] = NotRun
		case 'P':
			out[i] = Passed
		case 'F':
			out[i] = Failed
		case 'E':
			out[i] = Errored
		case 'S':
			out[i] = Skipped
		default:
			return E("milepost: parse test report", KindInvalid, "letter %q at %d is not one of %s", c, i, testStateLetters)
		}
	}
	*r = out
	return nil
}

// AllPassed reports whether every test passed; false for an empty report.
func (r TestReport) AllPassed() bool { return len(r) > 0 && r.Count(Passed) == len(r) }

// Passes reports whether every test of the task that is not flaky passed; false where the report is not one over the
// task's tests or no test counts.
func (t *Task) Passes(r TestReport) bool {
	if len(r) != len(t.Tests) {
		return false
	}
	counted := 0
	for i, s := range r {
		if slices.Contains(t.Flaky, t.Tests[i]) {
			continue
		}
		if s != Passed {
			return false
		}
		counted++
	}
	return counted > 0
}

// Count returns how many tests are in the given state.
func (r TestReport) Count(s TestState) int {
	n := 0
	for _, x := range r {
		if x == s {
			n++
		}
	}
	return n
}

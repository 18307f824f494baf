package grade

import (
	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/grade/logs"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/testrun"
)

// Evaluation judges states of a repository by the rules of data sets, test by test: it implements testrun.Evaluation.
type Evaluation struct{}

// Judges implements testrun.Evaluation.
func (Evaluation) Judges(t *milepost.Task) bool { return !own(t) }

// Script implements testrun.Evaluation.
func (Evaluation) Script(t *milepost.Task, root string) string { return Script(t, root) }

// Env implements testrun.Evaluation.
func (Evaluation) Env(t *milepost.Task) map[string]string { return evalVars(t) }

// Mounts implements testrun.Evaluation.
func (Evaluation) Mounts(t *milepost.Task) []env.Mount { return mountsOf(t) }

// Report implements testrun.Evaluation: a test has passed where the task's rule counts it as wanted, so that a report in
// which all of both lists passed is a task resolved. What gives no states of tests is unparsed. KindInvalid for a rule
// that names no tests: a share or a reward alone says nothing of any of them.
func (Evaluation) Report(t *milepost.Task, e testrun.Evaluated) (milepost.ProbeStatus, milepost.TestReport, string, error) {
	if len(t.Tests) == 0 {
		return "", nil, "", milepost.E("grade: probe", milepost.KindInvalid, "task %s is judged by the rule %s without naming its tests, so that a state of it has no report; milepost grade judges it", t.ID, t.Grading.Rule)
	}
	some := "the tree"
	v, err := Judge(t, &Evidence{Patch: &some, Log: logs.Text(e.Log), TimedOut: e.TimedOut, Memory: e.Memory, TooLong: e.TooLong,
		Limit: e.Limit, Output: e.Output, Duration: e.Duration})
	if err != nil {
		return "", nil, "", err
	}
	switch {
	case v.Outcome == TimedOut:
		return milepost.ProbeTimeout, nil, v.Reason, nil
	case v.Outcome == OutOfMemory:
		return milepost.ProbeMemory, nil, v.Reason, nil
	case !v.Outcome.Ran() || v.Tests == nil:
		return milepost.ProbeUnparsed, nil, string(v.Outcome) + ": " + v.Reason, nil
	}
	state := map[string]milepost.TestState{}
	for _, list := range []struct {
		names []string
		state milepost.TestState
	}{{v.Tests.FailToPass.Success, milepost.Passed}, {v.Tests.PassToPass.Success, milepost.Passed}, {v.Tests.FailToPass.Failure, milepost.Failed}, {v.Tests.PassToPass.Failure, milepost.Failed}} {
		for _, name := range list.names {
			state[name] = list.state
		}
	}
	report := make(milepost.TestReport, len(t.Tests))
	for i, name := range t.Tests {
		report[i] = state[name]
	}
	if report.AllPassed() && v.Outcome != Resolved { // a rule that looks at more than the named tests
		return milepost.ProbeUnparsed, nil, string(v.Outcome) + ": " + v.Reason, nil
	}
	return milepost.ProbeCompleted, report, "", nil
}

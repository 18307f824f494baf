package grade

import (
	"fmt"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/grade/logs"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
	"github.com/milepost-rl/milepost/env/testlog"
)

// Evidence is what one run left behind.
type Evidence struct {
	Patch     *string       // the prediction's patch; nil where it has none
	Fault     Outcome       // PatchFailed or SetupFailed where the run came to no evaluation; "" otherwise
	Reason    string        // of Fault, in words
	AppliedBy string        // the command that applied the patch
	Log       string        // of the evaluation, as logs.ReadText gives it
	TimedOut  bool          // the evaluation was ended at Limit
	Memory    bool          // a process of it was killed for its memory
	TooLong   bool          // it printed more than was kept
	Limit     time.Duration // time limit of the evaluation
	Output    []byte        // content of Grading.Output; nil where the run left none
	Duration  time.Duration // of the evaluation
	Notes     []string      // for a person
}

// Judge gives the verdict on a run of a task. It is a pure function. The error is for a task that cannot be judged: a
// rule or parser that is not known (KindInvalid).
func Judge(t *milepost.Task, ev *Evidence) (*Verdict, error) {
	v := &Verdict{InstanceID: InstanceID(t), AppliedBy: ev.AppliedBy, Duration: ev.Duration, Notes: ev.Notes}
	judge, err := ruleOf(t)
	if err != nil {
		return nil, err
	}
	switch {
	case ev.Patch == nil || *ev.Patch == "":
		v.fault(NoPatch, "the prediction has no patch")
		v.PatchIsNil = ev.Patch == nil
		return v, nil
	case ev.Fault != "":
		v.fault(ev.Fault, ev.Reason)
		return v, nil
	}
	v.ExitCode = testExitCode(ev.Log)
	switch {
	case ev.TimedOut:
		v.fault(TimedOut, fmt.Sprintf("the evaluation ran past %s", ev.Limit))
	case ev.Memory:
		v.fault(OutOfMemory, "a process of the evaluation was killed for its memory")
	case ev.TooLong:
		v.fault(LogTooLong, "the evaluation printed more than is read")
	default:
		judge(t, ev, v)
	}
	if v.Outcome != Resolved {
		v.Hint, v.HintTier = hint(ev.Log)
	}
	return v, nil
}

func (v *Verdict) fault(o Outcome, reason string) { v.Outcome, v.Reason = o, reason }

// settle sets outcome, resolution and reward by the states of tests.
func (v *Verdict) settle(tests *predictions.TestsStatus) {
	v.Tests, v.Resolution = tests, resolution(tests)
	if v.Outcome = Unresolved; v.Resolution == Full {
		v.Outcome, v.Reward = Resolved, 1
		return
	}
	v.Reason = fmt.Sprintf("%d of %d FAIL_TO_PASS tests and %d of %d PASS_TO_PASS tests as wanted", len(tests.FailToPass.Success),
		len(tests.FailToPass.Success)+len(tests.FailToPass.Failure), len(tests.PassToPass.Success), len(tests.PassToPass.Success)+len(tests.PassToPass.Failure))
}

// InstanceID is a task's id as its data set spells it, else its own.
func InstanceID(t *milepost.Task) string {
	if t.Origin != nil && t.Origin.ID != "" {
		return t.Origin.ID
	}
	return t.ID
}

// Gradable reports, before anything is run, why a task could never be judged: a rule or a log parser that is not known
// (KindInvalid; the message names the task and what is allowed).
func Gradable(t *milepost.Task) error {
	_, err := ruleOf(t)
	return err
}

// rule judges a run in which the evaluation came to its end, and sets the verdict's outcome.
type rule func(t *milepost.Task, ev *Evidence, v *Verdict)

// ruleOf finds the rule of a task.
func ruleOf(t *milepost.Task) (rule, error) {
	const op = "grade: judge"
	kind := milepost.GradeStates
	switch {
	case t.Grading != nil:
		kind = t.Grading.Rule
	case t.Kind == milepost.RepoGeneration:
		kind = milepost.GradeRate
	}
	switch kind {
	case milepost.GradeStates, milepost.GradeFailures, milepost.GradeAll, milepost.GradeExactSet:
		parse, err := parserOf(t)
		if err != nil {
			return nil, err
		}
		return func(t *milepost.Task, ev *Evidence, v *Verdict) { byLog(kind, parse, t, ev, v) }, nil
	case milepost.GradeSubset:
		return bySubset, nil
	case milepost.GradeStatusMap:
		return byStatusMap, nil
	case milepost.GradeRate:
		return byRate, nil
	case milepost.GradeRewardFile:
		return byRewardFile, nil
	}
	return nil, milepost.E(op, milepost.KindInvalid, "task %s: there is no rule of grading %q", t.ID, kind)
}

// parserOf finds the parser of a task's log: the one its data set names, that of its repository, or for Milepost's own
// tasks the format of the test command. Data sets whose repositories are not known and that name none print pytest -rA.
func parserOf(t *milepost.Task) (func(string) (*logs.Results, error), error) {
	if own(t) {
		return func(log string) (*logs.Results, error) { return ownFormat(t, log) }, nil
	}
	name := t.Grading.LogParser
	if name == "" {
		name = defaultParser(t)
	}
	if t.Origin != nil && strings.HasPrefix(t.Origin.Dataset, "swe-rebench") && name == "parse_log_pytest_v2" {
		name = "rebench_pytest_v2" // names were recorded by an older form
	}
	if !logs.Known(name) {
		return nil, milepost.E("grade: judge", milepost.KindInvalid, "task %s: log parser %q is not known; there are %s", t.ID, name, strings.Join(logs.Names(), ", "))
	}
	about := logs.Task{InstanceID: InstanceID(t), Version: t.Meta["version"]}
	return func(log string) (*logs.Results, error) { return logs.Parse(name, log, about) }, nil
}

func defaultParser(t *milepost.Task) string {
	if t.Origin != nil {
		if t.Origin.Dataset == "swe-smith" {
			return "swesmith_python"
		}
		if name, ok := logs.ForRepo(t.Origin.Repo); ok {
			return name
		}
	}
	return "parse_log_pytest"
}

// ownFormat reads the log of a task of Milepost's own with its strict parser.
func ownFormat(t *milepost.Task, log string) (*logs.Results, error) {
	report, _, err := testlog.Parse(t.Test.Format, []byte(log), t.Tests)
	if err != nil {
		return nil, err
	}
	states := map[milepost.TestState]logs.Status{milepost.Passed: logs.Passed, milepost.Failed: logs.Failed, milepost.Errored: logs.Errored, milepost.Skipped: logs.Skipped}
	var r logs.Results
	for i, s := range report {
		if s != milepost.NotRun {
			r.Set(t.Tests[i], states[s])
		}
	}
	return &r, nil
}

// byLog judges by the states of tests in the log. For Milepost's own tasks a skipped test has not passed.
func byLog(kind milepost.GradeRule, parse func(string) (*logs.Results, error), t *milepost.Task, ev *Evidence, v *Verdict) {
	r, outcome, reason := read(parse, ev.Log)
	if outcome != "" {
		v.fault(outcome, reason)
		return
	}
	switch {
	case kind == milepost.GradeFailures:
		v.settle(byFailures(t.FailToPass, t.PassToPass, r))
	case kind == milepost.GradeExactSet:
		byExactSet(t, r, v)
	case kind == milepost.GradeAll || t.Grading == nil:
		v.settle(byPasses(t.FailToPass, t.PassToPass, func(name string) bool { s, _ := r.Get(name); return passing(s) }))
	default:
		v.settle(byStates(t.FailToPass, t.PassToPass, r))
	}
}

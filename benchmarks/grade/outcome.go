package grade

import (
	"fmt"
	"slices"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
)

// Outcome says how a grading ended. The set is closed.
type Outcome string

// The outcomes. Those for which [Outcome.Ran] holds have a report on tests; [Infrastructure] is no verdict at all.
const (
	Resolved       Outcome = "resolved"        // the task's rule is fulfilled
	Unresolved     Outcome = "unresolved"      // the tests ran and the rule is not fulfilled
	NoPatch        Outcome = "no_patch"        // the prediction has no patch, or an empty one; nothing was run
	PatchFailed    Outcome = "patch_failed"    // no way of applying the patch worked
	SetupFailed    Outcome = "setup_failed"    // what comes before the tests failed: preparation, reset of test files, test patch
	TimedOut       Outcome = "tests_timed_out" // the evaluation ran past its time
	OutOfMemory    Outcome = "out_of_memory"   // a process of the evaluation was killed for its memory
	LogTooLong     Outcome = "log_too_long"    // the tests printed more than is read
	NoMarkers      Outcome = "no_markers"      // the log lacks the line before or after the tests
	NoResults      Outcome = "no_results"      // no test has a result and nothing says that a suite ran
	Contradicted   Outcome = "contradicted"    // the test command failed, the log shows no failure
	Unreadable     Outcome = "unreadable"      // the log, or the file of results, is not what its parser reads
	NoOutput       Outcome = "no_output"       // the evaluation left no file of results
	Infrastructure Outcome = "infrastructure"  // the sandbox, disk or image failed: to be graded again, in no statistic
)

// Outcomes lists the set, in the order of the constants.
func Outcomes() []Outcome {
	return []Outcome{Resolved, Unresolved, NoPatch, PatchFailed, SetupFailed, TimedOut, OutOfMemory, LogTooLong, NoMarkers, NoResults,
		Contradicted, Unreadable, NoOutput, Infrastructure}
}

// Ran reports whether tests were run and read, so that the verdict has a report on them.
func (o Outcome) Ran() bool { return o == Resolved || o == Unresolved }

// UnmarshalText refuses what is not in the set.
func (o *Outcome) UnmarshalText(text []byte) error {
	if !slices.Contains(Outcomes(), Outcome(text)) {
		return milepost.E("grade: read outcome", milepost.KindInvalid, "outcome %q is not one of %v", text, Outcomes())
	}
	*o = Outcome(text)
	return nil
}

// Resolution is SWE-bench's grade of the tests' states.
type Resolution string

// The resolutions: all FAIL_TO_PASS tests are mended, some, or none; FULL and PARTIAL want every PASS_TO_PASS test kept.
const (
	Full    Resolution = "RESOLVED_FULL"
	Partial Resolution = "RESOLVED_PARTIAL"
	No      Resolution = "RESOLVED_NO"
)

// share is the part of a list that succeeded, 1 where it is empty. A test whose state is no regular one is in neither
// part.
func share(t predictions.Tests) float64 {
	if n := len(t.Success) + len(t.Failure); n > 0 {
		return float64(len(t.Success)) / float64(n)
	}
	return 1
}

// newTestsStatus has no list that is nil.
func newTestsStatus() *predictions.TestsStatus {
	list := func() predictions.Tests { return predictions.Tests{Success: []string{}, Failure: []string{}} }
	return &predictions.TestsStatus{FailToPass: list(), PassToPass: list(), FailToFail: list(), PassToFail: list()}
}

// resolution is SWE-bench's grade: an empty list counts as fulfilled.
func resolution(s *predictions.TestsStatus) Resolution {
	f2p, p2p := share(s.FailToPass), share(s.PassToPass)
	switch {
	case f2p == 1 && p2p == 1:
		return Full
	case f2p > 0 && f2p < 1 && p2p == 1:
		return Partial
	}
	return No
}

// Verdict is the grade of one prediction.
type Verdict struct {
	InstanceID string                   `json:"instance_id"`
	Model      string                   `json:"model_name_or_path,omitempty"`
	Outcome    Outcome                  `json:"outcome"`
	Reason     string                   `json:"reason,omitempty"`        // in words, where the outcome is not resolved
	Resolution Resolution               `json:"resolution,omitempty"`    // where tests were read
	Reward     float64                  `json:"reward"`                  // 0 to 1; 1 or 0 but where the rule gives a share
	Tests      *predictions.TestsStatus `json:"tests_status,omitempty"`  // where tests were read
	AppliedBy  string                   `json:"applied_by,omitempty"`    // the command that applied the patch
	ExitCode   *int                     `json:"exit_code,omitempty"`     // of the test command, where the log has it
	Hint       string                   `json:"hint,omitempty"`          // a sign in the log of a broken environment; advice, no verdict
	HintTier   string                   `json:"hint_tier,omitempty"`     // environment or ambiguous
	Notes      []string                 `json:"notes,omitempty"`         // what a person should look at
	Duration   time.Duration            `json:"duration,omitempty"`      // of the evaluation, nanoseconds
	Key        string                   `json:"key,omitempty"`           // hash of task and patch: whether a kept verdict is still theirs
	PatchIsNil bool                     `json:"patch_is_null,omitempty"` // no_patch: null, not the empty text
}

// String is one line for a person.
func (v *Verdict) String() string {
	s := fmt.Sprintf("%s: %s", v.InstanceID, v.Outcome)
	if v.Reason != "" {
		s += ": " + v.Reason
	}
	return s
}

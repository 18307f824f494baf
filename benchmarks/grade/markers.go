package grade

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost/benchmarks/grade/logs"
)

// The lines by which an evaluation script speaks to the judge, as in swebench.
const (
	StartMarker    = ">>>>> Start Test Output"
	EndMarker      = ">>>>> End Test Output"
	exitCodeMarker = ">>>>> Test Exit Code"

	applyFailed  = ">>>>> Patch Apply Failed"
	resetFailed  = ">>>>> Reset Failed"
	testsErrored = ">>>>> Tests Errored"
	testsTimeout = ">>>>> Tests Timed Out"
)

// faults are markers that end a judgement wherever they stand in the log.
var faults = []struct {
	marker  string
	outcome Outcome
	reason  string
}{
	{applyFailed, PatchFailed, "the log says that the patch did not apply"},
	{resetFailed, SetupFailed, "the log says that test files could not be reset"},
	{testsErrored, NoResults, "the log says that the tests could not be run"},
	{testsTimeout, TimedOut, "the log says that the tests ran past their time"},
}

// between is the output of the tests: behind the first start marker, up to the next end marker, or to the next start
// marker or the end of the log where there is none before.
func between(log string) (string, bool) {
	_, rest, ok := strings.Cut(log, StartMarker)
	if !ok || !strings.Contains(log, EndMarker) {
		return "", false
	}
	rest, _, _ = strings.Cut(rest, StartMarker)
	rest, _, _ = strings.Cut(rest, EndMarker)
	return rest, true
}

var exitCode = regexp.MustCompile(exitCodeMarker + `:[\s\x0b\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]*(-?[0-9]+)`)

// testExitCode is the status of the test command that the script wrote down, nil where it did not.
func testExitCode(log string) *int {
	m := exitCode.FindStringSubmatch(log)
	if m == nil {
		return nil
	}
	n, err := strconv.Atoi(m[1])
	if err != nil { // more digits than any status has: certainly not 0
		n = -1
	}
	return &n
}

// suiteSigns show that a runner ran tests although its parser names none, since it names failures only. Every count
// must be positive: a browser that is lost at once still prints "Executed 0 of 0".
var suiteSigns = regexp.MustCompile(`(?m)Executed [1-9]\d* of \d+|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)|[1-9]\d* passing|Tests:\s+[1-9]\d*|` +
	`Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total|^# tests [1-9]\d*|[1-9]\d* specs?, \d+ failures?|': ok$`)

// read makes results of a log with markers, or says why there are none (outcome not ""). If the tests' own part has no
// result the whole log is read, since some runners' output comes late.
func read(parse func(string) (*logs.Results, error), log string) (r *logs.Results, outcome Outcome, reason string) {
	for _, f := range faults {
		if strings.Contains(log, f.marker) {
			return nil, f.outcome, f.reason
		}
	}
	part, ok := between(log)
	if !ok {
		return nil, NoMarkers, "the log lacks the line " + missingMarker(log)
	}
	r, err := parse(part)
	if err == nil && r.Len() == 0 {
		r, err = parse(log)
	}
	switch {
	case err != nil:
		return nil, Unreadable, err.Error()
	case r.Len() == 0 && !suiteSigns.MatchString(log):
		return nil, NoResults, "the log has no result of any test, and no sign that tests ran"
	}
	code := testExitCode(log)
	if code != nil && *code != 0 && r.Len() > 0 && !r.Any(logs.Failed, logs.Errored) {
		return nil, Contradicted, "the test command ended with " + strconv.Itoa(*code) + ", the log shows no failure"
	}
	return r, "", ""
}

func missingMarker(log string) string {
	if !strings.Contains(log, StartMarker) {
		return strconv.Quote(StartMarker)
	}
	return strconv.Quote(EndMarker)
}

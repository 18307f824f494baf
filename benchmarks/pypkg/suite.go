package pypkg

import (
	"slices"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env/testrun"
)

// maxDeselected bounds how many tests may fail, be skipped by name or flicker before a suite is refused.
const maxDeselected = 200

// TestCommand runs pytest on the test files (all that it finds where there are none) so that its log is short, complete
// and the same each time. Reasons in the summary are cut at the width of the terminal, which is COLUMNS. A file that
// cannot be collected fails its own tests and no others.
func TestCommand(files []benchmarks.File, tests []string, timeout time.Duration) milepost.TestCommand {
	argv := []string{"python3", "-m", "pytest", "-rA", "-q", "--tb=no", "-p", "no:cacheprovider", "--continue-on-collection-errors"}
	environ := map[string]string{"COLUMNS": "300", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
	for _, f := range files {
		if dir, rest, ok := strings.Cut(f.Path, "/"); ok && dir == "src" && strings.HasSuffix(rest, ".py") {
			environ["PYTHONPATH"] = "src"
		}
	}
	return milepost.TestCommand{Argv: append(argv, tests...), Format: "pytest", Env: environ, Timeout: timeout}
}

// Settle finds the tests that pass in each of n runs and makes them the task's. The others are deselected on its command
// line, so that a report holds the task's tests and no others. run runs the task as it is then, on a tree that passes; ran
// is how long the last run took. Kinds: invalid where no test passes or too many do not; whatever run returns.
func Settle(t *milepost.Task, n int, run func() (testrun.Outcome, error)) (ran time.Duration, err error) {
	const op = "pypkg: find tests"
	t.Tests = nil
	out, err := run()
	if err != nil {
		return 0, err
	}
	t.Tests = out.Extra // nothing is listed yet
	dropped := 0
	for range n {
		out, err := run()
		if err != nil {
			return 0, err
		}
		if len(out.Report) != len(t.Tests) {
			return 0, milepost.E(op, milepost.KindInvalid, "the report has %d tests, the run before it had %d", len(out.Report), len(t.Tests))
		}
		bad := Drop(t, func(i int) bool { return out.Report[i] == milepost.Passed })
		if dropped += len(bad); dropped > maxDeselected {
			return 0, milepost.E(op, milepost.KindInvalid, "%d tests do not pass, at most %d may; the last is %s", dropped, maxDeselected, bad[len(bad)-1])
		}
		if len(t.Tests) == 0 {
			return 0, milepost.E(op, milepost.KindInvalid, "none of %d tests passes each time", dropped)
		}
		ran = out.Ran
	}
	return ran, nil
}

// Drop takes the tests that keep does not want out of the task and deselects them; it returns them.
func Drop(t *milepost.Task, keep func(i int) bool) (dropped []string) {
	var good []string
	for i, id := range t.Tests {
		if keep(i) {
			good = append(good, id)
			continue
		}
		dropped = append(dropped, id)
		t.Test.Argv = append(slices.Clip(t.Test.Argv), "--deselect="+id)
	}
	t.Tests = good
	return dropped
}

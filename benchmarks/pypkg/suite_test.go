package pypkg

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/testrun"
)

// runs plays prepared runs of a suite; each names the tests that pass of those that the task then has.
func runs(t *milepost.Task, passing ...string) func() (testrun.Outcome, error) {
	n := 0
	all := []string{"a", "b", "c"}
	return func() (testrun.Outcome, error) {
		n++
		if n == 1 {
			return testrun.Outcome{Extra: all, Status: milepost.ProbeCompleted}, nil
		}
		out := testrun.Outcome{Status: milepost.ProbeCompleted}
		for _, id := range t.Tests {
			s := milepost.Failed
			if strings.Contains(passing[n-2], id) {
				s = milepost.Passed
			}
			out.Report = append(out.Report, s)
		}
		return out, nil
	}
}

func TestSettleKeepsWhatPassesEachTime(t *testing.T) {
	task := &milepost.Task{Test: milepost.TestCommand{Argv: []string{"pytest"}}}
	if _, err := Settle(task, 2, runs(task, "ab", "a")); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(task.Tests, []string{"a"}) || !slices.Equal(task.Test.Argv, []string{"pytest", "--deselect=c", "--deselect=b"}) {
		t.Errorf("tests %v, command %v", task.Tests, task.Test.Argv)
	}
	if _, err := Settle(task, 2, runs(task, "ab", "c")); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "none of 3 tests passes each time") {
		t.Errorf("nothing steady: %v", err)
	}
}

func TestAnEnvironmentIsNotMadeOverAnother(t *testing.T) {
	dir := t.TempDir()
	if _, err := MakeEnv(context.Background(), Env{Package: "p==1", Python: "python3"}, dir); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("error %v", err)
	}
	if _, err := MakeEnv(context.Background(), Env{Package: "p", Python: "python3"}, filepath.Join(dir, "new")); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("error %v", err)
	}
	gone := filepath.Join(dir, "gone")
	if _, err := MakeEnv(context.Background(), Env{Package: "p==1", Python: filepath.Join(dir, "none")}, gone); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("error %v", err)
	}
	if left, _ := filepath.Glob(gone); len(left) > 0 {
		t.Errorf("a failure left %v", left)
	}
}

package dataset

import (
	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

var sweSmith = &Format{
	Name:   "swe-smith",
	About:  "SWE-smith: bugs made in real projects; column patch is the bug, the reference is its reverse",
	Source: "SWE-bench/SWE-smith on the hub and its repository",
	Needs:  []string{"instance_id", "repo", "patch", "FAIL_TO_PASS", "PASS_TO_PASS", "image_name", "problem_statement"},
	Match: func(r *Row) int {
		if _, ok := r.cols["test_patch"]; ok {
			return 0
		}
		return 4
	},
	Map: mapSmith,
}

// mapSmith applies the bug from the patch. The data set's own harness fetches a branch with the bug instead, which wants
// a network, and removes the failing tests there; here they stay visible. The test command is the repository profile's.
func mapSmith(r *Row, _ *Assets) (*milepost.Task, error) {
	t := &milepost.Task{Kind: milepost.BugRepair, Statement: r.MustText("problem_statement"), Workdir: testbed,
		BaseCommit: r.Text("base_commit"), Image: r.MustText("image_name"), Grading: &milepost.Grading{Rule: milepost.GradeStates}}
	if bug := r.MustText("patch"); bug != "" {
		fix, err := reversePatch(bug)
		if err != nil {
			r.fail("patch", "%w", err)
		} else {
			setReference(r, t, "patch", fix)
			t.Prepare = []string{benchmarks.ApplyCommand(bug)}
		}
	}
	setLists(r, t, []string{"FAIL_TO_PASS"}, []string{"PASS_TO_PASS"})
	t.Test.Timeout = defaultTimeout
	keep(r, t, "created_at")
	return t, nil
}

package dataset

import (
	"path"

	milepost "github.com/milepost-rl/milepost"
)

var sweRebenchV2 = &Format{
	Name:   "swe-rebench-v2",
	About:  "SWE-rebench V2: 32,079 rows in 20 languages, and the rows of its leaderboard",
	Source: "nebius/SWE-rebench-V2 on the hub; arXiv 2602.23866",
	Needs: []string{"instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement", "FAIL_TO_PASS", "PASS_TO_PASS",
		"image_name", "install_config", "language"},
	Match: func(*Row) int { return 6 },
	Map:   mapRebenchV2,
}

// mapRebenchV2: install_config.install made the image and is not run again; it stays in the kept row. The interface is
// part of the statement, as in the data set's evaluation: the tests call what it names.
func mapRebenchV2(r *Row, _ *Assets) (*milepost.Task, error) {
	statement := r.MustText("problem_statement") + section("Interface", r.Text("interface"))
	t := repair(r, statement, "/"+path.Base(r.MustText("repo")))
	t.Image = r.MustText("image_name")
	t.Grading = &milepost.Grading{Rule: milepost.GradeExactSet}
	setTestPatch(r, t, "test_patch")
	if c := r.Object("install_config"); c != nil {
		t.Grading.Commands, t.Grading.LogParser = c.Commands("test_cmd"), c.Text("log_parser")
		r.within("install_config", c)
	}
	switch {
	case len(t.Grading.Commands) == 0:
		r.fail("install_config", "test_cmd: missing or empty; a command is wanted")
	case t.Grading.LogParser == "":
		r.fail("install_config", "log_parser: missing or empty; the name of a parser is wanted")
	}
	keep(r, t, "language", "created_at")
	return t, nil
}

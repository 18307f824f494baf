package dataset

import (
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

var nl2Repo = &Format{
	Name:   "nl2repo-bench",
	About:  "NL2Repo-Bench: 104 Python packages to write from a description; rows, or folders with start.md",
	Source: "multimodal-art-projection/NL2RepoBench, test_files; the columns of the rows are those of its table",
	Needs:  []string{"instance_id", "start_instruction", "verify_cmd", "verify_files", "test_cases_num"},
	Match:  func(*Row) int { return 6 },
	Map: func(r *Row, _ *Assets) (*milepost.Task, error) {
		id := r.MustText("instance_id")
		t := &milepost.Task{Kind: milepost.RepoGeneration, Statement: r.MustText("start_instruction"), Workdir: "/workspace",
			Image: r.Text("evaluation_image")}
		if t.Image == "" {
			t.Image = nl2Image + strings.ToLower(id) + ":1.0"
		}
		t.Grading = &milepost.Grading{Rule: milepost.GradeRate, Commands: r.Commands("verify_cmd"), Strip: r.List("verify_files")}
		if len(t.Grading.Commands) == 0 {
			r.fail("verify_cmd", "missing or empty; a list of commands is wanted")
		}
		t.Grading.Total = positive(r, "test_cases_num")
		t.Test.Timeout = defaultTimeout
		return t, nil
	},
}

// nl2Image is where the project publishes one image a package, without the registry's host.
const nl2Image = "multimodal-art-projection/nl2repobench/"

// positive is a number of tests, of at least 1.
func positive(r *Row, column string) int {
	n, ok := r.Int(column)
	if !ok || n < 1 {
		r.fail(column, "missing or less than 1; the number of tests is wanted")
	}
	return n
}

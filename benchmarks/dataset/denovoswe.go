package dataset

import (
	"encoding/base64"
	"strconv"

	milepost "github.com/milepost-rl/milepost"
)

var deNovoSWE = &Format{
	Name:   "denovo-swe",
	About:  "DeNovoSWE: 4,818 packages to write from their documentation, for training; judged by hidden unit tests",
	Source: "AweAI-Team/DeNovoSWE, README; AweAI-Team/AweAgent, tasks/denovo_swe",
	Needs:  []string{"instance_id", "document", "workdir", "image_url|image", "unit_test|passed_ptp"},
	Match:  func(*Row) int { return 4 },
	Map:    mapDeNovo,
}

// mapDeNovo: every unit test is to pass, none is said to pass before. The image still holds the package's source, which
// whoever prepares the environment has to remove; Meta says so.
func mapDeNovo(r *Row, assets *Assets) (*milepost.Task, error) {
	t := &milepost.Task{Kind: milepost.RepoGeneration, Statement: r.MustText("document"), Workdir: r.MustText("workdir"),
		Image: r.MustText("image_url", "image"), BaseCommit: r.Text("parent_commit", "base_commit")}
	t.Grading = &milepost.Grading{Rule: milepost.GradeRate}
	setTestPatch(r, t, "test_patch")
	tests := r.List("unit_test", "passed_ptp")
	if len(tests) == 0 {
		r.fail(r.first([]string{"unit_test", "passed_ptp"}), "missing or empty; a list of at least one test is wanted")
	}
	if n := setTests(t, tests, nil); n > 0 {
		setMeta(t, "tests_folded", strconv.Itoa(n))
	}
	t.Grading.Total = len(t.Tests)
	t.Test.Timeout = defaultTimeout
	setMeta(t, "image_holds", "the source of the package; it must be removed before the agent starts")
	keep(r, t, "pypi_name", "user")
	if b64 := r.Text("test_binary_archive_b64"); b64 != "" {
		data, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			r.fail("test_binary_archive_b64", "no base64: %w", err)
			return t, nil
		}
		const name = "test_binaries.tar.gz"
		folder, err := assets.Put(safeID(r.Text("instance_id")), name, data)
		if err != nil {
			return nil, err
		}
		t.Grading.Folder, t.Grading.Archive = folder, name
	}
	return t, nil
}

package dataset

import (
	"slices"
	"strconv"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// classicNeeds are the columns of SWE-bench that all its kin share.
var classicNeeds = []string{"instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement",
	"FAIL_TO_PASS", "PASS_TO_PASS"}

// classic maps the columns of SWE-bench, those of version 5 included, and leaves image and place of the repository to
// the data set: image is used where the row names none.
//
// Sources: princeton-nlp/SWE-bench on the hub (columns), swebench 5.0.2 types.py and harness/utils.py (image, eval_script,
// log_parser, eval_type, image_assets; lists as JSON strings), harness/constants (eval types).
func classic(r *Row, image func(id string) string, workdir string) (*milepost.Task, error) {
	t := repair(r, r.MustText("problem_statement"), workdir)
	t.Image = r.Text("image")
	if t.Image == "" {
		t.Image = image(r.Text("instance_id"))
	}
	t.Grading = &milepost.Grading{Rule: milepost.GradeStates, Script: r.Text("eval_script"), LogParser: r.Text("log_parser")}
	setTestPatch(r, t, "test_patch")
	switch kind := r.Text("eval_type"); kind {
	case "", "pass_and_fail":
	case "fail_only":
		t.Grading.Rule = milepost.GradeFailures
	default:
		r.fail("eval_type", "%s is not one of pass_and_fail, fail_only", short(kind))
	}
	if r.Has("image_assets") { // binary files of the tests that a patch cannot carry, by address
		r.Object("image_assets")
		setMeta(t, "image_assets", "see rows.jsonl")
	}
	if t.Grading.TestPatch == "" && t.Grading.Script == "" {
		r.fail("test_patch", "missing or empty, and there is no eval_script either")
	}
	keep(r, t, "version", "difficulty", "created_at", "environment_setup_commit")
	return t, nil
}

// repair is what all tasks have that mend a repository by a patch: statement, base, reference, tests.
func repair(r *Row, statement, workdir string) *milepost.Task {
	t := &milepost.Task{Kind: milepost.BugRepair, Statement: statement, Workdir: workdir, BaseCommit: r.MustText("base_commit")}
	setReference(r, t, "patch", r.MustText("patch"))
	setLists(r, t, []string{"FAIL_TO_PASS", "fail_to_pass"}, []string{"PASS_TO_PASS", "pass_to_pass"})
	t.Test.Timeout = defaultTimeout
	return t
}

// setReference sets the reference patch, which came from a column, and the files it changes.
func setReference(r *Row, t *milepost.Task, column, patch string) {
	if strings.TrimSpace(patch) == "" {
		return // MustText has complained, or the data set has none
	}
	files, err := filesOf(patch)
	if err != nil {
		r.fail(column, "%w", err)
	}
	t.ReferencePatch, t.RelevantFiles = patch, files.changed
}

// setTestPatch sets the patch that brings the tests, and the files it touches as those the run is about.
func setTestPatch(r *Row, t *milepost.Task, column string) {
	t.Grading.TestPatch = r.Text(column)
	if strings.TrimSpace(t.Grading.TestPatch) == "" {
		return
	}
	files, err := filesOf(t.Grading.TestPatch)
	if err != nil {
		r.fail(column, "%w", err)
	}
	t.Grading.TestFiles = append(files.changed, files.created...)
	slices.Sort(t.Grading.TestFiles)
}

// setLists sets the tests from two columns, of which the first must hold some.
func setLists(r *Row, t *milepost.Task, f2p, p2p []string) {
	failing, passing := r.List(f2p...), r.List(p2p...)
	if len(failing) == 0 {
		r.fail(r.first(f2p), "missing or empty; a list of at least one test is wanted")
	}
	if n := setTests(t, failing, passing); n > 0 {
		setMeta(t, "tests_folded", strconv.Itoa(n))
	}
}

// keep takes scalar columns into the metadata under their own names.
func keep(r *Row, t *milepost.Task, columns ...string) {
	for _, c := range columns {
		if r.Has(c) {
			setMeta(t, c, r.Scalar(c))
		}
	}
}

// classicImage is the image of a row of SWE-bench before version 5. Source: swebench, harness/test_spec: docker names
// may not hold two underscores in a row, so they are spelled _1776_.
func classicImage(id string) string {
	return "swebench/sweb.eval.x86_64." + strings.ReplaceAll(strings.ToLower(id), "__", "_1776_") + ":latest"
}

// testbed is where the images of SWE-bench and its kin have the repository.
const testbed = "/testbed"

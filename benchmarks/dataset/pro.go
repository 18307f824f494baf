package dataset

import (
	"path"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

var sweBenchPro = &Format{
	Name:   "swe-bench-pro",
	About:  "SWE-bench Pro: 731 public rows; run script and parser of each lie in its repository (--assets), not in its rows",
	Source: "ScaleAI/SWE-bench_Pro on the hub; scaleapi/SWE-bench_Pro-os, swe_bench_pro_eval.py",
	Needs: []string{"instance_id", "repo", "base_commit", "patch", "problem_statement", "fail_to_pass|FAIL_TO_PASS",
		"pass_to_pass|PASS_TO_PASS", "before_repo_set_cmd", "selected_test_files_to_run", "dockerhub_tag"},
	Match: func(*Row) int { return 5 },
	Map:   mapPro,
}

// proImage is the repository of the images; the row has the tag.
const proImage = "jefzda/sweap-images:"

// mapPro joins requirements and interface to the statement, as the data set's own prompt does. The lines of
// before_repo_set_cmd bring the repository to its base, but for the last, which brings the fix commit's tests and belongs
// to grading.
func mapPro(r *Row, assets *Assets) (*milepost.Task, error) {
	statement := r.MustText("problem_statement") + section("Requirements", r.Text("requirements")) +
		section("New interfaces introduced", r.Text("interface"))
	t := repair(r, statement, "/app")
	t.Image = proImage + r.MustText("dockerhub_tag")
	t.Grading = &milepost.Grading{Rule: milepost.GradeSubset}
	setTestPatch(r, t, "test_patch")
	t.Grading.TestFiles = r.List("selected_test_files_to_run")
	lines := strings.Split(strings.TrimSpace(r.MustText("before_repo_set_cmd")), "\n")
	for i, l := range lines {
		if l = strings.TrimSpace(l); l == "" {
			continue
		} else if i == len(lines)-1 {
			t.Grading.Setup = []string{l}
		} else {
			t.Prepare = append(t.Prepare, l)
		}
	}
	if r.Has("repo_language") {
		setMeta(t, "language", r.Text("repo_language"))
	}
	return t, proScripts(r, t, assets)
}

// proScripts takes the run script and the parser of a row into the task, from run_scripts/ID of the data set's repository.
func proScripts(r *Row, t *milepost.Task, assets *Assets) error {
	const workspace = "/workspace"
	id := r.Text("instance_id")
	for _, name := range []string{"run_script.sh", "parser.py"} {
		text, ok, err := assets.Text(path.Join("run_scripts", id, name))
		if err != nil {
			return err
		}
		if !ok {
			return nil // counted as missing by Assets
		}
		if t.Grading.Files == nil {
			t.Grading.Files = map[string]string{}
		}
		t.Grading.Files[path.Join(workspace, name)] = text
	}
	tests := shellWord(strings.Join(t.Grading.TestFiles, ","))
	t.Grading.Commands = []string{
		"bash /workspace/run_script.sh " + tests + " > /workspace/stdout.log 2> /workspace/stderr.log",
		"python /workspace/parser.py /workspace/stdout.log /workspace/stderr.log /workspace/output.json",
	}
	t.Grading.Output = "/workspace/output.json"
	return nil
}

// section is a part of a statement under a heading, or "".
func section(title, text string) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	return "\n\n" + title + ":\n" + text
}

// shellWord quotes a text for a POSIX shell.
func shellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

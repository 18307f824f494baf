package dataset

import (
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

var beyondSWE = &Format{
	Name:   "beyond-swe",
	About:  "BeyondSWE: 500 rows of four kinds, CrossRepo, DomainFix, DepMigrate and Doc2Repo (its test archives by --assets)",
	Source: "AweAI-Team/BeyondSWE on the hub; AweAI-Team/AweAgent, tasks/beyond_swe",
	Needs:  []string{"instance_id", "task", "workdir", "image_url|image"},
	Match:  func(*Row) int { return 3 },
	Map:    mapBeyond,
}

// beyondKinds are the four kinds under both of the names they go by; true is Doc2Repo.
var beyondKinds = map[string]bool{"crossrepo": false, "domainfix": false, "domain": false, "depmigrate": false, "refactor": false,
	"doc2repo": true}

func mapBeyond(r *Row, assets *Assets) (*milepost.Task, error) {
	kind := strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(r.MustText("task")))
	doc, ok := beyondKinds[kind]
	if !ok {
		r.fail("task", "%s is not one of CrossRepo, DomainFix, DepMigrate, Doc2Repo", short(r.Text("task")))
		return nil, nil
	}
	t := &milepost.Task{Kind: milepost.BugRepair, Workdir: r.MustText("workdir"), Image: r.MustText("image_url", "image"),
		BaseCommit: r.Text("base_commit", "pre_agent_commit_id", "parent_commit"), Prepare: beyondSetup(r)}
	t.Test.Timeout = defaultTimeout
	setMeta(t, "task", r.Text("task"))
	keep(r, t, "language")
	if doc {
		return t, beyondDoc(r, t, assets)
	}
	t.Statement = r.MustText("problem_statement")
	setReference(r, t, "patch", r.MustText("patch", "fix_patch"))
	t.Grading = &milepost.Grading{Rule: milepost.GradeAll}
	setTestPatch(r, t, "f2p_patch")
	if script := r.Text("f2p_script"); script != "" {
		t.Grading.Files = map[string]string{"test_fail_to_pass.py": script}
	}
	setLists(r, t, []string{"FAIL_TO_PASS"}, []string{"PASS_TO_PASS"})
	return t, nil
}

// beyondSetup reads pre_commands: a string, a list, or {"execute_command": {"commands": [...]}}.
func beyondSetup(r *Row) []string {
	v, ok := r.use("pre_commands")
	if !ok || kindOf(v) != "an object" {
		return r.Commands("pre_commands")
	}
	outer := r.Object("pre_commands")
	if outer == nil {
		return nil
	}
	inner := outer.Object("execute_command")
	r.within("pre_commands", outer)
	if inner == nil {
		return nil
	}
	commands := inner.Commands("commands")
	r.within("pre_commands", inner)
	return commands
}

// beyondDoc is a package to write from its document, judged by the tests of an archive.
func beyondDoc(r *Row, t *milepost.Task, assets *Assets) error {
	t.Kind = milepost.RepoGeneration
	t.Statement = r.MustText("REPO_DOCUMENT_CONTENT", "REPO_DOCUMENT", "document", "problem_statement")
	t.Grading = &milepost.Grading{Rule: milepost.GradeRate, Setup: []string{"pip install -e ."},
		Commands: []string{"python realswe_eval_script.py"}, Total: positive(r, "test_suite_num")}
	name := r.MustText("test_suite")
	if name == "" {
		return nil
	}
	folder, ok, err := assets.Adopt(safeID(r.Text("instance_id")), name)
	if ok {
		t.Grading.Folder, t.Grading.Archive = folder, baseOf(name)
	}
	return err
}

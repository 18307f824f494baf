package evaluate

import (
	"cmp"
	"slices"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/dataset"
)

// SelectVisible is the name of the rule of selection.
const SelectVisible = "visible"

// SelectRule is that rule in words.
const SelectRule = "of a task's attempts the one that changed something, then with fewest failing visible tests, then with the smallest patch, then the earliest; " +
	"visible tests are the task's PASS_TO_PASS tests as the repository holds them, run on the final tree without anything of the grading"

// Candidate is all that selection may know of an attempt: nothing of its grade.
type Candidate struct {
	Attempt int
	Patch   int      // bytes; 0: nothing was changed
	Visible *Visible // nil or Total 0: no visible tests
}

// Select returns the index of the attempt to submit, by SelectRule; -1 where there is none. A tree on which the visible
// tests could not be run fails all of them.
func Select(list []Candidate) int {
	if len(list) == 0 {
		return -1
	}
	failing := func(c Candidate) int {
		if c.Visible == nil {
			return 0
		}
		return c.Visible.Failing
	}
	idle := func(c Candidate) int {
		if c.Patch == 0 {
			return 1
		}
		return 0
	}
	best := slices.MinFunc(list, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(idle(a), idle(b)), cmp.Compare(failing(a), failing(b)), cmp.Compare(a.Patch, b.Patch), cmp.Compare(a.Attempt, b.Attempt))
	})
	return best.Attempt
}

// VisibleTask is a task as the agent could have tested it: with its PASS_TO_PASS tests alone, as the repository holds
// them, and without anything of the grading that the agent could not see (FAIL_TO_PASS, the test patch, hidden files, the
// reference). Test files are brought back to the base, so no attempt is chosen for tests that it edited; those that only
// the test patch brings are neither run nor left in the tree, so none is chosen for having guessed their names. Nil where
// nothing is visible: no such test, only files of the test patch, or a grading that is one script, in which visible and
// hidden tests cannot be told apart.
func VisibleTask(t *milepost.Task) *milepost.Task {
	if len(t.PassToPass) == 0 {
		return nil
	}
	v := &milepost.Task{ID: t.ID, Kind: t.Kind, Repo: t.Repo, BaseCommit: t.BaseCommit, BaseTree: t.BaseTree, Image: t.Image,
		Workdir: t.Workdir, Prepare: t.Prepare, Protected: t.Protected, Test: t.Test, Origin: t.Origin,
		Tests: slices.Sorted(slices.Values(t.PassToPass)), PassToPass: t.PassToPass}
	v.Test.Hidden = nil
	if version, ok := t.Meta["version"]; ok {
		v.Meta = map[string]string{"version": version} // some log parsers go by it
	}
	g := t.Grading
	if g == nil {
		return v
	}
	switch g.Rule {
	case milepost.GradeStates, milepost.GradeAll:
	default:
		return nil
	}
	if g.Script != "" || g.Archive != "" {
		return nil
	}
	v.Grading = &milepost.Grading{Rule: g.Rule, Setup: g.Setup, Commands: g.Commands, LogParser: g.LogParser, TestFiles: g.TestFiles}
	if g.TestPatch == "" {
		return v
	}
	created, err := dataset.CreatedBy(g.TestPatch)
	if err != nil {
		return nil // no diff: what is hidden cannot be told
	}
	v.Grading.Strip = created
	v.Grading.TestFiles = slices.DeleteFunc(slices.Clone(g.TestFiles), func(f string) bool { return slices.Contains(created, f) })
	if len(g.Commands) == 0 && len(g.TestFiles) > 0 && len(v.Grading.TestFiles) == 0 {
		return nil
	}
	return v
}

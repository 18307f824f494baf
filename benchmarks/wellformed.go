package benchmarks

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	milepost "github.com/milepost-rl/milepost"
)

var (
	objectID = regexp.MustCompile(`^[0-9a-f]{40}$`)
	revision = regexp.MustCompile(`^([0-9a-f]{7,40}\^?)?$`)
	taskID   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,199}$`)
	kinds    = []milepost.TaskKind{milepost.BugRepair, milepost.RepoGeneration, milepost.OpenTask}
	rules    = []milepost.GradeRule{milepost.GradeStates, milepost.GradeFailures, milepost.GradeSubset, milepost.GradeExactSet,
		milepost.GradeStatusMap, milepost.GradeAll, milepost.GradeRate, milepost.GradeRewardFile}
	formats = []string{"gotest", "pytest", "unittest"}
)

// Check reports the first field of a task that is not well formed, by its name on disk, as KindInvalid. It runs
// nothing; [Checker.Validate] does.
func Check(t *milepost.Task) error {
	for _, c := range []func(*milepost.Task) error{checkNames, checkRepository, checkPatch, checkTests, checkGrading} {
		if err := c(t); err != nil {
			return milepost.E("benchmarks: check", milepost.KindInvalid, "task %.200q: %w", t.ID, err)
		}
	}
	return nil
}

func checkNames(t *milepost.Task) error {
	if !taskID.MatchString(t.ID) {
		return fmt.Errorf("field id: %.200q is not 1 to 200 letters, digits and . _ + - (a letter or digit first)", t.ID)
	}
	if !slices.Contains(kinds, t.Kind) {
		return fmt.Errorf("field kind: %q is not one of %v", t.Kind, kinds)
	}
	if strings.TrimSpace(t.Statement) == "" {
		return fmt.Errorf("field statement: empty")
	}
	if t.Image == "" {
		return fmt.Errorf(`field image: empty; an image digest or "local:NAME" is wanted`)
	}
	if strings.ContainsFunc(t.Image, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) || t.Image[0] == '-' {
		return fmt.Errorf(`field image: %q is no name of an image: it holds blanks or begins with -`, t.Image)
	}
	return nil
}

func checkRepository(t *milepost.Task) error {
	if t.Workdir != "" {
		return checkInImage(t)
	}
	if len(t.Prepare) > 0 {
		return fmt.Errorf("field prepare: must be empty where workdir is: the base is the repository as it stands")
	}
	if t.Repo == "" {
		return fmt.Errorf("field repo: empty")
	}
	if t.BaseCommit != "" && !objectID.MatchString(t.BaseCommit) {
		return fmt.Errorf("field base_commit: %q is not a full commit id (40 hex digits), nor empty for a folder without git", t.BaseCommit)
	}
	if !objectID.MatchString(t.BaseTree) {
		return fmt.Errorf("field base_tree: %q is not a full tree id (40 hex digits)", t.BaseTree)
	}
	return nil
}

// checkInImage is checkRepository for a task whose repository lies in its image.
func checkInImage(t *milepost.Task) error {
	switch {
	case !path.IsAbs(t.Workdir) || t.Workdir != path.Clean(t.Workdir):
		return fmt.Errorf("field workdir: %q is not a clean absolute path", t.Workdir)
	case (t.Repo == "") != (t.BaseTree == ""):
		return fmt.Errorf("field repo, base_tree: both or neither where workdir is set; milepost tasks prepare sets them")
	case t.BaseTree != "" && !objectID.MatchString(t.BaseTree):
		return fmt.Errorf("field base_tree: %q is not a full tree id (40 hex digits)", t.BaseTree)
	case t.BaseTree != "" && !objectID.MatchString(t.BaseCommit):
		return fmt.Errorf("field base_commit: %q is not a full commit id (40 hex digits), as a prepared task has it", t.BaseCommit)
	case t.Test.Resident != "":
		return fmt.Errorf("field test.resident: must be empty where workdir is set: the tests run at that place of the image")
	case !revision.MatchString(t.BaseCommit):
		return fmt.Errorf("field base_commit: %q is not 7 to 40 hex digits, perhaps with ^ behind them, or empty", t.BaseCommit)
	}
	return nil
}

func checkPatch(t *milepost.Task) error {
	if t.Kind == milepost.BugRepair && t.ReferencePatch == "" {
		return fmt.Errorf("field reference_patch: empty in a task of kind %s", t.Kind)
	}
	for _, p := range t.RelevantFiles {
		if !localPath(p) {
			return fmt.Errorf("field relevant_files: %q is not a clean path relative to the repository", p)
		}
	}
	for _, p := range t.Protected {
		if !localPath(strings.TrimSuffix(p, "/")) {
			return fmt.Errorf(`field protected: %q is not a file or a "dir/" prefix relative to the repository`, p)
		}
		for _, f := range t.RelevantFiles {
			if f == p || strings.HasSuffix(p, "/") && strings.HasPrefix(f, p) {
				return fmt.Errorf("field protected: %q covers %s, which the reference patch changes", p, f)
			}
		}
	}
	return nil
}

func localPath(p string) bool {
	return p != "" && p == path.Clean(p) && !path.IsAbs(p) && p != "." && p != ".." && !strings.HasPrefix(p, "../")
}

func checkTests(t *milepost.Task) error {
	if t.Grading == nil { // else grading knows the command, and Test may leave it open
		if len(t.Test.Argv) == 0 || t.Test.Argv[0] == "" {
			return fmt.Errorf("field test.argv: empty")
		}
		if !slices.Contains(formats, t.Test.Format) {
			return fmt.Errorf("field test.format: %q is not one of %v", t.Test.Format, formats)
		}
	}
	if t.Test.Resident != "" && t.Test.Resident != "unittest" {
		return fmt.Errorf(`field test.resident: %q is not "unittest" or ""`, t.Test.Resident)
	}
	for p := range t.Test.Hidden {
		if !localPath(p) {
			return fmt.Errorf("field test.hidden: %q is not a clean path relative to the repository", p)
		}
	}
	if t.Test.Timeout < 0 {
		return fmt.Errorf("field test.timeout: %d is negative", t.Test.Timeout)
	}
	if len(t.Tests) == 0 && !testless(t.Grading) {
		return fmt.Errorf("field tests: empty")
	}
	for i := 1; i < len(t.Tests); i++ {
		if t.Tests[i-1] >= t.Tests[i] {
			return fmt.Errorf("field tests: not sorted and unique at %d (%q after %q)", i, t.Tests[i], t.Tests[i-1])
		}
	}
	return checkSides(t)
}

// checkSides holds fail_to_pass and pass_to_pass against tests: each names tests of the task, none names one twice.
func checkSides(t *milepost.Task) error {
	for _, id := range t.Flaky {
		if _, ok := slices.BinarySearch(t.Tests, id); !ok {
			return fmt.Errorf("field flaky: %q is not in tests", id)
		}
	}
	seen := map[string]string{}
	for _, side := range []struct {
		field string
		ids   []string
	}{{"fail_to_pass", t.FailToPass}, {"pass_to_pass", t.PassToPass}} {
		for _, id := range side.ids {
			if _, ok := slices.BinarySearch(t.Tests, id); !ok {
				return fmt.Errorf("field %s: %q is not in tests", side.field, id)
			}
			if was := seen[id]; was != "" {
				return fmt.Errorf("field %s: %q is already in %s", side.field, id, was)
			}
			seen[id] = side.field
		}
	}
	if t.Kind == milepost.BugRepair && len(t.FailToPass) == 0 && (t.Grading == nil || t.Grading.Rule != milepost.GradeStatusMap) {
		return fmt.Errorf("field fail_to_pass: empty in a task of kind %s", t.Kind)
	}
	return nil
}

// testless reports whether a data set judges without naming its tests: by a rate over a known number, or by a verifier.
func testless(g *milepost.Grading) bool {
	return g != nil && (g.Rule == milepost.GradeRate && g.Total > 0 || g.Rule == milepost.GradeRewardFile)
}

// checkGrading holds the rule against what it needs.
func checkGrading(t *milepost.Task) error {
	if t.Weight < 0 || math.IsNaN(t.Weight) || math.IsInf(t.Weight, 0) {
		return fmt.Errorf("field weight: %v is not a number of at least 0", t.Weight)
	}
	if t.Origin != nil && (t.Origin.Dataset == "" || t.Origin.ID == "" || t.Origin.Row < 1) {
		return fmt.Errorf("field origin: dataset, id and row (from 1) are wanted")
	}
	g := t.Grading
	switch {
	case g == nil:
		return nil
	case !slices.Contains(rules, g.Rule):
		return fmt.Errorf("field grading.rule: %q is not one of %v", g.Rule, rules)
	case g.Rule == milepost.GradeStatusMap && len(g.Expected) == 0:
		return fmt.Errorf("field grading.expected: empty, but the rule is %s", g.Rule)
	case g.Rule == milepost.GradeRate && g.Total < 1:
		return fmt.Errorf("field grading.total: %d, but the rule is %s; at least 1 is wanted", g.Total, g.Rule)
	case g.Rule == milepost.GradeRewardFile && g.Output == "":
		return fmt.Errorf("field grading.output: empty, but the rule is %s", g.Rule)
	}
	return nil
}

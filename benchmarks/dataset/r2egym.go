package dataset

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

var r2eGym = &Format{
	Name:   "r2e-gym",
	About:  "R2E-Gym: 4,578 commits of Python projects; graded by an exact map of test states",
	Source: "R2E-Gym/R2E-Gym-Subset on the hub; the project's commit_models",
	Needs:  []string{"repo_name", "docker_image", "commit_hash", "parsed_commit_content", "expected_output_json", "problem_statement"},
	Match:  func(*Row) int { return 6 },
	Map:    mapR2E,
	ID: func(r *Row) string {
		if r.Has("instance_id") {
			return r.Text("instance_id")
		}
		return r.MustText("repo_name") + "__" + r.MustText("commit_hash")
	},
}

// mapR2E: the image stands at the parent of the commit that the row is about. The tests are the keys of the expected map;
// which of them fail before is not said, so FailToPass stays empty and the baseline tells.
func mapR2E(r *Row, _ *Assets) (*milepost.Task, error) {
	t := &milepost.Task{Kind: milepost.BugRepair, Statement: r.MustText("problem_statement"), Workdir: testbed,
		Image: r.MustText("docker_image"), BaseCommit: strings.ToLower(r.MustText("commit_hash")) + "^",
		Grading: &milepost.Grading{Rule: milepost.GradeStatusMap, Commands: []string{"bash /run_tests.sh"},
			Hidden: []string{"/r2e_tests", "/run_tests.sh"}}}
	t.Grading.Expected = r.Strings("expected_output_json")
	if len(t.Grading.Expected) == 0 {
		r.fail("expected_output_json", "missing or empty; an object of test states is wanted")
	}
	t.Tests = slices.Sorted(maps.Keys(t.Grading.Expected))
	if patch, err := r2ePatch(r.MustText("parsed_commit_content")); err != nil {
		r.fail("parsed_commit_content", "%w", err)
	} else {
		setReference(r, t, "parsed_commit_content", patch)
	}
	t.Test.Timeout = defaultTimeout
	r.use("repo_name")
	return t, nil
}

// r2eCommit is what of a parsed commit a patch needs. Lines have no newline.
type r2eCommit struct {
	FileDiffs []r2eDiff `json:"file_diffs"`
}

// r2eDiff is the change of one file.
type r2eDiff struct {
	Header struct {
		File r2eFile `json:"file"`
		Misc string  `json:"misc_line"` // "new file mode 100644" and the like
	} `json:"header"`
	Minus  r2eFile `json:"minus_file"`
	Plus   r2eFile `json:"plus_file"`
	Binary bool    `json:"is_binary_file"`
	Hunks  []struct {
		Descriptor struct {
			Old     r2eRange `json:"old_range"`
			New     r2eRange `json:"new_range"`
			Section string   `json:"section"`
		} `json:"descriptor"`
		Lines struct {
			All []struct {
				Content string `json:"content"`
				Type    string `json:"type"` // context, added, deleted, note
			} `json:"all_lines"`
		} `json:"line_group"`
	} `json:"hunks"`
}

type r2eFile struct {
	Path string `json:"path"`
}

type r2eRange struct {
	Start  int  `json:"start"`
	Length *int `json:"length"` // absent: 1
}

func (g r2eRange) String() string {
	if g.Length == nil {
		return fmt.Sprint(g.Start)
	}
	return fmt.Sprintf("%d,%d", g.Start, *g.Length)
}

// r2ePatch writes the source part of a parsed commit as a unified diff: the data set keeps its tests apart, so test files
// are left out, as its own reference patch does.
func r2ePatch(parsed string) (string, error) {
	var c r2eCommit
	if err := json.Unmarshal([]byte(parsed), &c); err != nil {
		return "", fmt.Errorf("not a parsed commit: %w", err)
	}
	var out strings.Builder
	for i, d := range c.FileDiffs {
		p := d.Header.File.Path
		switch {
		case !localFile(p):
			return "", fmt.Errorf("file_diffs[%d]: path %s is no path inside a repository", i, short(p))
		case r2eTest(p):
			continue
		case d.Binary:
			return "", fmt.Errorf("file_diffs[%d]: %s is binary; its change cannot be written as text", i, p)
		}
		d.write(&out)
		if err := d.hunks(&out); err != nil {
			return "", fmt.Errorf("file_diffs[%d]: %s: %w", i, p, err)
		}
	}
	if out.Len() == 0 {
		return "", fmt.Errorf("the commit changes no source file")
	}
	return out.String(), nil
}

// write writes the headers of a file's change.
func (d *r2eDiff) write(out *strings.Builder) {
	const null = "/dev/null"
	p, misc := d.Header.File.Path, strings.TrimSpace(d.Header.Misc)
	from, to := "a/"+p, "b/"+p
	fmt.Fprintf(out, "diff --git %s %s\n", from, to)
	switch {
	case strings.HasPrefix(misc, "new file") || d.Minus.Path == null:
		from, misc = null, cmp.Or(misc, "new file mode 100644")
	case strings.HasPrefix(misc, "deleted file") || d.Plus.Path == null:
		to, misc = null, cmp.Or(misc, "deleted file mode 100644")
	}
	if misc != "" {
		fmt.Fprintln(out, misc)
	}
	if len(d.Hunks) > 0 {
		fmt.Fprintf(out, "--- %s\n+++ %s\n", from, to)
	}
}

// hunks writes the hunks of a file's change.
func (d *r2eDiff) hunks(out *strings.Builder) error {
	marks := map[string]string{"context": " ", "added": "+", "deleted": "-", "note": `\ `}
	for _, h := range d.Hunks {
		fmt.Fprintf(out, "@@ -%s +%s @@%s\n", h.Descriptor.Old, h.Descriptor.New, spaced(h.Descriptor.Section))
		for n, l := range h.Lines.All {
			mark, ok := marks[l.Type]
			if !ok {
				return fmt.Errorf("line %d of a hunk is of type %s; context, added, deleted or note is wanted", n+1, short(l.Type))
			}
			if l.Type == "note" {
				l.Content = strings.TrimPrefix(l.Content, mark)
			}
			fmt.Fprintln(out, mark+l.Content)
		}
	}
	return nil
}

func spaced(s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return ""
	}
	return " " + s
}

// r2eTest reports whether a path is a test's: a part named test or tests, or a file named like one.
func r2eTest(p string) bool {
	parts := strings.Split(p, "/")
	file := parts[len(parts)-1]
	for _, d := range parts[:len(parts)-1] {
		if d == "test" || d == "tests" || d == "testing" {
			return true
		}
	}
	return strings.HasPrefix(file, "test_") || strings.HasSuffix(file, "_test.py") || file == "conftest.py"
}

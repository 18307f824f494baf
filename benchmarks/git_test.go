package benchmarks

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteRepoIsCleanAndRepeatable(t *testing.T) {
	files := []File{{Path: "b.py", Data: []byte("x = 1\n")}, {Path: "tests/test_b.py", Data: []byte("import b\n")},
		{Path: "a/run", Data: []byte("#!/bin/sh\n"), Executable: true}, {Path: "a.txt", Data: []byte("no newline")}}
	want, err := TreeID(files)
	if err != nil {
		t.Fatal(err)
	}
	var commits []string
	for range 2 {
		dir := filepath.Join(t.TempDir(), "repo")
		commit, tree, err := WriteRepo(dir, files)
		if err != nil {
			t.Fatal(err)
		}
		if tree != want {
			t.Errorf("tree of the repository is %s, TreeID says %s", tree, want)
		}
		for _, c := range []struct{ args, want string }{
			{"rev-parse main", commit}, {"rev-parse HEAD^{tree}", want}, {"status --porcelain", ""}, {"fsck --strict --no-dangling", ""},
		} {
			out, err := exec.Command("git", append([]string{"-C", dir}, strings.Fields(c.args)...)...).CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != c.want {
				t.Errorf("git %s: %q (%v), want %q", c.args, out, err, c.want)
			}
		}
		commits = append(commits, commit)
	}
	if commits[0] != commits[1] {
		t.Errorf("equal files gave commits %v", commits)
	}
}

func TestDiffIsWhatGitApplies(t *testing.T) {
	long := strings.Repeat("same\n", 9)
	cases := map[string][2]string{
		"one line":       {"a\nb\nc\n", "a\nB\nc\n"},
		"two hunks":      {"x\n" + long + "y\n", "X\n" + long + "Y\n"},
		"near":           {"x\ns\ns\ny\n", "X\ns\ns\nY\n"},
		"added":          {"a\nb\n", "a\nnew\nb\n"},
		"removed":        {long + "gone\n" + long, long + long},
		"no newline":     {"a\nb", "a\nc"},
		"newline gained": {"a\nb", "a\nb\n"},
		"from empty":     {"", "a\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "repo")
			if _, _, err := WriteRepo(dir, []File{{Path: "p/f.py", Data: []byte(c[0])}}); err != nil {
				t.Fatal(err)
			}
			patch := Diff("p/f.py", c[0], c[1])
			cmd := exec.Command("git", "-C", dir, "apply", "--index", "-")
			cmd.Stdin = strings.NewReader(patch)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("git apply: %s\n%s", out, patch)
			}
			out, err := exec.Command("git", "-C", dir, "show", ":p/f.py").Output()
			if err != nil || string(out) != c[1] {
				t.Errorf("applied: %q (%v), want %q\n%s", out, err, c[1], patch)
			}
		})
	}
	if d := Diff("f", "same", "same"); d != "" {
		t.Errorf("diff of equal texts: %q", d)
	}
}

func TestEditsReplayADiff(t *testing.T) {
	long := strings.Repeat("same\n", 9)
	for name, c := range map[string][2]string{
		"changed":      {"a\nb\nc\n", "a\nB\nc\n"},
		"two places":   {"x\n" + long + "y\n", "X\n" + long + "Y\n"},
		"added":        {"a\nb\nc\n", "a\nnew\nb\nc\n"},
		"added at end": {"a\nb\n", "a\nb\nnew\n"},
		"removed":      {"a\nb\nc\n", "a\nc\n"},
		"dashes":       {"a\n-- b\nc\n", "a\n++ b\nc\n"},
		"no newline":   {"a\nb", "a\nc"},
	} {
		edits, err := Edits(Diff("d/f.py", c[0], c[1]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text := c[0]
		for _, e := range edits {
			if e.Path != "d/f.py" || e.Old == "" || strings.Count(text, e.Old) != 1 {
				t.Errorf("%s: edit %+v has no unique match", name, e)
			}
			if at := strings.Count(c[0][:strings.Index(c[0], e.Old)], "\n") + 1; at != e.Line {
				t.Errorf("%s: edit %+v is at line %d", name, e, at)
			}
			text = strings.Replace(text, e.Old, e.New, 1)
		}
		if text != c[1] {
			t.Errorf("%s: replayed %q, want %q", name, text, c[1])
		}
	}
	for _, bad := range []string{"nonsense\n", "+++ b/f\n@@ -1,2 +1,2 @@\n a\n"} {
		if _, err := Edits(bad); err == nil {
			t.Errorf("patch %q is read without an error", bad)
		}
	}
}

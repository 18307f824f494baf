package dataset

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFilesOf(t *testing.T) {
	for name, c := range map[string]struct {
		patch            string
		changed, created []string
	}{
		"changed":    {patch, []string{"pkg/a.py"}, nil},
		"new":        {"diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n", nil, []string{"n"}},
		"new, empty": {"diff --git a/n b/n\nnew file mode 100644\nindex 000..e69\n" + patch, []string{"pkg/a.py"}, []string{"n"}},
		"deleted":    {"diff --git a/o b/o\ndeleted file mode 100644\n--- a/o\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", []string{"o"}, nil},
		"renamed":    {"diff --git a/o b/n\nsimilarity index 100%\nrename from o\nrename to n\n", []string{"o"}, []string{"n"}},
		"spaces":     {"diff --git a/a b/c b/a b/c\nold mode 100644\nnew mode 100755\n", []string{"a b/c"}, nil},
		"binary":     {"diff --git a/x.png b/x.png\nindex 1..2 100644\nBinary files a/x.png and b/x.png differ\n", []string{"x.png"}, nil},
		"plain diff": {"--- a/f.c\t2020-01-01\n+++ b/f.c\t2020-01-02\n@@ -1 +1 @@\n-a\n+b\n", []string{"f.c"}, nil},
		"lines that look like headers": {"diff --git a/s.sql b/s.sql\n--- a/s.sql\n+++ b/s.sql\n@@ -1,2 +1,2 @@\n--- a/not\n+++ b/neither\n x\n",
			[]string{"s.sql"}, nil},
	} {
		f, err := filesOf(c.patch)
		if err != nil || !slices.Equal(f.changed, c.changed) || !slices.Equal(f.created, c.created) {
			t.Errorf("%s: %+v, %v; want %v and %v", name, f, err, c.changed, c.created)
		}
	}
}

// TestReversePatch applies patches, then their reverse, with git itself: the tree must be as it was, and the reverse of
// the reverse must do what the patch did.
func TestReversePatch(t *testing.T) {
	before := map[string]string{"a.txt": "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n", "gone.txt": "x\ny\n", "end.txt": "no newline", "run.sh": "#!/bin/sh\n", "old.txt": strings.Repeat("same\n", 20), "pic.bin": "a\x00b"}
	after := map[string]string{"a.txt": "ONE\ntwo\nthree\nfour\nfive\nsix\nnew\nseven\neight\nnine\n", "end.txt": "no newline\nnow one\n", "run.sh": "#!/bin/sh\n", "new.txt": "fresh\n", "empty": "", "moved.txt": strings.Repeat("same\n", 20) + "more\n", "pic.bin": "a\x00c"}
	dir := t.TempDir()
	git := func(in string, args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@localhost"}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s\n%s", args, err, out, in)
		}
		return string(out)
	}
	write := func(files map[string]string) {
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	git("", "init", "-q")
	write(before)
	git("", "add", "-A")
	git("", "commit", "-qm", "before")
	old := git("", "write-tree")
	for name := range before {
		if _, kept := after[name]; !kept {
			git("", "rm", "-q", name)
		}
	}
	write(after)
	if err := os.Chmod(filepath.Join(dir, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	git("", "add", "-A")
	new := git("", "write-tree")
	forward := git("", "diff", "--cached", "-M", "--binary", "HEAD")
	back, err := reversePatch(forward)
	if err != nil {
		t.Fatal(err)
	}
	git(back, "apply", "--index", "-")
	if tree := git("", "write-tree"); tree != old {
		t.Errorf("the reverse gives tree %s, want %s\n%s", tree, old, back)
	}
	again, err := reversePatch(back)
	if err != nil {
		t.Fatal(err)
	}
	git(again, "apply", "--index", "-")
	if tree := git("", "write-tree"); tree != new {
		t.Errorf("the reverse of the reverse gives tree %s, want %s\n%s", tree, new, again)
	}
	for _, bad := range []string{"", "words", "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,9 +1 @@\n-x\n"} {
		if _, err := reversePatch(bad); err == nil {
			t.Errorf("%q is reversed", bad)
		}
	}
}

// TestRealPatchesReverse: the reference patches of real rows survive two reversals.
func TestRealPatchesReverse(t *testing.T) {
	lines, err := os.ReadFile("testdata/rows.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		var real struct {
			Row struct {
				Patch string
				ID    string `json:"instance_id"`
			}
		}
		if err := json.Unmarshal([]byte(line), &real); err != nil {
			t.Fatal(err)
		}
		back, err := reversePatch(real.Row.Patch)
		if err != nil {
			t.Fatalf("%s: %v", real.Row.ID, err)
		}
		again, err := reversePatch(back)
		if err != nil || count(again, "\n+") != count(real.Row.Patch, "\n+") || count(again, "\n-") != count(real.Row.Patch, "\n-") || count(back, "\n-") != count(again, "\n+") {
			t.Errorf("%s: %v\n%s", real.Row.ID, err, again)
		}
	}
}

func count(s, sub string) int { return strings.Count(s, sub) }

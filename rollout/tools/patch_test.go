package tools

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestApplyPatch(t *testing.T) {
	base := map[string]string{"a.py": "1\n2\n3\n4\n5\n6\n", "crlf.txt": "one\r\ntwo\r\n", "noeol": "x", "twice": "a\nb\na\nb\n", "bin": "\x00"}
	patch := func(s string) string { return `{"command":"apply_patch","patch":` + quote(s) + `}` }
	cases := []struct {
		name, patch, want string
		files             map[string]string
	}{
		{"change", "--- a/a.py\n+++ b/a.py\n@@ -2,2 +2,3 @@\n 2\n-3\n+three\n+3b\n", "ok", map[string]string{"a.py": "1\n2\nthree\n3b\n4\n5\n6\n"}},
		{"git's form, two hunks", "diff --git a/a.py b/a.py\nindex 1..2 100644\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-1\n+one\n@@ -6 +6 @@ def f\n-6\n+six\n", "ok", map[string]string{"a.py": "one\n2\n3\n4\n5\nsix\n"}},
		{"no prefix", "--- a.py\n+++ a.py\n@@ -1 +0,0 @@\n-1\n", "ok", map[string]string{"a.py": "2\n3\n4\n5\n6\n"}},
		{"insertion", "--- a/a.py\n+++ b/a.py\n@@ -2,0 +3,1 @@\n+2b\n", "ok", map[string]string{"a.py": "1\n2\n2b\n3\n4\n5\n6\n"}},
		{"wrong line, one place", "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n 4\n-5\n+five\n", "ok", map[string]string{"a.py": "1\n2\n3\n4\nfive\n6\n"}},
		{"create and delete", "--- /dev/null\n+++ b/d/n.py\n@@ -0,0 +1,2 @@\n+x\n+y\n\\ No newline at end of file\n--- a/noeol\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\\ No newline at end of file\n", "ok", map[string]string{"d/n.py": "x\ny", "noeol": ""}},
		{"crlf", "--- a/crlf.txt\n+++ b/crlf.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n", "ok", map[string]string{"crlf.txt": "one\r\n2\r\n"}},
		{"crlf in the patch", "--- a/crlf.txt\n+++ b/crlf.txt\n@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\r\n", "ok", map[string]string{"crlf.txt": "one\r\n2\r\n"}},
		{"add end of line", "--- a/noeol\n+++ b/noeol\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+x\n", "ok", map[string]string{"noeol": "x\n"}},
		{"quoted name", "--- /dev/null\n+++ \"b/\\303\\251.txt\"\n@@ -0,0 +1 @@\n+x\n", "ok", map[string]string{"é.txt": "x\n"}},

		{"no match", "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-7\n+8\n", "patch: hunk 1 of a.py: its old lines are not in the file", nil},
		{"not unique", "--- a/twice\n+++ b/twice\n@@ -2,2 +2 @@\n a\n-b\n", "patch: hunk 1 of twice: its old lines are not at line 2 and occur more than once elsewhere", nil},
		{"all or nothing", "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-1\n+one\n--- a/noeol\n+++ b/noeol\n@@ -1 +1 @@\n-y\n+z\n", "patch: hunk 1 of noeol: its old lines are not in the file", nil},
		{"counts", "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,2 @@\n 1\n-2\n", "patch: line 3: the header counts 3 old and 2 new lines, the hunk has 2 and 1", nil},
		{"header", "--- a/a.py\n+++ b/a.py\n@@ somewhere @@\n-1\n", `patch: line 3: "@@ somewhere @@" is no hunk header; expected @@ -LINE,COUNT +LINE,COUNT @@`, nil},
		{"junk line", "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n 1\n*2\n", `patch: line 5: a line of a hunk begins with a blank, - or +, not "*"`, nil},
		{"no file", "hello\n", "patch: no file in it; a unified diff with --- and +++ lines is expected", nil},
		{"half head", "--- a/a.py\n", "patch: line 2: expected +++ after the --- line", nil},
		{"no hunk", "--- a/a.py\n+++ b/a.py\n", "patch: a.py has no hunk", nil},
		{"hunk alone", "@@ -1 +1 @@\n-1\n+2\n", "patch: line 1: a hunk without --- and +++ lines before it", nil},
		{"exists", "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+x\n", "patch: a.py exists already", nil},
		{"missing", "--- a/m\n+++ b/m\n@@ -1 +1 @@\n-x\n+y\n", "patch: no such file: m", nil},
		{"delete leaves", "--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", "patch: a.py is deleted, but the hunks leave 5 lines of it", nil},
		{"rename", "diff --git a/a.py b/b.py\nrename from a.py\nrename to b.py\n", "patch: renames and copies are not supported; delete one file and create the other", nil},
		{"rename by names", "--- a/a.py\n+++ b/b.py\n@@ -1 +1 @@\n-1\n+2\n", "patch: renames are not supported (a.py to b.py)", nil},
		{"binary", "diff --git a/bin b/bin\nGIT binary patch\nliteral 1\n", "patch: binary files are not supported", nil},
		{"binary file", "--- a/bin\n+++ b/bin\n@@ -1 +1 @@\n-x\n+y\n", "bin is not a UTF-8 text file", nil},
		{"outside", "--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n", "path leads out of the repository: ../x", nil},
		{"git", "--- /dev/null\n+++ b/.git/x\n@@ -0,0 +1 @@\n+x\n", ".git/x is git's own data and may not be changed", nil},
		{"twice", "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-1\n+2\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-2\n+3\n", "patch: a.py is there twice", nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, base, nil)
			b.says("edit_file", patch(c.patch), c.want)
			for path, want := range base {
				if now, ok := c.files[path]; ok {
					want = now
				}
				b.file(path, want)
			}
			for path, want := range c.files {
				b.file(path, want)
			}
			if c.want != "ok" {
				return
			}
			b.says("edit_file", `{"command":"undo"}`, "ok")
			for path := range c.files {
				b.file(path, base[path])
			}
		})
	}
}

// What git diff writes, apply_patch carries out, whatever the two files hold.
func TestApplyPatchLikeGit(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		line := rapid.SampledFrom([]string{"a", "b", "", " c", "-- d", "++ e", "@@ -1 +1 @@", "é"})
		old := rapid.SliceOfN(line, 1, 12).Draw(rt, "old")
		var new []string
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		for _, l := range old {
			switch r.IntN(5) {
			case 0:
			case 1:
				new = append(new, l, "added")
			default:
				new = append(new, l)
			}
		}
		eol := func(lines []string, label string) string {
			if len(lines) == 0 {
				return ""
			}
			return strings.Join(lines, "\n") + rapid.SampledFrom([]string{"\n", "\n", "x"}).Draw(rt, label)
		}
		was, is := eol(old, "old end"), eol(new, "new end")
		for name, text := range map[string]string{"was": was, "is": is} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				rt.Fatal(err)
			}
		}
		cmd := exec.Command("git", "diff", "--no-index", "--no-prefix", fmt.Sprintf("-U%d", r.IntN(4)), "was", "is")
		cmd.Dir = dir
		out, _ := cmd.Output() // exits 1 where the files differ
		if len(out) == 0 {
			return
		}
		files, err := parsePatch(strings.Replace(string(out), "\n--- was\n+++ is\n", "\n--- f\n+++ f\n", 1))
		if err != nil {
			rt.Fatalf("%v\n%s", err, out)
		}
		after, err := files[0].apply(fileState{path: "f", exists: true, data: []byte(was)})
		if err != nil || string(after.data) != is {
			rt.Fatalf("got %q, want %q (%v)\n%s", after.data, is, err, out)
		}
	})
}

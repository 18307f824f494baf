package repo

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/milepost-rl/milepost"
)

// TestPatchRoundTrip turns random deltas into patches and back.
func TestPatchRoundTrip(t *testing.T) {
	b, blobs := sampleBase(t)
	rapid.Check(t, func(rt *rapid.T) {
		want := Index{}
		put := func(data string) string {
			hash, err := blobs.Put([]byte(data))
			if err != nil {
				rt.Fatal(err)
			}
			return hash
		}
		for p, e := range b.Index {
			switch rapid.SampledFrom([]string{"keep", "keep", "drop", "edit", "mode", "directory"}).Draw(rt, "what") {
			case "keep":
				want[p] = e
			case "edit":
				if e.Mode != ModeSymlink {
					want[p] = Entry{Mode: e.Mode, Hash: put(rapid.StringN(0, 60, -1).Draw(rt, "data"))}
				}
			case "mode":
				if e.Mode == ModeFile {
					want[p] = Entry{Mode: ModeExecutable, Hash: put(baseText(t, b, p))}
				}
			case "directory":
				want[p+"/inner"] = Entry{Mode: ModeFile, Hash: put("now below a directory\x00\n")}
			}
		}
		for p, f := range drawFiles(rt, "new") {
			want["n/"+p] = Entry{Mode: f.mode, Hash: put(f.data)}
		}
		delta := difference(b.Index, want)
		patch, err := Patch(t.Context(), b, delta, blobs)
		if err != nil {
			rt.Fatal(err)
		}
		got, tree, err := ApplyPatch(t.Context(), b, patch, blobs)
		if err != nil {
			rt.Fatalf("%v\n%s", err, patch)
		}
		if tree != want.TreeID() || !slices.Equal(got, delta) {
			rt.Fatalf("tree %s delta %v\nwant %s %v\n%s", tree, got, want.TreeID(), delta, patch)
		}
	})
}

// baseText returns the bytes of a base file: Delta stores them too when only the mode changes.
func baseText(t *testing.T, b *Base, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.Dir, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestPatchText(t *testing.T) {
	b, blobs := sampleBase(t)
	hash, err := blobs.Put([]byte("# $Id$\ndef f(x):\n    return x + 2\n"))
	if err != nil {
		t.Fatal(err)
	}
	patch, err := Patch(t.Context(), b, []milepost.TreeChange{{Path: "pkg/core.py", Mode: ModeFile, Blob: hash}}, blobs)
	if err != nil {
		t.Fatal(err)
	}
	want := "diff --git a/pkg/core.py b/pkg/core.py\n" +
		"index " + b.Index["pkg/core.py"].Hash + ".." + hash + " 100644\n" +
		"--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1,3 +1,3 @@\n # $Id$\n def f(x):\n-    return x + 1\n+    return x + 2\n"
	if patch != want {
		t.Fatalf("patch:\n%s\nwant:\n%s", patch, want)
	}
	if empty, err := Patch(t.Context(), b, nil, blobs); err != nil || empty != "" {
		t.Fatalf("patch of nothing: %q, %v", empty, err)
	}
}

func TestApplyPatchErrors(t *testing.T) {
	b, blobs := sampleBase(t)
	apply := func(patch string) error {
		delta, tree, err := ApplyPatch(t.Context(), b, patch, blobs)
		if err != nil && (delta != nil || tree != "") {
			t.Fatalf("an error came with the result %v %s", delta, tree)
		}
		return err
	}
	wantKind(t, apply("this is no patch\n"), milepost.KindInvalid, "No valid patches")
	stale := "--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1,3 +1,3 @@\n # $Id$\n def f(x):\n-    return x + 9\n+    return x + 2\n"
	wantKind(t, apply(stale), milepost.KindInvalid, "pkg/core.py", "patch does not apply")
	wantKind(t, apply("--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+evil\n"), milepost.KindInvalid)
	wantKind(t, apply("--- /dev/null\n+++ b/../outside\n@@ -0,0 +1 @@\n+evil\n"), milepost.KindInvalid)
	for _, nothing := range []string{"", "\n \n"} {
		if _, tree, err := ApplyPatch(t.Context(), b, nothing, blobs); err != nil || tree != b.Tree {
			t.Fatalf("patch %q: tree %s, %v", nothing, tree, err)
		}
	}
}

func TestApplyPatchLeavesCachesOut(t *testing.T) {
	b, blobs := sampleBase(t)
	patch := "diff --git a/__pycache__/x.txt b/__pycache__/x.txt\nnew file mode 100644\n--- /dev/null\n+++ b/__pycache__/x.txt\n@@ -0,0 +1 @@\n+cached\n"
	delta, tree, err := ApplyPatch(t.Context(), b, patch, blobs)
	if err != nil || len(delta) != 0 || tree != b.Tree {
		t.Fatalf("delta %v, tree %s, %v", delta, tree, err)
	}
}

func TestApplyPatchAcceptsRenames(t *testing.T) {
	b, blobs := sampleBase(t)
	patch := "diff --git a/run.sh b/bin/run.sh\nsimilarity index 100%\nrename from run.sh\nrename to bin/run.sh\n"
	delta, _, err := ApplyPatch(t.Context(), b, patch, blobs)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, c := range delta {
		paths = append(paths, c.Path)
	}
	if strings.Join(paths, " ") != "bin/run.sh run.sh" || delta[0].Mode != ModeExecutable || !delta[1].Deleted {
		t.Fatalf("delta %+v", delta)
	}
}

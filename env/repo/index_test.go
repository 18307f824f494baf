package repo

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/milepost-rl/milepost"
)

// drawFiles draws a set of files without file/directory conflicts, with names chosen to stress git's sort order
// ("a" as directory sorts as "a/", after "a-b" and "a.b").
func drawFiles(rt *rapid.T, label string) map[string]file {
	name := rapid.OneOf(
		rapid.SampledFrom([]string{"a", "a.b", "a-b", "a0", "b", "A", "ä", "a b", "a\"b", "tab\there", "nl\nx", "-x", "é\xcc\x81"}),
		rapid.StringMatching(`[a-c.\-_]{1,3}x`),
	)
	paths := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) string {
		return strings.Join(rapid.SliceOfN(name, 1, 4).Draw(rt, "path"), "/")
	}), 0, 12).Draw(rt, label)
	files := map[string]file{}
	for _, p := range paths {
		conflict := IsCache(p)
		for q := range files {
			conflict = conflict || p == q || strings.HasPrefix(p, q+"/") || strings.HasPrefix(q, p+"/")
		}
		if conflict {
			continue
		}
		mode := rapid.SampledFrom([]uint32{ModeFile, ModeExecutable, ModeSymlink}).Draw(rt, "mode")
		data := rapid.StringN(0, 40, -1).Draw(rt, "data")
		if mode == ModeSymlink {
			data = rapid.SampledFrom([]string{"a", "../b", "/nowhere", "ä/c d"}).Draw(rt, "target")
		}
		files[p] = file{mode, data}
	}
	return files
}

func indexOf(files map[string]file) Index {
	x := Index{}
	for p, f := range files {
		x[p] = Entry{Mode: f.mode, Hash: HashBlob([]byte(f.data)), Size: int64(len(f.data))}
	}
	return x
}

func tempDir(rt *rapid.T) string {
	dir, err := os.MkdirTemp("", "milepost-test-*")
	if err != nil {
		rt.Fatal(err)
	}
	rt.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestTreeIDIsGits compares tree ids and blob ids with the git binary's on random trees.
func TestTreeIDIsGits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		files := drawFiles(rt, "files")
		dir := tempDir(rt)
		runGit(t, dir, "init", "-q")
		writeFiles(t, dir, files)
		runGit(t, dir, "add", "-A")
		if got, want := indexOf(files).TreeID(), runGit(t, dir, "write-tree"); got != want {
			rt.Fatalf("tree id %s, git has %s", got, want)
		}
	})
}

func TestTreeIDOfNothing(t *testing.T) {
	if got := (Index{}).TreeID(); got != "4b825dc642cb6eb9a060e54bf8d69288fbee4904" {
		t.Fatalf("empty tree is %s", got)
	}
}

// TestApplyReachesAnyTree takes two random trees and the difference between them: applied, it gives the second one's id.
func TestApplyReachesAnyTree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		from, to := indexOf(drawFiles(rt, "from")), indexOf(drawFiles(rt, "to"))
		before := maps.Clone(from)
		delta := difference(from, to)
		base := &Base{Index: from}
		if err := CheckDelta(base, delta); err != nil {
			rt.Fatal(err)
		}
		if got := base.TreeID(delta); got != to.TreeID() {
			rt.Fatalf("directory by directory tree %s, want %s", got, to.TreeID())
		}
		if got := from.Apply(delta).TreeID(); got != to.TreeID() {
			rt.Fatalf("tree %s, want %s", got, to.TreeID())
		}
		if !maps.Equal(from, before) {
			rt.Fatal("Apply changed its receiver")
		}
	})
}

func difference(from, to Index) (delta []milepost.TreeChange) {
	for p, e := range to {
		if have, ok := from[p]; !ok || have.Mode != e.Mode || have.Hash != e.Hash {
			delta = append(delta, milepost.TreeChange{Path: p, Mode: e.Mode, Blob: e.Hash})
		}
	}
	for p := range from {
		if _, ok := to[p]; !ok {
			delta = append(delta, milepost.TreeChange{Path: p, Deleted: true})
		}
	}
	slices.SortFunc(delta, func(a, b milepost.TreeChange) int { return strings.Compare(a.Path, b.Path) })
	return delta
}

package repo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/milepost-rl/milepost"
)

// TestMaterialiseMakesTheTree asks git for the tree id of what Materialise wrote, for random deltas.
func TestMaterialiseMakesTheTree(t *testing.T) {
	b, _ := sampleBase(t)
	rapid.Check(t, func(rt *rapid.T) {
		blobs := memoryBlobs{}
		want := Index{}
		for p, e := range b.Index {
			if rapid.Bool().Draw(rt, "keep") {
				want[p] = e
			}
		}
		for p, f := range drawFiles(rt, "new") {
			want["n/"+p] = Entry{Mode: f.mode, Hash: blobs.put([]byte(f.data))}
		}
		delta := difference(b.Index, want)
		dir := filepath.Join(tempDir(rt), "copy")
		if err := Materialise(t.Context(), b, delta, blobs, dir); err != nil {
			rt.Fatal(err)
		}
		runGit(t, dir, "init", "-q")
		if err := os.MkdirAll(filepath.Join(dir, ".git", "info"), 0o755); err != nil {
			rt.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ".git", "info", "attributes"), []byte(exactAttributes), 0o644); err != nil {
			rt.Fatal(err)
		}
		runGit(t, dir, "add", "-A")
		if got := runGit(t, dir, "write-tree"); got != want.TreeID() {
			rt.Fatalf("git sees tree %s, want %s", got, want.TreeID())
		}
	})
}

func TestMaterialiseCopiesAreTheCallers(t *testing.T) {
	b, blobs := sampleBase(t)
	dir := filepath.Join(t.TempDir(), "copy")
	if err := Materialise(t.Context(), b, nil, blobs, dir); err != nil {
		t.Fatal(err)
	}
	for p, e := range b.Index {
		if e.Mode != ModeSymlink {
			if err := os.WriteFile(filepath.Join(dir, p), []byte("overwritten in place"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := verifyFiles(b.Dir, b.Index); err != nil {
		t.Fatalf("writing to a copy changed the base: %v", err)
	}
	wantKind(t, Materialise(t.Context(), b, nil, blobs, dir), milepost.KindInvalid, "not empty")
}

type lyingBlobs struct{}

func (lyingBlobs) Get(string) ([]byte, error) { return []byte("something else"), nil }

func TestMaterialiseProvesBytes(t *testing.T) {
	b, blobs := sampleBase(t)
	hash := HashBlob([]byte("never stored"))
	delta := []milepost.TreeChange{{Path: "x", Mode: ModeFile, Blob: hash}}
	err := Materialise(t.Context(), b, delta, blobs, filepath.Join(t.TempDir(), "a"))
	wantKind(t, err, milepost.KindNotFound, hash)
	err = Materialise(t.Context(), b, delta, lyingBlobs{}, filepath.Join(t.TempDir(), "b"))
	wantKind(t, err, milepost.KindCorrupt, hash)
	if err := os.WriteFile(filepath.Join(b.Dir, "run.sh"), []byte("evil"), 0o755); err != nil {
		t.Fatal(err)
	}
	err = Materialise(t.Context(), b, nil, blobs, filepath.Join(t.TempDir(), "c"))
	wantKind(t, err, milepost.KindCorrupt, "run.sh")
}

// BenchmarkMaterialise measures the copy of a repository of 15 small files, as the micro tasks have.
func BenchmarkMaterialise(b *testing.B) {
	files := map[string]file{}
	for i := range 15 {
		files[fmt.Sprintf("pkg/sub%d/mod%d.py", i%3, i)] = file{ModeFile, strings.Repeat("x = 1\n", 300)}
	}
	store, err := NewStore(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	base, err := store.Base(b.Context(), sampleTask(b, files))
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	for i := 0; b.Loop(); i++ {
		if err := Materialise(b.Context(), base, nil, memoryBlobs{}, filepath.Join(dir, fmt.Sprint(i))); err != nil {
			b.Fatal(err)
		}
	}
}

package prepare

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// TestBasesOfOddNames stores trees whose paths, modes and contents are what git can hold at all, and compares their ids with
// those computed without git.
func TestBasesOfOddNames(t *testing.T) {
	h, err := openHistory(t.Context(), filepath.Join(t.TempDir(), BasesFolder))
	if err != nil {
		t.Fatal(err)
	}
	type file struct {
		mode uint32
		text string
	}
	files := map[string]file{
		"plain": {repo.ModeFile, "x\n"}, "run": {repo.ModeExecutable, "#!/bin/sh\n"}, "dir/link": {repo.ModeSymlink, "../plain"}, "empty": {repo.ModeFile, ""},
		"new\nline": {repo.ModeFile, "data 3\ndone\n"}, `quo"te`: {repo.ModeFile, "M 100644"}, " blank ": {repo.ModeFile, "b"}, `back\slash`: {repo.ModeFile, "c"},
		"not\xffutf8": {repo.ModeFile, "\xff\x00\xfe"}, "ünï": {repo.ModeSymlink, "nowhere\n"}, "build/lib.so": {repo.ModeFile, "ignored"},
	}
	index := repo.Index{}
	fill := func(w io.Writer) error {
		tw := tar.NewWriter(w)
		for name, f := range files {
			head := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(f.mode & 0o777), Size: int64(len(f.text)), Format: tar.FormatPAX}
			if f.mode == repo.ModeSymlink {
				head = tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: f.text, Mode: 0o777, Format: tar.FormatPAX}
			}
			if err := tw.WriteHeader(&head); err != nil {
				return err
			}
			if head.Typeflag == tar.TypeReg {
				if _, err := io.WriteString(tw, f.text); err != nil {
					return err
				}
			}
			index[name] = repo.Entry{Mode: f.mode, Hash: repo.HashBlob([]byte(f.text))}
		}
		return tw.Close()
	}
	commit, tree, err := h.add(t.Context(), fill)
	if err != nil {
		t.Fatal(err)
	}
	if want := index.TreeID(); tree != want {
		t.Errorf("the stored tree is %s, want %s", tree, want)
	}
	store, err := repo.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	base, err := store.Base(t.Context(), &milepost.Task{ID: "t", Repo: h.dir, BaseCommit: commit, BaseTree: tree})
	if err != nil || base.Commit != commit {
		t.Errorf("a checkout of it has commit %v, want %s, %v", base, commit, err)
	}
	if again, _, err := h.add(t.Context(), fill); err != nil || again != commit {
		t.Errorf("the same files again make commit %s, not %s, %v", again, commit, err)
	}
	cause := errors.New("the engine went away")
	if _, _, err := h.add(t.Context(), func(w io.Writer) error {
		_, _ = w.Write(make([]byte, 100)) // a piece of a header
		return cause
	}); err == nil {
		t.Error("a broken stream made a base")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := h.add(gone, fill); err == nil {
		t.Error("a cancelled one made a base")
	}
	refs, err := exec.Command("git", "--git-dir="+h.dir, "for-each-ref", "--format=%(refname)").Output()
	if want := "refs/bases/" + tree + "\n"; err != nil || string(refs) != want {
		t.Errorf("references %q, want %q, %v", refs, want, err)
	}
	if left, err := filepath.Glob(filepath.Join(h.dir, "objects", "pack", "tmp_*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "logs")); err == nil {
		t.Error("the repository of bases has a reflog")
	}
}

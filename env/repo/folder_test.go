package repo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost"
)

func TestBaseOfAFolderWithoutGit(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, sampleFiles)
	writeFiles(t, dir, map[string]file{
		".gitignore": {ModeFile, "*.log\nbuild/\n"}, "run.log": {ModeFile, "ignored by git, but there\n"},
		"pkg/__pycache__/core.pyc": {ModeFile, "cache"}, "only/__pycache__/x.pyc": {ModeFile, "cache"},
		"caf\xe9.py": {ModeFile, "latin\n"}, ":(top)x": {ModeFile, "no magic\n"},
	})
	tree, err := FolderTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	store, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := store.Base(t.Context(), &milepost.Task{ID: "plain", Repo: dir, BaseTree: tree})
	if err != nil {
		t.Fatal(err)
	}
	for p, e := range b.Index {
		if IsCache(p) {
			t.Errorf("cache %q is in the base", p)
		}
		mode, data, err := readEntry(filepath.Join(b.Dir, p), os.FileMode(0)|linkType(e.Mode))
		if err != nil || mode != e.Mode || HashBlob(data) != e.Hash {
			t.Errorf("%q: %o %v", p, mode, err)
		}
	}
	if len(b.Index) != len(sampleFiles)+4 {
		t.Errorf("%d files", len(b.Index))
	}
	_, err = store.Base(t.Context(), &milepost.Task{ID: "other", Repo: dir, BaseTree: HashBlob(nil)})
	wantKind(t, err, milepost.KindInvalid, "other", tree)
	if left, _ := filepath.Glob(filepath.Join(store.dir, "*.folder")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func linkType(mode uint32) os.FileMode {
	if mode == ModeSymlink {
		return os.ModeSymlink
	}
	return 0
}

func TestFolderRefusesWhatNoTreeHolds(t *testing.T) {
	for words, spoil := range map[string]func(dir string) error{
		`"a/empty" is empty`:  func(dir string) error { return os.Mkdir(filepath.Join(dir, "a/empty"), 0o755) },
		`"a/pipe" is neither`: func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "a/pipe"), 0o644) },
		`has one in "a/sub"`:  func(dir string) error { return os.MkdirAll(filepath.Join(dir, "a/sub/.git"), 0o755) },
		`has one in "."`:      func(dir string) error { return os.WriteFile(filepath.Join(dir, ".git"), []byte("gitdir: x"), 0o644) },
	} {
		dir := t.TempDir()
		writeFiles(t, dir, map[string]file{"a/x": {ModeFile, "x"}})
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		_, err := FolderTree(dir)
		wantKind(t, err, milepost.KindInvalid, words)
	}
	_, err := FolderTree(filepath.Join(t.TempDir(), "gone"))
	wantKind(t, err, milepost.KindNotFound, "gone")
	tree, err := FolderTree(t.TempDir())
	if err != nil || !strings.HasPrefix(tree, "4b825dc6") {
		t.Errorf("an empty folder: %s, %v", tree, err)
	}
}

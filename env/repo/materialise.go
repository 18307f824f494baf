package repo

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

// Materialise writes the files of base + delta (without .git) below dir, which must be missing or empty, and proves what
// it wrote: the tree id follows from the index by arithmetic, and every file's bytes are hashed on their way to the disk
// and must be the index's. The files are the caller's own copies (tests may write to them). After an error dir may hold
// part of the files; the caller removes it, as it does after success.
//
// It returns no tree id: compare [Base.TreeID] with the wanted one, or use [Base.Prove].
// Errors: KindInvalid for a malformed delta or a directory that is not empty, KindNotFound and KindCorrupt from the blobs,
// KindCorrupt for a damaged base, KindUnavailable, KindCanceled.
func Materialise(ctx context.Context, b *Base, delta []milepost.TreeChange, blobs BlobGetter, dir string) error {
	const op = "repo: materialise"
	if err := CheckDelta(b, delta); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if there, err := os.ReadDir(dir); err != nil || len(there) > 0 {
		if err != nil {
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		return milepost.E(op, milepost.KindInvalid, "directory %s is not empty", dir)
	}
	changed := map[string]milepost.TreeChange{}
	for _, c := range delta {
		changed[c.Path] = c
	}
	w := treeWriter{dir: dir, made: map[string]bool{"": true}}
	index := b.Index.Apply(delta)
	for _, path := range slices.Sorted(maps.Keys(index)) {
		if ctx.Err() != nil {
			return milepost.Wrap(op, milepost.KindCanceled, ctx.Err())
		}
		e := index[path]
		if e.Mode == ModeSubmodule { // git checks out an empty directory
			if err := w.mkdir(path); err != nil {
				return milepost.Wrap(op, milepost.KindUnavailable, err)
			}
			continue
		}
		data, err := contents(b, path, e, changed, blobs)
		if err != nil {
			return err
		}
		if err := w.write(path, e.Mode, data); err != nil {
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
	}
	return nil
}

// Prove checks by arithmetic that base + delta is the wanted tree. Errors: KindInvalid for a malformed delta,
// KindConflict for another tree.
func (b *Base) Prove(delta []milepost.TreeChange, tree string) error {
	const op = "repo: prove tree"
	if err := CheckDelta(b, delta); err != nil {
		return err
	}
	if got := b.TreeID(delta); got != tree {
		return milepost.E(op, milepost.KindConflict, "base %s and %d changes make tree %s, not the wanted %s", b.Tree, len(delta), got, tree)
	}
	return nil
}

// contents returns the proven bytes of one entry, from the blobs where it changed and from the base where not.
func contents(b *Base, path string, e Entry, changed map[string]milepost.TreeChange, blobs BlobGetter) ([]byte, error) {
	const op = "repo: materialise"
	if _, ok := changed[path]; ok {
		data, err := blobs.Get(e.Hash)
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		if got := HashBlob(data); got != e.Hash {
			return nil, milepost.E(op, milepost.KindCorrupt, "%q: blob %s came with the bytes of %s", path, e.Hash, got)
		}
		return data, nil
	}
	name := filepath.Join(b.Dir, path)
	var data []byte
	var err error
	if e.Mode == ModeSymlink {
		var target string
		target, err = os.Readlink(name)
		data = []byte(target)
	} else {
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if got := HashBlob(data); got != e.Hash {
		return nil, milepost.E(op, milepost.KindCorrupt, "base file %s was changed: it hashes to %s, the tree has %s", name, got, e.Hash)
	}
	return data, nil
}

// treeWriter writes files below dir and remembers which directories it made.
type treeWriter struct {
	dir  string
	made map[string]bool
}

func (w *treeWriter) write(path string, mode uint32, data []byte) error {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		if err := w.mkdir(path[:i]); err != nil {
			return err
		}
	}
	name := filepath.Join(w.dir, path)
	if mode == ModeSymlink {
		return os.Symlink(string(data), name)
	}
	perm := os.FileMode(0o644)
	if mode == ModeExecutable {
		perm = 0o755
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// mkdir makes a directory and its parents. Its parents are never links: paths are written in sorted order, and no path
// is both file and directory.
func (w *treeWriter) mkdir(path string) error {
	if w.made[path] {
		return nil
	}
	w.made[path] = true
	return os.MkdirAll(filepath.Join(w.dir, path), 0o755)
}

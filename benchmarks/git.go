package benchmarks

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/memory"

	milepost "github.com/milepost-rl/milepost"
)

// File is one regular file of a repository that a maker writes.
type File struct {
	Path       string // relative to the root, slash separated
	Data       []byte
	Executable bool
}

// commitTime is the author's time of every commit a maker writes, so that equal trees give equal commits.
var commitTime = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// TreeID is the git tree id of the files.
func TreeID(files []File) (string, error) {
	h, err := writeTree(memory.NewStorage(), files)
	return h.String(), err
}

// WriteRepo makes a git repository with working files and one commit of them in dir, which must not exist; it appears
// whole or not at all. Equal files give equal ids.
func WriteRepo(dir string, files []File) (commit, tree string, err error) {
	const op = "benchmarks: write repository"
	if _, err := os.Lstat(dir); err == nil {
		return "", "", milepost.E(op, milepost.KindConflict, "%s exists already", dir)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".")
	if err != nil {
		return "", "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(tmp)
	commit, tree, err = fillRepo(tmp, files)
	if err == nil {
		err = errors.Join(os.Chmod(tmp, 0o755), os.Rename(tmp, dir))
	}
	return commit, tree, milepost.Wrap(op, milepost.KindUnavailable, err)
}

// fillRepo initialises the repository, writes working files and index, and commits.
func fillRepo(dir string, files []File) (commit, tree string, err error) {
	r, err := git.PlainInitWithOptions(dir, &git.PlainInitOptions{
		InitOptions: git.InitOptions{DefaultBranch: plumbing.Main}})
	if err != nil {
		return "", "", err
	}
	idx := &index.Index{Version: 2}
	for _, f := range sorted(files) {
		p := filepath.Join(dir, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return "", "", err
		}
		if err := os.WriteFile(p, f.Data, fs.FileMode(f.mode())&0o777); err != nil {
			return "", "", err
		}
		e, err := indexEntry(p, f)
		if err != nil {
			return "", "", err
		}
		idx.Entries = append(idx.Entries, e)
	}
	h, err := CommitFiles(r, plumbing.Main, files)
	if err != nil {
		return "", "", err
	}
	if err := r.Storer.SetIndex(idx); err != nil {
		return "", "", err
	}
	c, err := r.CommitObject(h)
	if err != nil {
		return "", "", err
	}
	return h.String(), c.TreeHash.String(), nil
}

// indexEntry is the index entry of a file just written to p, with the times and numbers by which git knows it unchanged.
func indexEntry(p string, f File) (*index.Entry, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(p, &st); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: p, Err: err}
	}
	return &index.Entry{Name: f.Path, Mode: f.mode(), Size: uint32(len(f.Data)),
		Hash:      plumbing.ComputeHash(plumbing.BlobObject, f.Data),
		CreatedAt: time.Unix(st.Ctim.Unix()), ModifiedAt: time.Unix(st.Mtim.Unix()),
		Dev: uint32(st.Dev), Inode: uint32(st.Ino), UID: st.Uid, GID: st.Gid}, nil
}

// CommitFiles writes the files as one commit without parent and points ref at it. Objects that are there already are
// shared.
func CommitFiles(r *git.Repository, ref plumbing.ReferenceName, files []File) (plumbing.Hash, error) {
	tree, err := writeTree(r.Storer, files)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	who := object.Signature{Name: "Milepost", Email: "milepost@localhost", When: commitTime}
	o := r.Storer.NewEncodedObject()
	c := &object.Commit{Author: who, Committer: who, Message: "Base\n", TreeHash: tree}
	if err := c.Encode(o); err != nil {
		return plumbing.ZeroHash, err
	}
	h, err := r.Storer.SetEncodedObject(o)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return h, r.Storer.SetReference(plumbing.NewHashReference(ref, h))
}

// TreeFiles reads the files of a tree. plain is false where it holds links or submodules, which are left out.
func TreeFiles(tree *object.Tree) (files []File, plain bool, err error) {
	plain = true
	w := object.NewTreeWalker(tree, true, nil)
	defer w.Close()
	for {
		name, entry, err := w.Next()
		if errors.Is(err, io.EOF) {
			return files, plain, nil
		}
		if err != nil {
			return nil, false, err
		}
		switch entry.Mode {
		case filemode.Dir:
			continue
		case filemode.Regular, filemode.Executable, filemode.Deprecated:
		default:
			plain = false
			continue
		}
		f, err := tree.TreeEntryFile(&entry)
		if err != nil {
			return nil, false, err
		}
		r, err := f.Reader()
		if err != nil {
			return nil, false, err
		}
		data, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, false, err
		}
		files = append(files, File{Path: name, Data: data, Executable: entry.Mode == filemode.Executable})
	}
}

func (f File) mode() filemode.FileMode {
	if f.Executable {
		return filemode.Executable
	}
	return filemode.Regular
}

func sorted(files []File) []File {
	out := slices.Clone(files)
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// objectStore is the part of go-git's storage that trees are written to.
type objectStore interface {
	NewEncodedObject() plumbing.EncodedObject
	SetEncodedObject(plumbing.EncodedObject) (plumbing.Hash, error)
}

// writeTree writes blobs and trees and returns the root tree's id.
func writeTree(s objectStore, files []File) (plumbing.Hash, error) {
	var entries []object.TreeEntry
	below := map[string][]File{}
	for _, f := range files {
		if dir, rest, ok := strings.Cut(f.Path, "/"); ok {
			below[dir] = append(below[dir], File{Path: rest, Data: f.Data, Executable: f.Executable})
			continue
		}
		if f.Path == "" || f.Path != path.Clean(f.Path) {
			return plumbing.ZeroHash, milepost.E("benchmarks: write tree", milepost.KindInvalid, "path %q is not clean", f.Path)
		}
		o := s.NewEncodedObject()
		o.SetType(plumbing.BlobObject)
		w, err := o.Writer()
		if err != nil {
			return plumbing.ZeroHash, err
		}
		_, err = w.Write(f.Data)
		if err := errors.Join(err, w.Close()); err != nil {
			return plumbing.ZeroHash, err
		}
		h, err := s.SetEncodedObject(o)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		entries = append(entries, object.TreeEntry{Name: f.Path, Mode: f.mode(), Hash: h})
	}
	for dir, inside := range below {
		h, err := writeTree(s, inside)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		entries = append(entries, object.TreeEntry{Name: dir, Mode: filemode.Dir, Hash: h})
	}
	slices.SortFunc(entries, func(a, b object.TreeEntry) int { return strings.Compare(treeKey(a), treeKey(b)) })
	o := s.NewEncodedObject()
	if err := (&object.Tree{Entries: entries}).Encode(o); err != nil {
		return plumbing.ZeroHash, err
	}
	return s.SetEncodedObject(o)
}

// treeKey is what git sorts the entries of a tree by: a directory as if its name ended in a slash.
func treeKey(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}

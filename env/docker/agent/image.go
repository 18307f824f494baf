package agent

import (
	"archive/tar"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/docker/wire"
	"github.com/milepost-rl/milepost/env/repo"
)

// This file serves workspaces whose files come from the image: the base volume is shaped in a container of its own, in
// which no command ever runs, and copied into the workspace of every sandbox.

// copyBase makes the workspace a copy of the directory from, and the index of it. It is called while no command runs.
func (s *server) copyBase(from string) (*wire.Tree, error) {
	if err := s.empty(); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		return nil, fmt.Errorf("the base volume: %w", err)
	}
	defer root.Close()
	source := &server{root: root}
	sums := map[string]sum{}
	var dirs []copied
	c := copier{from: root, to: s.root, buf: make([]byte, 1<<20)}
	size := wire.Tree{}
	err = source.walkAll(".", func(p string, info fs.FileInfo) error {
		size.Files++
		if info.IsDir() {
			dirs = append(dirs, copied{p, info})
			return s.root.Mkdir(p, 0o755)
		}
		sum, err := c.copy(p, info)
		if err != nil || sum == nil {
			return err
		}
		size.Bytes += pages(info)
		sums[p] = sum
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("copy the image's files: %w", err)
	}
	for _, d := range slices.Backward(dirs) {
		if err := errors.Join(s.root.Chmod(d.path, d.info.Mode().Perm()|0o700), s.root.Chtimes(d.path, d.info.ModTime(), d.info.ModTime())); err != nil {
			return nil, err
		}
	}
	made, err := s.stampAll(sums)
	if err != nil {
		return nil, err
	}
	s.keep(made)
	size.ID = made.tree(func(string) bool { return false })
	return &size, nil
}

type copied struct {
	path string
	info fs.FileInfo
}

// copier copies single files and links.
type copier struct {
	from, to *os.Root
	buf      []byte
}

// copy returns the sum of what it copied; nil for a pipe or socket, which is in no tree.
func (c *copier) copy(p string, info fs.FileInfo) (sum, error) {
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := c.from.Readlink(p)
		if err != nil {
			return nil, err
		}
		return sumOf([]byte(target)), c.to.Symlink(target, p)
	case !info.Mode().IsRegular():
		return nil, nil
	}
	in, err := c.from.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, err := c.to.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	hash := dirfs.BlobHash(info.Size())
	_, err = io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(out, hash)}, struct{ io.Reader }{in}, c.buf)
	if err == nil {
		err = out.Chmod(info.Mode().Perm() | 0o600)
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return nil, err
	}
	return hash.Sum(nil), c.to.Chtimes(p, info.ModTime(), info.ModTime())
}

// pages is what a file takes on a tmpfs.
func pages(info fs.FileInfo) int64 {
	if !info.Mode().IsRegular() {
		return 0
	}
	return dirfs.Pages(info.Size())
}

// walkAll calls fn for everything below dir, parents first.
func (s *server) walkAll(dir string, fn func(string, fs.FileInfo) error) error {
	f, err := s.root.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		p := path.Join(dir, name)
		info, err := s.root.Lstat(p)
		if err == nil {
			err = fn(p, info)
		}
		if err == nil && info.IsDir() {
			err = s.walkAll(p, fn)
		}
		if err != nil && !(errors.Is(err, fs.SkipDir) && info.IsDir()) {
			return err
		}
	}
	return nil
}

// tree is the git tree id of an index without the paths for which skip holds.
func (x index) tree(skip func(string) bool) string {
	out := make(repo.Index, len(x))
	for p, o := range x {
		if !skip(p) {
			out[p] = repo.Entry{Mode: dirfs.GitMode(o.stamp.Mode), Hash: hex.EncodeToString(o.sum)}
		}
	}
	return out.TreeID()
}

// tree answers OpTree: files that look as they did when the workspace was made are not read again.
func (s *server) tree() (*wire.Tree, error) {
	s.mu.Lock()
	was := s.index
	s.mu.Unlock()
	now, size := index{}, wire.Tree{}
	err := s.walk(".", func(p string, info fs.FileInfo) error {
		if dirfs.GitMode(info.Mode()) == 0 || repo.IsCache(p) {
			return nil
		}
		size.Files++
		size.Bytes += pages(info)
		o, ok := was[p]
		if stamp := dirfs.StampOf(info); !ok || o.stamp != stamp {
			sum, err := s.sum(p, info)
			if err != nil {
				return err
			}
			o = original{stamp, sum}
		}
		now[p] = o
		return nil
	})
	size.ID = now.tree(func(string) bool { return false })
	return &size, err
}

// archive sends the workspace without caches.
func (s *server) archive(c *wire.Conn) error {
	w := c.PayloadWriter()
	tw := tar.NewWriter(w)
	err := s.walk(".", func(p string, _ fs.FileInfo) error {
		if repo.IsCache(p) {
			return nil
		}
		return s.pack(tw, p)
	})
	if err != nil {
		return err // without an end frame the driver knows that it failed
	}
	return errors.Join(tw.Close(), w.Close())
}

// shape removes what is not among the wanted files with the wanted content, and returns what was there and what is missing.
func (s *server) shape(in io.Reader) (*wire.Tree, []wire.Entry, error) {
	wanted := map[string]wire.File{}
	dec := json.NewDecoder(in)
	for {
		var f wire.File
		err := dec.Decode(&f)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("the wanted files: %w", err)
		}
		wanted[string(f.Path)] = f
	}
	needed := map[string]bool{".": true}
	for p := range wanted {
		for d := path.Dir(p); !needed[d]; d = path.Dir(d) {
			needed[d] = true
		}
	}
	found, have := &wire.Tree{}, map[string]bool{}
	err := s.walkAll(".", func(p string, info fs.FileInfo) error {
		found.Files++
		if info.IsDir() {
			if needed[p] {
				return nil
			}
			return errors.Join(s.root.RemoveAll(p), fs.SkipDir)
		}
		if f, ok := wanted[p]; ok && dirfs.GitMode(info.Mode()) == f.Mode {
			sum, err := s.sum(p, info)
			if err != nil {
				return err
			}
			if have[p] = bytes.Equal(sum, f.Blob); have[p] {
				return nil
			}
		}
		return s.root.Remove(p)
	})
	if err != nil {
		return nil, nil, err
	}
	var missing []wire.Entry
	for p, f := range wanted {
		if !have[p] {
			missing = append(missing, wire.Entry{Path: []byte(p), Mode: f.Mode})
		}
	}
	slices.SortFunc(missing, func(a, b wire.Entry) int { return strings.Compare(string(a.Path), string(b.Path)) })
	return found, missing, nil
}

// add puts files from a tar stream into the workspace.
func (s *server) add(in io.Reader) error {
	_, err := s.untar(in)
	return err
}

// adopt makes everything readable for whoever a sandbox runs as, and describes it.
func (s *server) adopt() (*wire.Tree, error) {
	all, size := index{}, wire.Tree{}
	err := s.walkAll(".", func(p string, info fs.FileInfo) error {
		size.Files++
		size.Bytes += pages(info)
		if info.IsDir() {
			return s.root.Chmod(p, info.Mode().Perm()|0o555)
		}
		if dirfs.GitMode(info.Mode()) == 0 {
			return nil
		}
		if info.Mode().IsRegular() && info.Mode().Perm()&0o444 != 0o444 {
			if err := s.root.Chmod(p, info.Mode().Perm()|0o444); err != nil {
				return err
			}
		}
		sum, err := s.sum(p, info)
		all[p] = original{dirfs.StampOf(info), sum}
		return err
	})
	size.ID = all.tree(func(string) bool { return false })
	return &size, err
}

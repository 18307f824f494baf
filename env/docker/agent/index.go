package agent

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/docker/wire"
)

// sum is git's blob id of a file's content or a link's target, so that an index has a tree id.
type sum []byte

func sumOf(b []byte) sum {
	h := dirfs.BlobHash(int64(len(b)))
	_, _ = h.Write(b) // a hash takes everything
	return h.Sum(nil)
}

// index describes the files and links of the workspace as they were unpacked, by path. It is replaced, never changed.
type index map[string]original

type original struct {
	stamp dirfs.Stamp
	sum   sum
}

// stampAll makes the index of what was just unpacked. A file changed in the same clock tick would otherwise keep its
// stamp, so it waits for the next.
func (s *server) stampAll(sums map[string]sum) (index, error) {
	time.Sleep(dirfs.Tick)
	out := make(index, len(sums))
	for p, sum := range sums {
		info, err := s.root.Lstat(p)
		if err != nil {
			return nil, err
		}
		out[p] = original{dirfs.StampOf(info), sum}
	}
	return out, nil
}

// changed lists what differs from the index by content or git mode. Only files whose stamp differs are read.
func (s *server) changed() ([]wire.Entry, error) {
	s.mu.Lock()
	was := s.index
	s.mu.Unlock()
	seen := map[string]bool{}
	var out []wire.Entry
	err := s.walk(".", func(p string, info fs.FileInfo) error {
		mode := dirfs.GitMode(info.Mode())
		if mode == 0 {
			return nil // a pipe or socket is in no tree
		}
		seen[p] = true
		old, ok := was[p]
		if ok && old.stamp == dirfs.StampOf(info) {
			return nil
		}
		if ok && dirfs.GitMode(old.stamp.Mode) == mode && old.stamp.Size == info.Size() {
			sum, err := s.sum(p, info)
			if err == nil && slices.Equal(sum, old.sum) {
				return nil
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		out = append(out, wire.Entry{Path: []byte(p), Mode: mode, Size: info.Size()})
		return nil
	})
	if err != nil {
		return nil, err
	}
	for p := range was {
		if !seen[p] {
			out = append(out, wire.Entry{Path: []byte(p), Deleted: true})
		}
	}
	slices.SortFunc(out, func(a, b wire.Entry) int { return strings.Compare(string(a.Path), string(b.Path)) })
	return out, nil
}

// walk calls fn for everything below dir that is no directory. What vanishes meanwhile is left out.
func (s *server) walk(dir string, fn func(string, fs.FileInfo) error) error {
	const flags = os.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NONBLOCK | syscall.O_NOFOLLOW
	f, err := s.root.OpenFile(dir, flags, 0)
	if errors.Is(err, fs.ErrPermission) || err == nil && !s.searchable(dir) { // a command has locked it: it must not hide there
		if f != nil {
			f.Close()
		}
		_ = s.root.Chmod(dir, 0o700) // what fails shows in the next call
		f, err = s.root.OpenFile(dir, flags, 0)
	}
	if dir != "." && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)) {
		return nil
	}
	if err != nil {
		return dirfs.Escapes(err)
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, name := range names {
		p := path.Join(dir, name)
		info, err := s.root.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err == nil && info.IsDir() {
			err = s.walk(p, fn)
		} else if err == nil {
			err = fn(p, info)
		}
		if err != nil {
			return dirfs.Escapes(err)
		}
	}
	return nil
}

// searchable reports whether names in a directory can be looked up.
func (s *server) searchable(dir string) bool {
	info, err := s.root.Lstat(dir)
	return err != nil || info.Mode()&0o100 != 0
}

// openLocked opens a file for reading, also one that a command has made unreadable: it must not hide there. The agent is
// its owner and without the privileges of one who reads everything.
func (s *server) openLocked(p string) (*os.File, error) {
	const flags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOFOLLOW
	f, err := s.root.OpenFile(p, flags, 0)
	if !errors.Is(err, fs.ErrPermission) {
		return f, err
	}
	info, err := s.root.Lstat(p)
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	if err := s.root.Chmod(p, info.Mode().Perm()|0o400); err != nil {
		return nil, err
	}
	f, err = s.root.OpenFile(p, flags, 0)
	return f, errors.Join(err, s.root.Chmod(p, info.Mode().Perm()))
}

// sum hashes a file's content or a link's target.
func (s *server) sum(p string, info fs.FileInfo) (sum, error) {
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := s.root.Readlink(p)
		return sumOf([]byte(target)), err
	}
	f, err := s.openLocked(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := dirfs.BlobHash(info.Size()) // of a file that grows meanwhile it is no blob's id, and so differs
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}

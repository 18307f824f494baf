// Package dirfs works on the files of one directory and follows no link out of it: what a driver does to a workspace that
// is a directory, on the host (env/local) or inside a container (env/docker/agent).
//
// Paths are clean, relative and slash separated. Errors are those of package driver, of io/fs and of the system. Nothing
// that lies in the directory can make a call hang: pipes are opened without waiting.
package dirfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/milepost-rl/milepost/env/driver"
)

// Dir is a directory that was opened for work inside it. Its methods may be called concurrently.
type Dir struct{ root *os.Root }

// New returns the operations on root, which stays the caller's to close.
func New(root *os.Root) Dir { return Dir{root} }

// Escapes turns os.Root's refusal to leave the workspace, which has no exported value, into ErrEscapes.
func Escapes(err error) error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if e.Error() == "path escapes from parent" {
			return fmt.Errorf("%s: %w", strings.TrimSuffix(err.Error(), ": "+e.Error()), driver.ErrEscapes)
		}
	}
	return err
}

// Stat describes a path without following a link in its last element.
func (d Dir) Stat(p string) (driver.FileInfo, error) {
	info, err := d.root.Lstat(p)
	if err != nil {
		return driver.FileInfo{}, Escapes(err)
	}
	return d.describe(p, info)
}

func (d Dir) describe(p string, info fs.FileInfo) (driver.FileInfo, error) {
	fi := driver.FileInfo{Path: p, Mode: info.Mode(), Size: info.Size()}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := d.root.Readlink(p)
		if err != nil {
			return fi, Escapes(err)
		}
		fi.Target = target
	}
	return fi, nil
}

// ReadDir lists a directory by name. It opens with O_DIRECTORY, so that a pipe put in place of a directory cannot block the host.
func (d Dir) ReadDir(p string) ([]driver.FileInfo, error) {
	f, err := d.root.OpenFile(p, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, Escapes(err)
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	out := make([]driver.FileInfo, 0, len(entries))
	for _, e := range entries {
		fi, err := d.Stat(path.Join(p, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile by a running command
		}
		if err != nil {
			return nil, err
		}
		out = append(out, fi)
	}
	return out, nil
}

// ReadFile returns content and mode of a regular file of at most limit bytes.
func (d Dir) ReadFile(p string, limit int64) ([]byte, fs.FileMode, error) {
	f, err := d.Open(p)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	return ReadRegular(f, p, limit)
}

// Open opens a file for reading, whatever it is: [Regular] says whether it may be read.
func (d Dir) Open(p string) (*os.File, error) {
	// Without O_NONBLOCK a pipe that a task put there would block for ever.
	f, err := d.root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	return f, Escapes(err)
}

// Regular describes an open file; an error where it is no regular one of at most limit bytes.
func Regular(f *os.File, p string, limit int64) (fs.FileInfo, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is a %s: %w", p, kindName(info.Mode()), driver.ErrNotRegular)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, more than %d: %w", p, info.Size(), limit, driver.ErrTooLarge)
	}
	return info, nil
}

// ReadRegular reads an open file if it is a regular one of at most limit bytes.
func ReadRegular(f *os.File, p string, limit int64) ([]byte, fs.FileMode, error) {
	info, err := Regular(f, p, limit)
	if err != nil {
		return nil, 0, err
	}
	data := make([]byte, 0, info.Size()+1)
	lr := io.LimitReader(f, limit+1) // it may grow while it is read
	for {
		n, err := lr.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, 0, err
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
	if int64(len(data)) > limit {
		return nil, 0, fmt.Errorf("%s has more than %d bytes: %w", p, limit, driver.ErrTooLarge)
	}
	return data, info.Mode(), nil
}

func kindName(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m&fs.ModeSymlink != 0:
		return "symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "named pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}

var tempCount atomic.Int64

// WriteFile writes beside the target and renames, so that a full workspace leaves the old content whole. A link is
// followed first, inside the workspace, as an editor would.
func (d Dir) WriteFile(p string, data []byte, mode fs.FileMode) error {
	return d.WriteFrom(p, bytes.NewReader(data), mode)
}

// WriteFrom is WriteFile with the content of a reader.
func (d Dir) WriteFrom(p string, data io.Reader, mode fs.FileMode) error {
	p, err := d.resolve(p)
	if err != nil {
		return err
	}
	old, err := d.root.Lstat(p)
	switch {
	case err == nil && !old.Mode().IsRegular():
		return fmt.Errorf("%s is a %s: %w", p, kindName(old.Mode()), driver.ErrNotRegular)
	case err == nil && mode == 0:
		mode = old.Mode().Perm()
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return Escapes(err)
	}
	if mode == 0 {
		mode = 0o644
	}
	if dir := path.Dir(p); dir != "." {
		if err := d.root.MkdirAll(dir, 0o755); err != nil {
			return Escapes(err)
		}
	}
	tmp := path.Join(path.Dir(p), fmt.Sprintf(".milepost-%d.tmp", tempCount.Add(1)))
	if err := d.writeTemp(tmp, data, mode); err != nil {
		_ = d.root.Remove(tmp) // the write's error is the one that matters
		return Escapes(err)
	}
	if err := d.root.Rename(tmp, p); err != nil {
		_ = d.root.Remove(tmp)
		return Escapes(err)
	}
	return nil
}

func (d Dir) writeTemp(tmp string, data io.Reader, mode fs.FileMode) error {
	f, err := d.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, data)
	if err == nil {
		err = f.Chmod(mode)
	}
	return errors.Join(err, f.Close())
}

// resolve follows links in the last element of p, inside the workspace.
func (d Dir) resolve(p string) (string, error) {
	for range 40 {
		info, err := d.root.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return p, nil
		}
		if err != nil {
			return "", Escapes(err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return p, nil
		}
		target, err := d.root.Readlink(p)
		if err != nil {
			return "", Escapes(err)
		}
		next := path.Join(path.Dir(p), target)
		if path.IsAbs(target) || next == ".." || strings.HasPrefix(next, "../") {
			return "", fmt.Errorf("%s links to %s: %w", p, target, driver.ErrEscapes)
		}
		p = next
	}
	return "", fmt.Errorf("%s: %w", p, syscall.ELOOP)
}

// Symlink makes a link, and the directories above it.
func (d Dir) Symlink(target, p string) error {
	if dir := path.Dir(p); dir != "." {
		if err := d.root.MkdirAll(dir, 0o755); err != nil {
			return Escapes(err)
		}
	}
	return Escapes(d.root.Symlink(target, p))
}

// Remove removes a file, a link or a directory with all below it.
func (d Dir) Remove(p string) error {
	if _, err := d.root.Lstat(p); err != nil {
		return Escapes(err)
	}
	return Escapes(d.root.RemoveAll(p))
}

// GitMode returns what git records of a file, or 0 for what it does not.
func GitMode(m fs.FileMode) uint32 {
	switch {
	case m&fs.ModeSymlink != 0:
		return 0o120000
	case !m.IsRegular():
		return 0
	case m&0o100 != 0:
		return 0o100755
	}
	return 0o100644
}

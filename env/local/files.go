package local

import (
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

// escapes turns os.Root's refusal to leave the workspace, which has no exported value, into ErrEscapes.
func escapes(err error) error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if e.Error() == "path escapes from parent" {
			return fmt.Errorf("%s: %w", strings.TrimSuffix(err.Error(), ": "+e.Error()), driver.ErrEscapes)
		}
	}
	return err
}

func (w *workspace) stat(p string) (driver.FileInfo, error) {
	info, err := w.root.Lstat(p)
	if err != nil {
		return driver.FileInfo{}, escapes(err)
	}
	return w.describe(p, info)
}

func (w *workspace) describe(p string, info fs.FileInfo) (driver.FileInfo, error) {
	fi := driver.FileInfo{Path: p, Mode: info.Mode(), Size: info.Size()}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := w.root.Readlink(p)
		if err != nil {
			return fi, escapes(err)
		}
		fi.Target = target
	}
	return fi, nil
}

// openDir opens with O_DIRECTORY, so that a pipe put in place of a directory cannot block the host.
func (w *workspace) readDir(p string) ([]driver.FileInfo, error) {
	f, err := w.root.OpenFile(p, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, escapes(err)
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	out := make([]driver.FileInfo, 0, len(entries))
	for _, e := range entries {
		fi, err := w.stat(path.Join(p, e.Name()))
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

func (w *workspace) readFile(p string, limit int64) ([]byte, fs.FileMode, error) {
	// Without O_NONBLOCK a pipe that a task put there would block the host for ever.
	f, err := w.root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, escapes(err)
	}
	defer f.Close()
	return readRegular(f, p, limit)
}

// readRegular reads an open file if it is a regular one of at most limit bytes.
func readRegular(f *os.File, p string, limit int64) ([]byte, fs.FileMode, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is a %s: %w", p, kindName(info.Mode()), driver.ErrNotRegular)
	}
	if info.Size() > limit {
		return nil, 0, fmt.Errorf("%s has %d bytes, more than %d: %w", p, info.Size(), limit, driver.ErrTooLarge)
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

// writeFile writes beside the target and renames, so that a full workspace leaves the old content whole. A link is
// followed first, inside the workspace, as an editor would.
func (w *workspace) writeFile(p string, data []byte, mode fs.FileMode) error {
	p, err := w.resolve(p)
	if err != nil {
		return err
	}
	old, err := w.root.Lstat(p)
	switch {
	case err == nil && !old.Mode().IsRegular():
		return fmt.Errorf("%s is a %s: %w", p, kindName(old.Mode()), driver.ErrNotRegular)
	case err == nil && mode == 0:
		mode = old.Mode().Perm()
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return escapes(err)
	}
	if mode == 0 {
		mode = 0o644
	}
	if dir := path.Dir(p); dir != "." {
		if err := w.root.MkdirAll(dir, 0o755); err != nil {
			return escapes(err)
		}
	}
	tmp := path.Join(path.Dir(p), fmt.Sprintf(".milepost-%d.tmp", tempCount.Add(1)))
	if err := w.writeTemp(tmp, data, mode); err != nil {
		_ = w.root.Remove(tmp) // the write's error is the one that matters
		return escapes(err)
	}
	if err := w.root.Rename(tmp, p); err != nil {
		_ = w.root.Remove(tmp)
		return escapes(err)
	}
	return nil
}

func (w *workspace) writeTemp(tmp string, data []byte, mode fs.FileMode) error {
	f, err := w.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	return errors.Join(err, f.Close())
}

// resolve follows links in the last element of p, inside the workspace.
func (w *workspace) resolve(p string) (string, error) {
	for range 40 {
		info, err := w.root.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return p, nil
		}
		if err != nil {
			return "", escapes(err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return p, nil
		}
		target, err := w.root.Readlink(p)
		if err != nil {
			return "", escapes(err)
		}
		next := path.Join(path.Dir(p), target)
		if path.IsAbs(target) || next == ".." || strings.HasPrefix(next, "../") {
			return "", fmt.Errorf("%s links to %s: %w", p, target, driver.ErrEscapes)
		}
		p = next
	}
	return "", fmt.Errorf("%s: %w", p, syscall.ELOOP)
}

func (w *workspace) symlink(target, p string) error {
	if dir := path.Dir(p); dir != "." {
		if err := w.root.MkdirAll(dir, 0o755); err != nil {
			return escapes(err)
		}
	}
	return escapes(w.root.Symlink(target, p))
}

func (w *workspace) remove(p string) error {
	if _, err := w.root.Lstat(p); err != nil {
		return escapes(err)
	}
	return escapes(w.root.RemoveAll(p))
}

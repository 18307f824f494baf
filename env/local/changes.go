package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/driver"
)

// differ compares the workspace with its base. Paths are relative; out holds at most one change a path.
//
// With an overlay it walks the upper layer, which holds exactly what was written: a plain directory there is merged
// with the base's and is entered; a whiteout (character device 0:0) stands for something deleted; a directory that
// hides the base's (opaque) or was renamed from elsewhere (redirect) is compared file by file through the mount. A copy
// is compared file by file too, but a file with the stamp of its index is not opened.
type differ struct {
	ctx   context.Context
	w     *workspace
	base  *os.Root
	skip  func(string) bool
	left  int64 // bytes of data that may still be returned
	limit int64
	out   []driver.Change
}

func (w *workspace) changes(ctx context.Context, skip func(string) bool, limit int64) ([]driver.Change, error) {
	base, err := os.OpenRoot(w.base)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	d := &differ{ctx: ctx, w: w, base: base, skip: skip, left: limit, limit: limit}
	if w.overlay() {
		err = d.upper(".")
	} else {
		err = d.compare(".")
	}
	if err != nil {
		return nil, dirfs.Escapes(err)
	}
	slices.SortFunc(d.out, func(a, b driver.Change) int { return strings.Compare(a.Path, b.Path) })
	return d.out, nil
}

// list returns the entries of a directory; none where it is missing or no directory.
func list(read func() ([]fs.DirEntry, error)) ([]fs.DirEntry, error) {
	entries, err := read()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	return entries, err
}

func readDirOf(root *os.Root, dir string) func() ([]fs.DirEntry, error) {
	return func() ([]fs.DirEntry, error) {
		info, err := root.Lstat(dir)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			return nil, syscall.ENOTDIR // a link to a directory is a link
		}
		f, err := root.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return f.ReadDir(-1)
	}
}

// upper walks one directory of the upper layer.
func (d *differ) upper(dir string) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(d.w.upper(), dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := path.Join(dir, e.Name())
		if d.skip(p) {
			continue
		}
		switch {
		case e.IsDir():
			err = d.upperDir(p)
		case e.Type()&fs.ModeCharDevice != 0: // only a whiteout: a sandbox cannot make devices
			err = d.deleted(p)
		default:
			err = d.file(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) upperDir(p string) error {
	full := filepath.Join(d.w.upper(), p)
	replaced, err := hasXattr(full, "trusted.overlay.opaque", "trusted.overlay.redirect")
	if err != nil {
		return err
	}
	info, err := d.base.Lstat(p)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	if err != nil || !info.IsDir() || replaced {
		return d.compare(p)
	}
	return d.upper(p)
}

// hasXattr reports whether a file has one of the attributes.
func hasXattr(p string, names ...string) (bool, error) {
	for _, n := range names {
		_, err := unix.Lgetxattr(p, n, nil)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return false, &os.PathError{Op: "getxattr " + n, Path: p, Err: err}
		}
	}
	return false, nil
}

// compare compares a path of the workspace with the same of the base, and all that is below either.
func (d *differ) compare(p string) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	now, err := list(readDirOf(d.w.root, p))
	if err != nil {
		return err
	}
	if now == nil && p != "." {
		if info, err := d.w.root.Lstat(p); err != nil || !info.IsDir() {
			return d.file(p)
		}
	}
	if info, err := d.base.Lstat(p); err == nil && !info.IsDir() {
		d.add(driver.Change{Path: p, Deleted: true}) // a file of the base became a directory
	}
	seen := make(map[string]bool, len(now))
	for _, e := range now {
		seen[e.Name()] = true
		child := path.Join(p, e.Name())
		switch {
		case d.skip(child):
		case e.IsDir():
			err = d.compare(child)
		default:
			err = d.file(child)
		}
		if err != nil {
			return err
		}
	}
	was, err := list(readDirOf(d.base, p))
	if err != nil {
		return err
	}
	for _, e := range was {
		if child := path.Join(p, e.Name()); !seen[e.Name()] && !d.skip(child) {
			if err := d.deleted(child); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleted reports every file of the base at or below p as deleted.
func (d *differ) deleted(p string) error {
	info, err := d.base.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil // made and deleted since
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if info.Mode().IsRegular() || info.Mode()&fs.ModeSymlink != 0 {
			d.add(driver.Change{Path: p, Deleted: true})
		}
		return nil
	}
	entries, err := list(readDirOf(d.base, p))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if child := path.Join(p, e.Name()); !d.skip(child) {
			if err := d.deleted(child); err != nil {
				return err
			}
		}
	}
	return nil
}

// file reports p, which is no directory in the workspace, where it differs from the base.
func (d *differ) file(p string) error {
	info, err := d.w.root.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return d.deleted(p) // removed while we looked
	}
	if err != nil {
		return err
	}
	if was, ok := d.w.index[p]; ok && was == dirfs.StampOf(info) {
		return nil
	}
	mode := dirfs.GitMode(info.Mode())
	var data []byte
	if mode != 0 {
		data, err = d.content(d.w.root, p, info, d.left)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return d.deleted(p) // removed between the two looks
	}
	if err != nil {
		return err
	}
	old, err := d.base.Lstat(p)
	if err == nil && old.IsDir() {
		if err := d.deleted(p); err != nil {
			return err
		}
	}
	if mode == 0 { // a pipe or socket is in no tree
		if err == nil && !old.IsDir() {
			d.add(driver.Change{Path: p, Deleted: true})
		}
		return nil
	}
	if old != nil && dirfs.GitMode(old.Mode()) == mode && int64(len(data)) == old.Size() {
		was, err := d.content(d.base, p, old, old.Size())
		if err != nil {
			return err
		}
		if bytes.Equal(was, data) {
			return nil
		}
	}
	d.left -= int64(len(data))
	d.add(driver.Change{Path: p, Mode: mode, Data: data})
	return nil
}

func (d *differ) add(c driver.Change) { d.out = append(d.out, c) }

// content returns the bytes of a file, or a link's target.
func (d *differ) content(root *os.Root, p string, info fs.FileInfo, limit int64) ([]byte, error) {
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := root.Readlink(p)
		return []byte(target), err
	}
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, _, err := dirfs.ReadRegular(f, p, limit)
	if errors.Is(err, driver.ErrTooLarge) {
		return nil, fmt.Errorf("the changes up to %s hold more than %d bytes: %w", p, d.limit, driver.ErrTooLarge)
	}
	return data, err
}

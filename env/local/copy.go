package local

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/milepost-rl/milepost/env/dirfs"
)

// copyBase copies the base and indexes the copy.
func (w *workspace) copyBase(ctx context.Context) error {
	w.index = map[string]dirfs.Stamp{}
	dst := w.path()
	if err := copyTree(ctx, w.base, dst); err != nil {
		return err
	}
	// The index is taken last: a file changed in the same clock tick as its copy would otherwise keep its stamp.
	time.Sleep(dirfs.Tick)
	return filepath.WalkDir(dst, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dst, p)
		w.index[rel] = dirfs.StampOf(info)
		return err
	})
}

// copyTree copies a file, a link or a directory with all below it.
func copyTree(ctx context.Context, src, dst string) error {
	return filepath.WalkDir(src, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		return copyEntry(p, filepath.Join(dst, rel), e)
	})
}

// copyEntry copies one file, link or directory with its mode and time. Anything else in a base is left out.
func copyEntry(src, dst string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	switch {
	case e.IsDir():
		if err := os.MkdirAll(dst, 0o755); err != nil {
			return err
		}
		return os.Chmod(dst, info.Mode().Perm()|0o700)
	case e.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(src)
		if err != nil {
			return err
		}
		return os.Symlink(target, dst)
	case e.Type().IsRegular():
		return copyFile(src, dst, info)
	}
	return nil
}

func copyFile(src, dst string, info fs.FileInfo) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := os.Chmod(dst, info.Mode().Perm()); err != nil {
		return err
	}
	return os.Chtimes(dst, time.Time{}, info.ModTime()) // git compares times with its index
}

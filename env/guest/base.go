package guest

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/driver"
)

// Base is a base repository on this machine, which is only read.
type Base struct {
	Bytes int64  // what its files take on a tmpfs
	Files int64  // with directories and links
	dir   string // "" for an empty one
}

// Dir is the host directory, "" for an empty base.
func (b Base) Dir() string { return b.dir }

// OpenBase measures a base. The error wraps driver.ErrInvalid where dir is no directory.
func OpenBase(ctx context.Context, dir string) (Base, error) {
	b := Base{dir: dir}
	if dir == "" {
		return b, nil
	}
	if info, err := os.Stat(dir); err != nil {
		return b, fmt.Errorf("base: %w", err)
	} else if !info.IsDir() {
		return b, fmt.Errorf("base %q is not a directory: %w", dir, driver.ErrInvalid)
	}
	err := b.walk(ctx, func(_ string, info fs.FileInfo, _ *os.Root) error {
		b.Files++
		if info.Mode().IsRegular() {
			b.Bytes += dirfs.Pages(info.Size())
		}
		return nil
	})
	return b, err
}

// walk calls fn for everything in the base, parents first.
func (b Base) walk(ctx context.Context, fn func(p string, info fs.FileInfo, root *os.Root) error) error {
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(p string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || p == "." {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		return fn(p, info, root)
	})
}

// pack writes the base as a tar stream: files, directories and links, with modes and times.
func (b Base) pack(ctx context.Context, w io.Writer) error {
	return b.packSome(ctx, w, func(string) bool { return true })
}

// packSome is pack of the paths for which want holds.
func (b Base) packSome(ctx context.Context, w io.Writer, want func(p string) bool) error {
	tw := tar.NewWriter(w)
	if b.dir != "" {
		err := b.walk(ctx, func(p string, info fs.FileInfo, root *os.Root) error {
			if !want(p) {
				return nil
			}
			return packEntry(tw, root, p, info)
		})
		if err != nil {
			return err
		}
	}
	return tw.Close()
}

func packEntry(tw *tar.Writer, root *os.Root, p string, info fs.FileInfo) error {
	h := &tar.Header{Name: p, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag = tar.TypeDir
		return tw.WriteHeader(h)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := root.Readlink(p)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return tw.WriteHeader(h)
	case !info.Mode().IsRegular():
		return nil // a pipe or socket is in no tree
	}
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return err
}

// unpackFetched reads a tar stream from a container into memory: files and links under names that were asked for, at most
// limit bytes. Nothing is written anywhere.
func unpackFetched(r io.Reader, asked map[string]bool, limit int64) (map[string]fetched, error) {
	out := map[string]fetched{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r) // up to the end frame, without which it is not whole
			return out, err
		}
		if err != nil {
			return nil, fmt.Errorf("tar: %w", err)
		}
		name := path.Clean(h.Name)
		if !asked[name] {
			return nil, fmt.Errorf("tar: %q was not asked for", h.Name)
		}
		var got fetched
		switch h.Typeflag {
		case tar.TypeSymlink:
			got = fetched{mode: 0o120000, data: []byte(h.Linkname)}
		case tar.TypeReg:
			if h.Size > limit {
				return nil, fmt.Errorf("%s: %w", name, driver.ErrTooLarge)
			}
			got.mode = 0o100644
			if h.Mode&0o100 != 0 {
				got.mode = 0o100755
			}
			if got.data, err = io.ReadAll(tr); err != nil {
				return nil, fmt.Errorf("tar: %q: %w", h.Name, err)
			}
		default:
			return nil, fmt.Errorf("tar: %q is of type %q", h.Name, h.Typeflag)
		}
		if limit -= int64(len(got.data)); limit < 0 {
			return nil, fmt.Errorf("%s: %w", name, driver.ErrTooLarge)
		}
		out[name] = got
	}
}

// fetched is a file's content or a link's target, with its git mode.
type fetched struct {
	mode uint32
	data []byte
}

package pypkg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

const (
	maxMember = 32 << 20  // bytes of one file of a distribution
	maxTotal  = 512 << 20 // bytes of all
)

// Source says where the files of one release come from: NAME==VERSION through pip, or an archive that is there.
type Source struct {
	Package string // NAME==VERSION on PyPI; with Archive, what the archive is called in messages and tasks
	Archive string // .tar.gz of a source distribution; "" downloads Package
	Cache   string // folder of downloaded distributions; wanted where Archive is ""
	Python  string // interpreter with pip
}

var pin = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][A-Za-z0-9.+!]*)$`)

// Pinned reports whether a package is written as NAME==VERSION.
func Pinned(pkg string) bool { return pin.MatchString(pkg) }

// Fetch returns the files of a source distribution: of the archive, or from the cache, or from PyPI through pip. Kinds:
// not_found, unavailable, canceled, corrupt for an archive that is none, limit for one that is too large.
func Fetch(ctx context.Context, src Source) ([]benchmarks.File, error) {
	archive := src.Archive
	if archive == "" {
		var err error
		if archive, err = src.get(ctx); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(archive)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.Wrap("pypkg: unpack", milepost.KindNotFound, err)
	}
	if err != nil {
		return nil, milepost.Wrap("pypkg: unpack", milepost.KindUnavailable, err)
	}
	defer f.Close()
	return unpack(f, archive)
}

// get returns the path of the downloaded archive, which it downloads where it is not in the cache.
func (src Source) get(ctx context.Context) (string, error) {
	dir := filepath.Join(src.Cache, strings.ReplaceAll(src.Package, "==", "-"))
	archive, err := cached(dir)
	if err != nil || archive != "" {
		return archive, err
	}
	if err := download(ctx, src, dir); err != nil {
		return "", err
	}
	if archive, err = cached(dir); err == nil && archive == "" {
		err = milepost.E("pypkg: download", milepost.KindNotFound, "pip left no .tar.gz of %s in %s", src.Package, dir)
	}
	return archive, err
}

// cached finds the downloaded archive, or "".
func cached(dir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if err != nil {
		return "", milepost.Wrap("pypkg: download", milepost.KindInvalid, err)
	}
	if len(found) == 0 {
		return "", nil
	}
	return found[0], nil
}

// download has pip fetch the distribution into a folder beside dir, which then gets its name: dir is whole or absent.
func download(ctx context.Context, src Source, dir string) (err error) {
	const op = "pypkg: download"
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".download-")
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, src.Python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
		"--no-input", "--no-binary", ":all:", "--no-deps", "--dest", tmp, src.Package)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return milepost.Wrap(op, milepost.KindCanceled, ctx.Err())
	}
	if err != nil {
		return milepost.E(op, milepost.KindUnavailable, "pip download %s: %w: %s", src.Package, err, LastLines(out, 5))
	}
	if err := os.RemoveAll(dir); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return milepost.Wrap(op, milepost.KindUnavailable, os.Rename(tmp, dir))
}

// LastLines are the last n lines of a program's output.
func LastLines(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// unpack reads the regular files of a .tar.gz below its one top folder. Links are left out; a path that would leave the
// folder is an error.
func unpack(r io.Reader, name string) ([]benchmarks.File, error) {
	const op = "pypkg: unpack"
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s: %w", name, err)
	}
	var files []benchmarks.File
	total := 0
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, milepost.E(op, milepost.KindCorrupt, "%s: %w", name, err)
		}
		_, p, below := strings.Cut(path.Clean(h.Name), "/")
		if !filepath.IsLocal(h.Name) {
			return nil, milepost.E(op, milepost.KindCorrupt, "%s: member %q lies outside the archive", name, h.Name)
		}
		if h.Typeflag != tar.TypeReg || !below || p == ".git" || strings.HasPrefix(p, ".git/") {
			continue
		}
		var b bytes.Buffer
		if _, err := io.Copy(&b, io.LimitReader(t, maxMember+1)); err != nil {
			return nil, milepost.E(op, milepost.KindCorrupt, "%s: %s: %w", name, h.Name, err)
		}
		if total += b.Len(); b.Len() > maxMember || total > maxTotal {
			return nil, milepost.E(op, milepost.KindLimit, "%s: %s takes it beyond %d bytes a file, %d in all", name, h.Name, maxMember, maxTotal)
		}
		files = append(files, benchmarks.File{Path: p, Data: b.Bytes(), Executable: h.Mode&0o100 != 0})
	}
	if len(files) == 0 {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s holds no files", name)
	}
	return files, nil
}

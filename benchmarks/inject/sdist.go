package inject

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

const (
	maxMember = 32 << 20  // bytes of one file of a distribution
	maxTotal  = 512 << 20 // bytes of all
)

// fetch returns the files of the package's source distribution, from the cache or from PyPI through pip.
func fetch(ctx context.Context, cfg Config) ([]benchmarks.File, error) {
	dir := filepath.Join(cfg.Cache, strings.ReplaceAll(cfg.Package, "==", "-"))
	archive, err := cached(dir)
	if err != nil {
		return nil, err
	}
	if archive == "" {
		if err := download(ctx, cfg, dir); err != nil {
			return nil, err
		}
		if archive, err = cached(dir); err != nil {
			return nil, err
		}
	}
	if archive == "" {
		return nil, milepost.E("inject: download", milepost.KindNotFound, "pip left no .tar.gz of %s in %s", cfg.Package, dir)
	}
	f, err := os.Open(archive)
	if err != nil {
		return nil, milepost.Wrap("inject: unpack", milepost.KindUnavailable, err)
	}
	defer f.Close()
	return unpack(f, archive)
}

// cached finds the downloaded archive, or "".
func cached(dir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if err != nil {
		return "", milepost.Wrap("inject: download", milepost.KindInvalid, err)
	}
	if len(found) == 0 {
		return "", nil
	}
	return found[0], nil
}

// download has pip fetch the distribution into a folder beside dir, which then gets its name: dir is whole or absent.
func download(ctx context.Context, cfg Config, dir string) (err error) {
	const op = "inject: download"
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".download-")
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, cfg.Python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
		"--no-input", "--no-binary", ":all:", "--no-deps", "--dest", tmp, cfg.Package)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return milepost.Wrap(op, milepost.KindCanceled, ctx.Err())
	}
	if err != nil {
		return milepost.E(op, milepost.KindUnavailable, "pip download %s: %w: %s", cfg.Package, err, lastLines(out, 5))
	}
	if err := os.RemoveAll(dir); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return milepost.Wrap(op, milepost.KindUnavailable, os.Rename(tmp, dir))
}

// lastLines are the last n lines of a program's output.
func lastLines(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// unpack reads the regular files of a .tar.gz below its one top folder. Links are left out; a path that would leave the
// folder is an error.
func unpack(r io.Reader, name string) ([]benchmarks.File, error) {
	const op = "inject: unpack"
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

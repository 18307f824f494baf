package repo

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/milepost-rl/milepost"
)

// Patch returns the unified diff from the base to base + delta, as git apply reads it: binary files included, full
// object ids, no renames. An empty delta gives "". Errors as for [Materialise].
func Patch(ctx context.Context, b *Base, delta []milepost.TreeChange, blobs BlobGetter) (string, error) {
	const op = "repo: patch"
	if err := CheckDelta(b, delta); err != nil {
		return "", err
	}
	if len(delta) == 0 {
		return "", nil
	}
	s, err := newScratch(b)
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer s.remove()
	for _, c := range delta {
		if c.Deleted {
			continue
		}
		data, err := blobs.Get(c.Blob)
		if err == nil {
			err = s.writeBlob(c.Blob, data)
		}
		if err != nil {
			return "", milepost.Wrap(op, milepost.KindUnavailable, err)
		}
	}
	// The changed trees are written here, for git would take three more processes to make them by its index.
	tree, err := b.layout().treeID(delta, func(id string, body []byte) error { return s.writeObject("tree", id, body) })
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	out, err := s.git(ctx, op, milepost.KindInternal, nil, "-c", "diff.noprefix=false", "diff-tree", "-p", "--binary", "--full-index",
		"--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", b.Tree, tree)
	return string(out), err
}

// ApplyPatch applies a unified diff to the base, strictly (git apply: no fuzz, no partial application), stores the new
// bytes in blobs and returns the difference and the tree it makes. A patch of white space only changes nothing. What it
// changes under cache paths does not count. Errors: KindInvalid with git's words for a patch that is malformed or does not
// apply, KindUnavailable, KindCanceled.
func ApplyPatch(ctx context.Context, b *Base, patch string, blobs *Blobs) (delta []milepost.TreeChange, tree string, err error) {
	const op = "repo: apply patch"
	if strings.TrimSpace(patch) == "" {
		return nil, b.Tree, nil
	}
	s, err := newScratch(b)
	if err != nil {
		return nil, "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer s.remove()
	if _, err := s.git(ctx, op, milepost.KindCorrupt, nil, "read-tree", b.Tree); err != nil {
		return nil, "", err
	}
	if _, err := s.git(ctx, op, milepost.KindInvalid, []byte(patch), "apply", "--cached", "--binary", "--whitespace=nowarn", "-"); err != nil {
		return nil, "", err
	}
	after, err := s.tree(ctx, op)
	if err != nil {
		return nil, "", err
	}
	raw, err := s.git(ctx, op, milepost.KindInternal, nil, "diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", b.Tree, after)
	if err != nil {
		return nil, "", err
	}
	if delta, err = parseRaw(raw); err != nil {
		return nil, "", err
	}
	for _, c := range delta {
		if c.Deleted {
			continue
		}
		data, err := s.git(ctx, op, milepost.KindInternal, nil, "cat-file", "blob", c.Blob)
		if err != nil {
			return nil, "", err
		}
		if _, err := blobs.Put(data); err != nil {
			return nil, "", err
		}
	}
	if err := CheckDelta(b, delta); err != nil {
		return nil, "", err
	}
	return delta, b.TreeID(delta), nil
}

// parseRaw reads git diff-tree -r -z --raw: ":<old mode> <new mode> <old hash> <new hash> <status>\0<path>\0" each.
// Cache paths are left out. The result is sorted by path.
func parseRaw(raw []byte) ([]milepost.TreeChange, error) {
	const op = "repo: parse raw diff"
	fields := strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
	var delta []milepost.TreeChange
	for i := 0; i+1 < len(fields); i += 2 {
		f := strings.Fields(strings.TrimPrefix(fields[i], ":"))
		if len(f) != 5 {
			return nil, milepost.E(op, milepost.KindInternal, "git diff-tree line %q has not five fields", fields[i])
		}
		path := fields[i+1]
		if IsCache(path) {
			continue
		}
		if f[4] == "D" {
			delta = append(delta, milepost.TreeChange{Path: path, Deleted: true})
			continue
		}
		mode, err := strconv.ParseUint(f[1], 8, 32)
		if err != nil {
			return nil, milepost.E(op, milepost.KindInternal, "git diff-tree line %q: mode: %w", fields[i], err)
		}
		delta = append(delta, milepost.TreeChange{Path: path, Mode: uint32(mode), Blob: f[3]})
	}
	sortDelta(delta)
	return delta, nil
}

// scratch is a throw-away git directory without working files that borrows the base's objects. The base is only read.
type scratch struct{ dir string }

func newScratch(b *Base) (s *scratch, err error) {
	dir, err := os.MkdirTemp("", "milepost-scratch-*")
	if err != nil {
		return nil, err
	}
	s = &scratch{dir: dir}
	defer func() {
		if err != nil {
			s.remove()
		}
	}()
	if err := os.MkdirAll(filepath.Join(dir, "objects", "info"), 0o755); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "refs"), 0o755); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"HEAD":                    "ref: refs/heads/main\n",
		"config":                  "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
		"objects/info/alternates": filepath.Join(b.Dir, ".git", "objects") + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *scratch) remove() { _ = os.RemoveAll(s.dir) }

func (s *scratch) git(ctx context.Context, op string, kind milepost.Kind, stdin []byte, args ...string) ([]byte, error) {
	return gitCommand{dir: s.dir, env: []string{"GIT_DIR=" + s.dir}, stdin: bytes.NewReader(stdin), args: args}.run(ctx, op, kind)
}

// tree returns the id of the tree that the scratch index holds.
func (s *scratch) tree(ctx context.Context, op string) (string, error) {
	out, err := s.git(ctx, op, milepost.KindInternal, nil, "write-tree")
	return strings.TrimSpace(string(out)), err
}

// writeBlob adds a file's bytes, after checking them against the id.
func (s *scratch) writeBlob(hash string, data []byte) error {
	if got := HashBlob(data); got != hash {
		return milepost.E("repo: scratch", milepost.KindCorrupt, "blob %s came with the bytes of %s", hash, got)
	}
	return s.writeObject("blob", hash, data)
}

// deflaters are kept because each takes most of a megabyte, whatever its level.
var deflaters = sync.Pool{New: func() any {
	z, err := zlib.NewWriterLevel(io.Discard, zlib.NoCompression)
	if err != nil {
		panic(err) // the level is one
	}
	return z
}}

// writeObject adds a loose object. It is not compressed: it lives for one command.
func (s *scratch) writeObject(kind, hash string, data []byte) (err error) {
	if err := os.MkdirAll(filepath.Join(s.dir, "objects", hash[:2]), 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(s.dir, "objects", hash[:2], hash[2:]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z := deflaters.Get().(*zlib.Writer)
	defer deflaters.Put(z)
	z.Reset(f)
	if _, err := z.Write(append(objectHeader(kind, len(data)), data...)); err != nil {
		return err
	}
	return z.Close()
}

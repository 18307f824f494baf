package repo

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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
	s, err := newScratch(ctx, b)
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer s.remove()
	var info bytes.Buffer     // for git update-index -z --index-info: "<mode> <hash>\t<path>\0", mode 0 removes
	for _, c := range delta { // removals first: a directory may become a file
		if c.Deleted {
			fmt.Fprintf(&info, "0 %s\t%s\x00", strings.Repeat("0", 40), c.Path)
		}
	}
	for _, c := range delta {
		if c.Deleted {
			continue
		}
		data, err := blobs.Get(c.Blob)
		if err != nil {
			return "", milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		if err := s.writeBlob(c.Blob, data); err != nil {
			return "", milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		fmt.Fprintf(&info, "%o %s\t%s\x00", c.Mode, c.Blob, c.Path)
	}
	if _, err := s.git(ctx, op, milepost.KindInternal, info.Bytes(), "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	tree, err := s.tree(ctx, op)
	if err != nil {
		return "", err
	}
	if want := b.TreeID(delta); tree != want {
		return "", milepost.E(op, milepost.KindInternal, "git makes tree %s of the delta, the index arithmetic %s", tree, want)
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
	s, err := newScratch(ctx, b)
	if err != nil {
		return nil, "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer s.remove()
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

// scratch is a throw-away git directory without working files whose index starts at the base tree and that borrows the
// base's objects. The base is only read.
type scratch struct{ dir string }

func newScratch(ctx context.Context, b *Base) (s *scratch, err error) {
	const op = "repo: scratch"
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
	_, err = s.git(ctx, op, milepost.KindCorrupt, nil, "read-tree", b.Tree)
	return s, err
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

// writeBlob adds a loose object, after checking the bytes against the id.
func (s *scratch) writeBlob(hash string, data []byte) (err error) {
	if got := HashBlob(data); got != hash {
		return milepost.E("repo: scratch", milepost.KindCorrupt, "blob %s came with the bytes of %s", hash, got)
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "objects", hash[:2]), 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(s.dir, "objects", hash[:2], hash[2:]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z := zlib.NewWriter(f)
	if _, err := z.Write(objectHeader("blob", len(data))); err != nil {
		return err
	}
	if _, err := z.Write(data); err != nil {
		return err
	}
	return z.Close()
}

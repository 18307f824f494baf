package repo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost"
)

const opBuild = "repo: build base"

// exactAttributes turns off every conversion between blob and working file, so that a checkout has the blobs' bytes
// whatever .gitattributes the repository carries (info/attributes goes before it).
const exactAttributes = "* -text -eol -ident -filter -working-tree-encoding\n"

// cloneTree makes a base in dir from the tree of the task's base commit, or from a folder without git.
func cloneTree(ctx context.Context, task *milepost.Task, dir string) error {
	if _, err := os.Stat(task.Repo); err != nil {
		kind := milepost.KindUnavailable
		if errors.Is(err, fs.ErrNotExist) {
			kind = milepost.KindNotFound
		}
		return milepost.E(opBuild, kind, "task %s: repository: %w", task.ID, err)
	}
	if task.BaseCommit == "" {
		return packFolder(ctx, task, dir)
	}
	if !isObjectID(task.BaseCommit) {
		return milepost.E(opBuild, milepost.KindInvalid, "task %s: base commit %q is not 40 lower-case hex digits", task.ID, task.BaseCommit)
	}
	out, err := gitCommand{dir: task.Repo, args: []string{"rev-parse", "--verify", "--quiet", task.BaseCommit + "^{tree}"}}.
		run(ctx, opBuild, milepost.KindInvalid)
	if err != nil {
		return milepost.E(opBuild, milepost.KindOf(err), "task %s: repository %s has no commit %s: %w", task.ID, task.Repo, task.BaseCommit, err)
	}
	if tree := string(bytes.TrimSpace(out)); tree != task.BaseTree {
		return milepost.E(opBuild, milepost.KindInvalid, "task %s: commit %s has tree %s, not the task's base tree %s", task.ID, task.BaseCommit, tree, task.BaseTree)
	}
	return buildFromRepository(ctx, task.Repo, task.BaseTree, dir)
}

// buildFromRepository makes a base in dir of a tree that the repository has.
func buildFromRepository(ctx context.Context, repository, tree, dir string) error {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(packTree(ctx, repository, tree, pw)) }()
	err := buildFromPack(ctx, tree, dir, pr)
	pr.CloseWithError(errors.New("reader gone")) // lets the packer end when the build failed early
	return err
}

// packTree writes a git pack of the tree and everything below it: no commit, no history, no name. It looks for no new
// deltas: there is one version of each file, so that finds little and takes most of the time.
func packTree(ctx context.Context, repository, tree string, w io.Writer) error {
	objects, err := gitCommand{dir: repository, args: []string{"rev-list", "--objects", "--no-object-names", tree}}.
		run(ctx, opBuild, milepost.KindCorrupt)
	if err != nil {
		return err
	}
	return gitCommand{dir: repository, stdin: bytes.NewReader(objects), args: []string{"pack-objects", "--stdout", "-q", "--threads=1", "--window=0"}}.
		stream(ctx, opBuild, milepost.KindCorrupt, w)
}

// buildFromPack makes a repository in dir that holds the pack's objects and nothing else, with one synthetic commit of
// the tree, and checks it out byte for byte.
func buildFromPack(ctx context.Context, tree, dir string, pack io.Reader) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	git := func(stdin io.Reader, args ...string) (string, error) {
		out, err := gitCommand{dir: dir, stdin: stdin, args: args, env: []string{
			"GIT_AUTHOR_NAME=base", "GIT_AUTHOR_EMAIL=base@localhost", "GIT_AUTHOR_DATE=2000-01-01T00:00:00Z",
			"GIT_COMMITTER_NAME=base", "GIT_COMMITTER_EMAIL=base@localhost", "GIT_COMMITTER_DATE=2000-01-01T00:00:00Z",
		}}.run(ctx, opBuild, milepost.KindCorrupt)
		return strings.TrimSpace(string(out)), err
	}
	if _, err := git(nil, "init", "-q", "--template=", "--object-format=sha1", "--initial-branch=main"); err != nil {
		return err
	}
	if _, err := git(pack, "index-pack", "--stdin", "--threads=1"); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, ".git", "info"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, ".git", "info", "attributes"), []byte(exactAttributes), 0o644); err != nil {
		return err
	}
	commit, err := git(nil, "commit-tree", "-m", "base", tree)
	if err != nil {
		return err
	}
	if _, err := git(nil, "-c", "core.logAllRefUpdates=false", "update-ref", "refs/heads/main", commit); err != nil {
		return err
	}
	if _, err := git(nil, "read-tree", commit); err != nil {
		return err
	}
	_, err = git(nil, "checkout-index", "--all", "--force", "--index")
	return err
}

// openBase reads the base in dir and proves it: one commit with the asked tree and no object besides, and working files
// that are the tree's, byte for byte and no other.
func openBase(ctx context.Context, dir, tree string) (*Base, error) {
	commit, err := gitCommand{dir: dir, args: []string{"rev-parse", "--verify", "HEAD"}}.run(ctx, opBuild, milepost.KindCorrupt)
	if err != nil {
		return nil, err
	}
	b := &Base{Tree: tree, Commit: string(bytes.TrimSpace(commit)), Dir: dir}
	if err := proveBase(ctx, b); err != nil {
		return nil, err
	}
	listing, err := gitCommand{dir: dir, args: []string{"ls-tree", "-r", "-z", "-l", "--full-tree", b.Commit}}.run(ctx, opBuild, milepost.KindCorrupt)
	if err != nil {
		return nil, err
	}
	if b.Index, err = parseListing(listing); err != nil {
		return nil, err
	}
	if got := b.Index.TreeID(); got != tree {
		return nil, milepost.E(opBuild, milepost.KindCorrupt, "base %s holds tree %s; remove that directory to have it made again", dir, got)
	}
	if err := verifyFiles(dir, b.Index); err != nil {
		return nil, milepost.E(opBuild, milepost.KindOf(err), "base %s: %w; remove that directory to have it made again", dir, err)
	}
	return b, nil
}

// proveBase holds the base to having one commit and nothing besides: no sandbox starts from anything else.
func proveBase(ctx context.Context, b *Base) error {
	p, err := ProveScrubbed(ctx, Host{}, b.Dir, b.Commit)
	switch {
	case len(p.Findings) > 0:
		return milepost.E(opBuild, milepost.KindCorrupt, "base %s is not scrubbed: %s; remove that directory to have it made again", b.Dir, p.words())
	case milepost.KindOf(err) == milepost.KindInvalid:
		return milepost.E(opBuild, milepost.KindCorrupt, "base %s: %w; remove that directory to have it made again", b.Dir, err)
	case err == nil && p.Commits != 1:
		return milepost.E(opBuild, milepost.KindCorrupt, "base %s has %d commits; remove that directory to have it made again", b.Dir, p.Commits)
	}
	return err
}

// parseListing reads the output of git ls-tree -r -z -l: "<mode> <type> <hash> <size or ->\t<path>\0" each.
func parseListing(listing []byte) (Index, error) {
	index := Index{}
	for record := range bytes.SplitSeq(listing, []byte{0}) {
		if len(record) == 0 {
			continue
		}
		head, path, ok := strings.Cut(string(record), "\t")
		f := strings.Fields(head)
		if !ok || len(f) != 4 {
			return nil, milepost.E(opBuild, milepost.KindCorrupt, "git ls-tree line %q is not of the form mode type hash size path", record)
		}
		mode, err := strconv.ParseUint(f[0], 8, 32)
		if err != nil {
			return nil, milepost.E(opBuild, milepost.KindCorrupt, "git ls-tree line %q: mode: %w", record, err)
		}
		size := int64(-1)
		if f[3] != "-" {
			if size, err = strconv.ParseInt(f[3], 10, 64); err != nil {
				return nil, milepost.E(opBuild, milepost.KindCorrupt, "git ls-tree line %q: size: %w", record, err)
			}
		}
		index[path] = Entry{Mode: uint32(mode), Hash: f[2], Size: size}
	}
	return index, nil
}

// verifyFiles compares the working files below dir with the index: same set of files, modes and bytes.
func verifyFiles(dir string, index Index) error {
	seen := 0
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return milepost.Wrap(opBuild, milepost.KindUnavailable, err)
		}
		path := strings.TrimPrefix(strings.TrimPrefix(name, dir), "/")
		if d.IsDir() {
			if path == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		want, known := index[path]
		if !known {
			return milepost.E(opBuild, milepost.KindCorrupt, "file %q is not in the tree", path)
		}
		seen++
		mode, data, err := readEntry(name, d.Type())
		if err != nil {
			return milepost.Wrap(opBuild, milepost.KindUnavailable, err)
		}
		if mode != want.Mode || HashBlob(data) != want.Hash {
			return milepost.E(opBuild, milepost.KindCorrupt, "file %q is %o %s, the tree has %o %s", path, mode, HashBlob(data), want.Mode, want.Hash)
		}
		return nil
	})
	if err != nil {
		return err
	}
	want := 0
	for _, e := range index {
		if e.Mode != ModeSubmodule {
			want++
		}
	}
	if seen != want {
		return milepost.E(opBuild, milepost.KindCorrupt, "%d files of the tree are missing", want-seen)
	}
	return nil
}

// readEntry reads a working file as git sees it: its git mode and, for a link, the target as bytes.
func readEntry(name string, kind fs.FileMode) (mode uint32, data []byte, err error) {
	if kind&fs.ModeSymlink != 0 {
		target, err := os.Readlink(name)
		return ModeSymlink, []byte(target), err
	}
	info, err := os.Lstat(name)
	if err != nil {
		return 0, nil, err
	}
	mode = ModeFile
	if info.Mode().Perm()&0o100 != 0 {
		mode = ModeExecutable
	}
	data, err = os.ReadFile(name)
	return mode, data, err
}

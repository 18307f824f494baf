package repo

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

const opFolder = "repo: read folder"

// FolderTree is the git tree id of a folder without git, for a task that starts from one: Task.Repo is the folder,
// Task.BaseTree this id and Task.BaseCommit "". Caches (see [IsCache]) are left out. What a tree cannot hold is refused by
// name: a repository inside, an empty directory, a pipe, socket or device. Errors: KindInvalid, KindNotFound, KindUnavailable.
func FolderTree(dir string) (string, error) {
	x, err := readFolder(dir)
	return x.TreeID(), err
}

// readFolder hashes every file of the folder.
func readFolder(dir string) (Index, error) {
	x, dirs := Index{}, map[string]bool{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			kind := milepost.KindUnavailable
			if os.IsNotExist(err) {
				kind = milepost.KindNotFound
			}
			return milepost.Wrap(opFolder, kind, err)
		}
		p := strings.TrimPrefix(strings.TrimPrefix(name, dir), "/")
		switch {
		case strings.EqualFold(d.Name(), ".git") && p != "":
			return milepost.E(opFolder, milepost.KindInvalid, "%s is a git repository, or has one in %q; a task on a repository names a base commit", dir, filepath.Dir(p))
		case d.IsDir() && p != "" && IsCache(p):
			return filepath.SkipDir
		case d.IsDir():
			dirs[p] = true
			return nil
		case IsCache(p):
			return nil
		case !d.Type().IsRegular() && d.Type() != fs.ModeSymlink:
			return milepost.E(opFolder, milepost.KindInvalid, "%s: %q is neither file, link nor directory, so no tree can hold it", dir, p)
		}
		mode, data, err := readEntry(name, d.Type())
		if err != nil {
			return milepost.Wrap(opFolder, milepost.KindUnavailable, err)
		}
		x[p] = Entry{Mode: mode, Hash: HashBlob(data), Size: int64(len(data))}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for p := range x {
		for d, _ := split(p); d != ""; d, _ = split(d) {
			delete(dirs, d)
		}
	}
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		if d == "" {
			continue
		}
		there, err := os.ReadDir(filepath.Join(dir, d))
		if err != nil {
			return nil, milepost.Wrap(opFolder, milepost.KindUnavailable, err)
		}
		if len(there) == 0 { // else it holds caches alone, or an empty directory
			return nil, milepost.E(opFolder, milepost.KindInvalid, "%s: directory %q is empty, which no tree can hold; remove it or put a file into it", dir, d)
		}
	}
	return x, nil
}

// packFolder makes a base in dir from a task's folder without git.
func packFolder(ctx context.Context, task *milepost.Task, dir string) error {
	x, err := readFolder(task.Repo)
	if err != nil {
		return err
	}
	if got := x.TreeID(); got != task.BaseTree {
		return milepost.E(opFolder, milepost.KindInvalid, "task %s: folder %s has tree %s, not the task's base tree %s", task.ID, task.Repo, got, task.BaseTree)
	}
	scratch := dir + ".folder" // a dead builder's is removed by the next one of the tree, which holds the same lock
	if err := errors.Join(os.RemoveAll(scratch), os.MkdirAll(filepath.Join(scratch, "info"), 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	git := func(stdin string, args ...string) error {
		_, err := gitCommand{dir: task.Repo, stdin: strings.NewReader(stdin), args: args,
			env: []string{"GIT_DIR=" + scratch, "GIT_WORK_TREE=" + task.Repo, "GIT_LITERAL_PATHSPECS=1"}}.run(ctx, opFolder, milepost.KindUnavailable)
		return err
	}
	if _, err := (gitCommand{dir: scratch, args: []string{"init", "-q", "--bare", "--template=", "--object-format=sha1", "."}}).run(ctx, opFolder, milepost.KindUnavailable); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(scratch, "info", "attributes"), []byte(exactAttributes), 0o644); err != nil {
		return err
	}
	if len(x) > 0 {
		paths := strings.Join(slices.Sorted(maps.Keys(x)), "\x00")
		if err := git(paths, "-c", "core.compression=1", "add", "--force", "--pathspec-from-file=-", "--pathspec-file-nul"); err != nil {
			return err
		}
	}
	if err := git("", "write-tree"); err != nil { // into the scratch store
		return err
	}
	return buildFromRepository(ctx, scratch, task.BaseTree, dir) // index-pack and checkout prove that the tree is the wanted one
}

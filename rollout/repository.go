package rollout

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
)

// snapshot is the repository at one moment: what differs from the base, and the tree that makes. It is never changed.
type snapshot struct {
	delta []milepost.TreeChange
	tree  string
}

// changed lists the paths whose content or mode differs between two snapshots of one base, sorted.
func (s snapshot) changed(since snapshot) []string {
	before := map[string]milepost.TreeChange{}
	for _, c := range since.delta {
		before[c.Path] = c
	}
	paths := map[string]bool{}
	for _, c := range s.delta {
		if before[c.Path] != c {
			paths[c.Path] = true
		}
		delete(before, c.Path)
	}
	for p := range before {
		paths[p] = true
	}
	return slices.Sorted(maps.Keys(paths))
}

// repository is the sandbox's repository as the loop last saw it. It implements tools.Repository.
type repository struct {
	base  *repo.Base
	blobs *repo.Blobs
	box   *env.Sandbox
	now   snapshot

	index   repo.Index // of indexed, once it was asked for
	indexed snapshot
}

func newRepository(base *repo.Base, blobs *repo.Blobs, box *env.Sandbox) *repository {
	return &repository{base: base, blobs: blobs, box: box, now: snapshot{tree: base.Tree}}
}

// Index is the tree as of the last snapshot, until the next one is taken. It is copied from the base once; later calls
// cost what has changed since.
func (r *repository) Index() repo.Index {
	if r.index == nil {
		r.index = repo.Index{}
		maps.Copy(r.index, r.base.Index)
	}
	for _, p := range r.now.changed(r.indexed) {
		if e, ok := r.base.Index[p]; ok {
			r.index[p] = e
		} else {
			delete(r.index, p)
		}
	}
	for _, c := range r.now.delta {
		if c.Deleted {
			delete(r.index, c.Path)
		} else if r.index[c.Path].Hash != c.Blob || r.index[c.Path].Mode != c.Mode {
			r.index[c.Path] = repo.Entry{Mode: c.Mode, Hash: c.Blob, Size: -1}
		}
	}
	r.indexed = r.now
	return r.index
}

// Delta is what differs from the base as of the last snapshot.
func (r *repository) Delta() []milepost.TreeChange { return r.now.delta }

// InBase reports whether the base tree has the file.
func (r *repository) InBase(path string) bool {
	_, ok := r.base.Index[path]
	return ok
}

// Diff is the unified diff from the base of the files below path, all of them where it is "".
func (r *repository) Diff(ctx context.Context, path string) (string, error) {
	var delta []milepost.TreeChange
	for _, c := range r.now.delta {
		if path == "" || c.Path == path || strings.HasPrefix(c.Path, path+"/") {
			delta = append(delta, c)
		}
	}
	return repo.Patch(ctx, r.base, delta, r.blobs)
}

// take looks at the sandbox as it is.
func (r *repository) take(ctx context.Context) (snapshot, error) {
	changes, err := r.box.Changes(ctx)
	if err != nil {
		return snapshot{}, err
	}
	delta, tree, err := repo.Delta(r.base, changes, r.blobs)
	if err != nil {
		return snapshot{}, err
	}
	if tree == r.now.tree {
		return r.now, nil
	}
	return snapshot{delta: delta, tree: tree}, nil
}

// rollBack brings the sandbox back to the last snapshot, git's own data included, and proves the tree. Caches and git's
// index go back to the base's.
func (r *repository) rollBack(ctx context.Context) error {
	const op = "rollout: roll back"
	if err := r.box.Reset(ctx); err != nil {
		return err
	}
	for _, c := range r.now.delta { // removals first: a directory may have become a file, or a file a directory
		if !c.Deleted {
			continue
		}
		if err := r.box.Remove(ctx, c.Path); err != nil {
			return err
		}
	}
	for _, c := range r.now.delta {
		if c.Deleted {
			continue
		}
		if err := r.restore(ctx, c); err != nil {
			return err
		}
	}
	got, err := r.take(ctx)
	if err != nil {
		return err
	}
	if got.tree != r.now.tree {
		return milepost.E(op, milepost.KindInternal, "tree %s after the roll back, not the %s of before the action", got.tree, r.now.tree)
	}
	return nil
}

func (r *repository) restore(ctx context.Context, c milepost.TreeChange) error {
	data, err := r.blobs.Get(c.Blob)
	if err != nil {
		return err
	}
	// What the base has in its place may be a link, which a write would follow, or a directory left empty.
	if err := r.box.Remove(ctx, c.Path); err != nil && milepost.KindOf(err) != milepost.KindNotFound {
		return err
	}
	switch c.Mode {
	case repo.ModeSymlink:
		return r.box.Symlink(ctx, string(data), c.Path)
	case repo.ModeExecutable:
		return r.box.WriteFile(ctx, c.Path, data, 0o755)
	}
	return r.box.WriteFile(ctx, c.Path, data, 0o644)
}

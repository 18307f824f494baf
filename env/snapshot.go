package env

import (
	"context"
	"io/fs"
	"path"

	"github.com/milepost-rl/milepost/env/driver"
)

// Snapshot is what a workspace looked like at one moment: its difference from the base, .git and caches included. It
// lives in memory, needs neither its sandbox nor its driver any more, and is never changed. What no tree holds is not in
// it: processes, /tmp, empty directories, permissions other than executable.
type Snapshot struct {
	spec    Spec
	changes []Change
}

// Size is how many bytes of content the snapshot holds.
func (s *Snapshot) Size() int64 {
	var n int64
	for _, c := range s.changes {
		n += int64(len(c.Data))
	}
	return n
}

// Snapshot notes the present state of the workspace for [Env.Fork]. Its cost is that of Changes. Kinds: limit (more data
// than the bound of the Env), conflict, canceled, unavailable.
func (s *Sandbox) Snapshot(ctx context.Context) (*Snapshot, error) {
	const op = "env: snapshot"
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	defer s.use.end()
	changes, err := s.driver.Changes(ctx, func(string) bool { return false }, s.env.maxRead)
	if err != nil {
		return nil, classify(op, err)
	}
	return &Snapshot{spec: s.spec, changes: changes}, nil
}

// Fork makes a sandbox whose workspace is as the snapshot says, on the same base, with the same image and limits. Its
// Changes are those of the sandbox it was taken from; Reset brings it back to the base. Kinds as of Create.
func (e *Env) Fork(ctx context.Context, from *Snapshot, name string) (*Sandbox, error) {
	const op = "env: fork"
	spec := from.spec
	spec.Name = name
	s, err := e.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := from.apply(ctx, s.driver); err != nil {
		_ = s.Close(ctx) // the first error is the one that matters
		return nil, classify(op, err)
	}
	return s, nil
}

// apply brings a workspace from the base to the snapshot. What was deleted goes first, since something else may stand in
// its place.
func (s *Snapshot) apply(ctx context.Context, d driver.Sandbox) error {
	for _, c := range s.changes {
		if !c.Deleted {
			continue
		}
		if err := d.Remove(c.Path); err != nil && !missing(err) {
			return err
		}
		if err := removeEmpty(d, path.Dir(c.Path)); err != nil {
			return err
		}
	}
	for _, c := range s.changes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.Deleted {
			continue
		}
		if err := applyChange(d, c); err != nil {
			return err
		}
	}
	return nil
}

// removeEmpty removes dir and the directories above it as far as they are empty: no tree has them.
func removeEmpty(d driver.Sandbox, dir string) error {
	for ; dir != "."; dir = path.Dir(dir) {
		entries, err := d.ReadDir(dir)
		if missing(err) {
			continue
		}
		if err != nil || len(entries) > 0 {
			return err
		}
		if err := d.Remove(dir); err != nil {
			return err
		}
	}
	return nil
}

// applyChange writes one file or link. What is there of another type, or a link, is not written through.
func applyChange(d driver.Sandbox, c Change) error {
	const linkMode = 0o120000
	info, err := d.Stat(c.Path)
	if err != nil && !missing(err) {
		return err
	}
	if err == nil && (!info.Mode.IsRegular() || c.Mode == linkMode) {
		if err := d.Remove(c.Path); err != nil {
			return err
		}
	}
	if c.Mode == linkMode {
		return d.Symlink(string(c.Data), c.Path)
	}
	return d.WriteFile(c.Path, c.Data, fs.FileMode(c.Mode).Perm())
}

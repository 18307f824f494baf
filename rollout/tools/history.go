package tools

import (
	"bytes"
	"context"
	"errors"
	"io/fs"

	"github.com/milepost-rl/milepost"
)

// edit is one change of one or more files, worked out whole before anything is written.
type edit []change

// change is one file of an edit.
type change struct {
	path          string
	before, after fileState
}

// fileState is a file at one moment.
type fileState struct {
	path   string
	exists bool
	data   []byte
	mode   fs.FileMode
}

func readState(ctx context.Context, w Workspace, p string) (fileState, error) {
	data, mode, err := w.ReadFile(ctx, p)
	if milepost.KindOf(err) == milepost.KindNotFound {
		return fileState{path: p}, nil
	}
	if err != nil {
		return fileState{}, err
	}
	return fileState{path: p, exists: true, data: data, mode: mode.Perm()}, nil
}

func (f fileState) same(g fileState) bool {
	return f.exists == g.exists && bytes.Equal(f.data, g.data)
}

func (f fileState) write(ctx context.Context, w Workspace) error {
	if !f.exists {
		err := w.Remove(ctx, f.path)
		if milepost.KindOf(err) == milepost.KindNotFound {
			return nil
		}
		return err
	}
	return w.WriteFile(ctx, f.path, f.data, f.mode)
}

// carryOut writes the files of an edit: removals first, since a file may make place for a directory. Where one fails
// the ones before are put back.
func (e edit) carryOut(ctx context.Context, w Workspace) error {
	var done edit
	for _, removals := range []bool{true, false} {
		for _, c := range e {
			if c.after.exists == removals {
				continue
			}
			if err := c.after.write(ctx, w); err != nil {
				return errors.Join(err, done.reverse().putBack(ctx, w))
			}
			done = append(done, c)
		}
	}
	return nil
}

func (e edit) putBack(ctx context.Context, w Workspace) error {
	for _, c := range e {
		if err := c.after.write(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// reverse is the edit that takes e back.
func (e edit) reverse() edit {
	var out edit
	for i := len(e) - 1; i >= 0; i-- {
		out = append(out, change{path: e[i].path, before: e[i].after, after: e[i].before})
	}
	return out
}

// undo takes the last edit of the session back, unless its files have changed since. An edit cannot be undone twice;
// undo itself is not in the history.
func undo(ctx context.Context, s *Session) (Result, error) {
	if len(s.history) == 0 {
		return Result{Text: "nothing to undo"}, nil
	}
	back := s.history[len(s.history)-1].reverse()
	for _, c := range back {
		now, err := readState(ctx, s.Workspace, c.path)
		if err != nil {
			return Result{}, err
		}
		if !now.same(c.before) {
			return Result{Text: c.path + " has changed since the last edit; nothing undone"}, nil
		}
	}
	if err := back.carryOut(ctx, s.Workspace); err != nil {
		return Result{}, err
	}
	s.history = s.history[:len(s.history)-1]
	return Result{Text: "ok"}, nil
}

func asRefusal(err error, to *refusal) bool { return errors.As(err, to) }

// Package memory is a driver that keeps workspaces in memory and runs no process: a [Program] of the test answers for
// every command. It serves tests of everything above env, where a real sandbox would be slow or would have to misbehave
// on demand. files.go holds the file tree, process.go what Exec and Start make of a Program.
package memory

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost/env/driver"
)

// Driver makes sandboxes in memory. Limits on processes, memory and files are not kept; wall time and output are.
type Driver struct {
	program Program
	create  func(*driver.Spec) error
}

// Option changes what a Driver does.
type Option func(*Driver)

// WithProgram makes p answer for every command; without it every command exits 127.
func WithProgram(p Program) Option { return func(d *Driver) { d.program = p } }

// WithCreate calls f before a sandbox is made; its error fails Create, for tests of infrastructure failure.
func WithCreate(f func(*driver.Spec) error) Option { return func(d *Driver) { d.create = f } }

// New returns a driver.
func New(opts ...Option) *Driver {
	d := &Driver{program: func(context.Context, *Call) int { return 127 }}
	for _, o := range opts {
		o(d)
	}
	return d
}

// Close implements driver.Driver; there is nothing to free.
func (d *Driver) Close() error { return nil }

// Create implements driver.Driver. The base is read once, .git included.
func (d *Driver) Create(ctx context.Context, spec *driver.Spec) (driver.Sandbox, error) {
	if d.create != nil {
		if err := d.create(spec); err != nil {
			return nil, err
		}
	}
	if spec.Workdir != "" {
		return nil, fmt.Errorf("workdir %q: there are no images in memory: %w", spec.Workdir, driver.ErrInvalid)
	}
	base, err := loadTree(ctx, spec.Base)
	if err != nil {
		return nil, err
	}
	return &sandbox{d: d, base: base, Files: &Files{tree: base.clone()}}, nil
}

// sandbox implements driver.Sandbox. base is never written.
type sandbox struct {
	*Files
	d    *Driver
	base tree

	running driver.Running[*process]
}

func (s *sandbox) Root() string                 { return "/workspace" }
func (s *sandbox) Inside(m driver.Mount) string { return m.Path }

// Changes implements driver.Sandbox.
func (s *sandbox) Changes(ctx context.Context, skip func(string) bool, limit int64) ([]driver.Change, error) {
	s.Files.mu.Lock()
	defer s.Files.mu.Unlock()
	var out []driver.Change
	for p, n := range s.tree {
		old := s.base[p]
		if n.mode.IsDir() || driver.Skipped(p, skip) || old != nil && gitMode(old.mode) == gitMode(n.mode) && bytes.Equal(old.data, n.data) {
			continue
		}
		if limit -= int64(len(n.data)); limit < 0 {
			return nil, driver.ErrTooLarge
		}
		out = append(out, driver.Change{Path: p, Mode: gitMode(n.mode), Data: bytes.Clone(n.data)})
	}
	for p, n := range s.base {
		if now := s.tree[p]; !n.mode.IsDir() && !driver.Skipped(p, skip) && (now == nil || now.mode.IsDir()) {
			out = append(out, driver.Change{Path: p, Deleted: true})
		}
	}
	slices.SortFunc(out, func(a, b driver.Change) int { return strings.Compare(a.Path, b.Path) })
	return out, ctx.Err()
}

func gitMode(m fs.FileMode) uint32 {
	switch {
	case m&fs.ModeSymlink != 0:
		return 0o120000
	case m&0o100 != 0:
		return 0o100755
	}
	return 0o100644
}

// Reset implements driver.Sandbox.
func (s *sandbox) Reset(context.Context) error {
	s.running.KillAll()
	s.Files.mu.Lock()
	defer s.Files.mu.Unlock()
	s.tree = s.base.clone()
	return nil
}

// Close implements driver.Sandbox.
func (s *sandbox) Close() error {
	s.running.KillAll()
	return nil
}

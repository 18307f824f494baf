package local

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/driver"
)

// sandbox implements driver.Sandbox. running holds what has been started and is not yet known to be dead.
type sandbox struct {
	d    *Driver
	spec *driver.Spec
	ws   *workspace

	running driver.Running[*running]
}

func (s *sandbox) Root() string {
	if s.d.cfg.Unconfined {
		return s.ws.path()
	}
	return workspacePath
}

func (s *sandbox) Inside(m driver.Mount) string {
	if s.d.cfg.Unconfined {
		return m.Host
	}
	return m.Path
}

func (s *sandbox) Stat(p string) (driver.FileInfo, error)      { return s.ws.files().Stat(p) }
func (s *sandbox) ReadDir(p string) ([]driver.FileInfo, error) { return s.ws.files().ReadDir(p) }
func (s *sandbox) ReadFile(p string, limit int64) ([]byte, fs.FileMode, error) {
	return s.ws.files().ReadFile(p, limit)
}
func (s *sandbox) WriteFile(p string, data []byte, mode fs.FileMode) error {
	return s.ws.files().WriteFile(p, data, mode)
}
func (s *sandbox) Symlink(target, p string) error { return s.ws.files().Symlink(target, p) }
func (s *sandbox) Remove(p string) error          { return s.ws.files().Remove(p) }

func (s *sandbox) Changes(ctx context.Context, skip func(string) bool, limit int64) ([]driver.Change, error) {
	return s.ws.changes(ctx, skip, limit)
}

// Exec implements driver.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *driver.Command) (*driver.Result, error) {
	if err := s.checkDir(cmd.Dir); err != nil {
		return nil, err
	}
	r, err := s.launch(ctx, cmd, false)
	if err != nil {
		return nil, err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		r.Kill()
		<-r.done
		return nil, ctx.Err()
	}
	return r.Wait()
}

// Start implements driver.Sandbox.
func (s *sandbox) Start(ctx context.Context, cmd *driver.Command) (driver.Process, error) {
	if err := s.checkDir(cmd.Dir); err != nil {
		return nil, err
	}
	return s.launch(ctx, cmd, true)
}

func (s *sandbox) checkDir(dir string) error {
	info, err := s.ws.root.Stat(dir)
	if err != nil {
		return dirfs.Escapes(err)
	}
	if !info.IsDir() {
		return fmt.Errorf("the working directory %s: %w", dir, syscall.ENOTDIR)
	}
	return nil
}

// Reset implements driver.Sandbox.
func (s *sandbox) Reset(ctx context.Context) error {
	s.running.KillAll()
	return s.ws.reset(ctx)
}

// Close implements driver.Sandbox.
func (s *sandbox) Close() error {
	s.running.KillAll()
	return s.ws.close()
}

// pipes are the descriptors between a command and us; the child's ends are closed once it has started.
type pipes struct{ child, ours []*os.File }

// open makes one pipe and returns the child's end: the reading one where in is set.
func (p *pipes) open(in bool) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if !in {
		r, w = w, r
	}
	p.child, p.ours = append(p.child, r), append(p.ours, w)
	return r, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a pipe's end; there is nothing to lose
	}
}

// grace is how long an ended command's pipes may stay open.
const grace = 5 * time.Second

package env

import (
	"context"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/driver"
)

// Sandbox is one workspace and the means to work in it. File operations, Exec and Start may be called concurrently.
type Sandbox struct {
	env    *Env
	spec   Spec
	driver driver.Sandbox
	use    usage
}

// Spec returns what the sandbox was made from, with its limits resolved.
func (s *Sandbox) Spec() Spec { return s.spec }

// Root is the path of the workspace as commands see it.
func (s *Sandbox) Root() string { return s.driver.Root() }

// Inside is the path of one of the Spec's mounts as commands see it: m.Path, or m.Host where nothing is confined.
func (s *Sandbox) Inside(m Mount) string { return s.driver.Inside(m) }

// begin takes the sandbox for one operation; the caller ends it with s.use.end.
func (s *Sandbox) begin(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return classify(op, err)
	}
	if why := s.use.begin(); why != "" {
		return milepost.E(op, milepost.KindConflict, "the sandbox %q is %s", s.spec.Name, why)
	}
	return nil
}

// Exec runs a command to its end. When it returns, no process of the command is left. What the command did is in the
// Result. Kinds: invalid, not_found (Dir), conflict (closed), canceled, unavailable.
func (s *Sandbox) Exec(ctx context.Context, cmd Command) (Result, error) {
	const op = "env: exec"
	if err := validateCommand(&cmd, &s.spec, false); err != nil {
		return Result{}, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if err := s.begin(ctx, op); err != nil {
		return Result{}, err
	}
	defer s.use.end()
	ctx, done := s.use.track(ctx)
	defer done()
	r, err := s.driver.Exec(ctx, s.withEnv(&cmd))
	if err != nil {
		return Result{}, classify(op, err)
	}
	return *r, nil
}

// withEnv returns cmd with the Spec's environment under its own.
func (s *Sandbox) withEnv(cmd *Command) *Command {
	vars := maps.Clone(s.spec.Env)
	if vars == nil {
		vars = map[string]string{}
	}
	maps.Copy(vars, cmd.Env)
	c := *cmd
	c.Argv, c.Env = slices.Clone(cmd.Argv), vars
	return &c
}

// Start runs a command that goes on, with the same confinement and limits as Exec, except that it has no wall time
// unless the command sets one. Command.Stdin must be empty: write to [Process.Stdin]. ctx bounds only the start.
// Reset and Close end it. Kinds as of Exec.
func (s *Sandbox) Start(ctx context.Context, cmd Command) (*Process, error) {
	const op = "env: start"
	if err := validateCommand(&cmd, &s.spec, true); err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if len(cmd.Stdin) > 0 {
		return nil, milepost.E(op, milepost.KindInvalid, "stdin of a started command is written to the process")
	}
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	defer s.use.end()
	p, err := s.driver.Start(ctx, s.withEnv(&cmd))
	if err != nil {
		return nil, classify(op, err)
	}
	return &Process{driver: p, Stdin: p.Stdin(), Stdout: p.Stdout()}, nil
}

// ReadFile returns content and mode of a regular file. Links are followed inside the workspace only. Kinds: invalid
// (the path, or not a regular file), not_found, denied (leads outside), limit (too large), conflict, unavailable.
func (s *Sandbox) ReadFile(ctx context.Context, name string) ([]byte, fs.FileMode, error) {
	const op = "env: read file"
	p, err := s.beginFile(ctx, op, name)
	if err != nil {
		return nil, 0, err
	}
	defer s.use.end()
	data, mode, err := s.driver.ReadFile(p, s.env.maxRead)
	return data, mode, classify(op, err)
}

// WriteFile writes a file whole or not at all and makes missing directories. Mode 0 keeps the mode of an existing file
// and is 0644 for a new one. Kinds as of ReadFile; limit where the workspace is full.
func (s *Sandbox) WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error {
	const op = "env: write file"
	p, err := s.beginFile(ctx, op, name)
	if err != nil {
		return err
	}
	defer s.use.end()
	return classify(op, s.driver.WriteFile(p, data, mode.Perm()))
}

// Symlink makes a link at name with the given target, which may be anything: links are followed with care, not made so.
func (s *Sandbox) Symlink(ctx context.Context, target, name string) error {
	const op = "env: symlink"
	p, err := s.beginFile(ctx, op, name)
	if err != nil {
		return err
	}
	defer s.use.end()
	return classify(op, s.driver.Symlink(target, p))
}

// Remove removes a file, a link or a whole directory. Kinds: invalid, not_found, denied, conflict, unavailable.
func (s *Sandbox) Remove(ctx context.Context, name string) error {
	const op = "env: remove"
	p, err := s.beginFile(ctx, op, name)
	if err != nil {
		return err
	}
	defer s.use.end()
	return classify(op, s.driver.Remove(p))
}

// Stat describes a path without following a link in its last element. Kinds as of ReadFile.
func (s *Sandbox) Stat(ctx context.Context, name string) (FileInfo, error) {
	const op = "env: stat"
	p, err := cleanPath(name)
	if err != nil {
		return FileInfo{}, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if err := s.begin(ctx, op); err != nil {
		return FileInfo{}, err
	}
	defer s.use.end()
	info, err := s.driver.Stat(p)
	return info, classify(op, err)
}

// Walk calls fn for everything below dir, parents before children, siblings by name; links are reported, not followed.
// fn returns fs.SkipDir to leave a directory out or fs.SkipAll to end; another error ends the walk and is returned as
// it is. fn may use the sandbox, but must not call Reset or Close.
func (s *Sandbox) Walk(ctx context.Context, dir string, fn func(FileInfo) error) error {
	const op = "env: walk"
	p, err := cleanPath(dir)
	if err != nil {
		return milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	defer s.use.end()
	err = s.walk(ctx, op, p, fn)
	if err == fs.SkipAll || err == fs.SkipDir {
		return nil
	}
	return err
}

func (s *Sandbox) walk(ctx context.Context, op, dir string, fn func(FileInfo) error) error {
	if err := ctx.Err(); err != nil {
		return classify(op, err)
	}
	entries, err := s.driver.ReadDir(dir)
	if err != nil {
		return classify(op, err)
	}
	for _, e := range entries {
		err := fn(e)
		if err == nil && e.Mode.IsDir() {
			err = s.walk(ctx, op, e.Path, fn)
		}
		if err == fs.SkipDir {
			if e.Mode.IsDir() {
				continue
			}
			return nil // as fs.WalkDir: the rest of this directory
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beginFile is begin for an operation on a path below the root; it returns the clean path.
func (s *Sandbox) beginFile(ctx context.Context, op, name string) (string, error) {
	p, err := filePath(name)
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindInvalid, err)
	}
	return p, s.begin(ctx, op)
}

// Changes lists what differs from the base by content or git mode, sorted by path: files and links only, caches (see
// [IsCache]) and .git left out. A file written with its old content is no change. Its cost is that of the change where
// the driver can. Kinds: limit (more data than the bound of the Env), conflict, canceled, unavailable.
func (s *Sandbox) Changes(ctx context.Context) ([]Change, error) {
	const op = "env: changes"
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	defer s.use.end()
	c, err := s.driver.Changes(ctx, s.skip, s.env.maxRead)
	return c, classify(op, err)
}

func (s *Sandbox) skip(p string) bool { return path.Base(p) == ".git" || s.env.ignore(p) }

// Reset ends every process and brings the workspace, .git included, back to the base. After an error the sandbox must
// be closed. Operations that are begun meanwhile fail (conflict). Kinds: conflict, canceled, unavailable.
func (s *Sandbox) Reset(ctx context.Context) error {
	const op = "env: reset"
	if err := ctx.Err(); err != nil {
		return classify(op, err)
	}
	if why := s.use.take(resetting); why != "" {
		return milepost.E(op, milepost.KindConflict, "the sandbox %q is %s", s.spec.Name, why)
	}
	defer s.use.give()
	return classify(op, s.driver.Reset(ctx))
}

// Close ends every process and removes everything the sandbox made on the host, whatever ctx says. It may be called
// again. Kind: unavailable, where something could not be removed; a second call tries again.
func (s *Sandbox) Close(context.Context) error {
	_ = s.use.take(closed) // never refused
	defer s.use.give()
	if err := s.driver.Close(); err != nil {
		return classify("env: close", err)
	}
	s.env.forget(s)
	return nil
}

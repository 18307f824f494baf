package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/cgroup"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/owner"
)

// Driver makes sandboxes on this machine. It may be used concurrently.
type Driver struct {
	cfg     Config
	bwrap   string // "" where unconfined
	python  interpreter
	system  []string      // the part of bwrap's arguments that is the same for every command
	home    string        // this owner's folder in Config.Root
	cgroups *cgroup.Owner // nil where there are none
	spawn   cgroup.Spawner
	report  Report

	next      atomic.Int64
	closeOnce sync.Once
	closeErr  error
}

// Report says what New found the machine able to do, for a person (milepost doctor).
type Report struct {
	Confined        bool
	Workspace       WorkspaceMode // overlay or copy
	WorkspaceReason string        // why not overlay; "" where it is or copy was asked for
	Quota           bool          // Limits.Disk holds
	Cgroups         string        // "v1", "v2" or "none"
	CgroupsReason   string        // why none
	NestedUsers     bool          // commands could make user namespaces: bubblewrap could not forbid it
}

// Report says what this driver can do on this machine.
func (d *Driver) Report() Report { return d.report }

// New checks the machine and makes a driver whose sandboxes live in cfg.Root; what a dead owner left there is removed.
// Kinds: invalid (the configuration), unavailable (bubblewrap is missing or does not work, the folder cannot be used).
func New(cfg Config) (*Driver, error) {
	const op = "env/local: open"
	if err := cfg.normalise(); err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg}
	var err error
	if !cfg.Unconfined {
		if d.bwrap, err = cfg.findBwrap(); err != nil {
			return nil, err
		}
	}
	if d.python, err = cfg.findPython(context.Background()); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Root, 0o700); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := cfg.sweep(); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if d.home, err = owner.TakeFolder(cfg.Root); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := d.prepare(); err != nil {
		_ = d.Close() // the first error is the one that matters
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return d, nil
}

// sweep removes what dead owners left in the folder and in the control groups.
func (c *Config) sweep() error {
	if c.CgroupRoot == "none" {
		return owner.Sweep(c.Root, func(string) {})
	}
	defer cgroup.SweepEmpty(c.CgroupRoot, owner.Dead)
	return owner.Sweep(c.Root, func(name string) { cgroup.Sweep(c.CgroupRoot, name) })
}

// prepare finds out what the machine can do and fills the report.
func (d *Driver) prepare() error {
	d.report.Confined = !d.cfg.Unconfined
	if err := d.probeWorkspace(); err != nil {
		return err
	}
	var err error
	d.report.Cgroups = "none"
	if d.cfg.CgroupRoot == "none" {
		d.report.CgroupsReason = "switched off by the configuration"
	} else if d.cgroups, err = cgroup.Open(d.cfg.CgroupRoot, filepath.Base(d.home)); err != nil {
		d.report.CgroupsReason = err.Error()
	} else {
		d.report.Cgroups = d.cgroups.Version()
	}
	if d.cfg.Unconfined {
		return nil
	}
	if err := writeEtc(filepath.Join(d.home, "etc")); err != nil {
		return err
	}
	return d.probeBwrap()
}

// probeBwrap runs one command under the real confinement, first with user namespaces forbidden.
func (d *Driver) probeBwrap() error {
	var first error
	for _, nested := range []bool{false, true} {
		d.system = d.systemArgs(nested)
		err := d.trial()
		if err == nil {
			d.report.NestedUsers = nested
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return fmt.Errorf("bubblewrap does not work here: %w; unprivileged user namespaces may be switched off "+
		"(sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)", first)
}

func (d *Driver) trial() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := d.Create(ctx, &driver.Spec{Name: "trial", Limits: driver.Limits{Procs: 16, Memory: 256 << 20, Disk: 1 << 20}})
	if err != nil {
		return err
	}
	r, err := s.Exec(ctx, &driver.Command{Argv: []string{"/bin/sh", "-c", "true"}, Dir: ".",
		Limits: driver.Limits{Procs: 16, Memory: 256 << 20, Output: 4096, Wall: 20 * time.Second}})
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", r.ExitCode, r.Stderr)
	}
	return errors.Join(err, s.Close())
}

// Create implements driver.Driver.
func (d *Driver) Create(ctx context.Context, spec *driver.Spec) (driver.Sandbox, error) {
	if len(spec.Image) > 0 && !isLocalImage(spec.Image) {
		return nil, fmt.Errorf("image %q: the local driver has no images, only \"\" or \"local:...\"; set sandbox.driver: docker: %w", spec.Image, driver.ErrInvalid)
	}
	if spec.Workdir != "" {
		return nil, fmt.Errorf("workdir %q: the local driver has no images to hold a repository; set sandbox.driver: docker: %w", spec.Workdir, driver.ErrInvalid)
	}
	if spec.Base != "" {
		if info, err := os.Stat(spec.Base); err != nil {
			return nil, fmt.Errorf("base: %w", err)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("base %q is not a directory: %w", spec.Base, driver.ErrInvalid)
		}
	}
	for _, m := range spec.Mounts {
		if info, err := os.Stat(m.Host); err != nil {
			return nil, fmt.Errorf("mount: %w", err)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("mount %q is not a directory: %w", m.Host, driver.ErrInvalid)
		}
	}
	dir := filepath.Join(d.home, fmt.Sprintf("s%d", d.next.Add(1)))
	ws, err := d.newWorkspace(ctx, dir, spec)
	if err != nil {
		return nil, err
	}
	return &sandbox{d: d, spec: spec, ws: ws}, nil
}

// Close implements driver.Driver: it gives up the lease and removes the owner's folder.
func (d *Driver) Close() error {
	d.closeOnce.Do(func() {
		if d.home == "" {
			return
		}
		d.closeErr = errors.Join(d.cgroups.Close(), owner.RemoveFolder(d.home))
	})
	return d.closeErr
}

package apptainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/cgroup"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/guest"
	"github.com/milepost-rl/milepost/env/owner"
)

// Driver makes sandboxes on this machine. It may be used concurrently.
type Driver struct {
	cfg      Config
	program  string
	version  string // as the program says it
	agent    string // path of the program for process 1
	uid, gid int    // of commands, where this process is root
	home     string // this owner's folder in Config.Root
	images   *images
	cgroups  *cgroup.Owner // nil where there are none
	noGroups string        // why
	quota    bool          // tmpfs can be mounted
	spawn    cgroup.Spawner

	next      atomic.Int64
	closeOnce sync.Once
	closeErr  error
}

const (
	pullTime   = 30 * time.Minute
	createTime = 5 * time.Minute  // for a container to start and be filled, without the pull
	endTime    = 5 * time.Second  // for a container to end after its connection
	killTime   = 10 * time.Second // and after it was killed
)

// New checks the machine and makes a driver whose sandboxes live in cfg.Root; what a dead owner left there is removed.
// Kinds: invalid (the configuration), unavailable (the program is missing or does not run, the folder cannot be used).
func New(ctx context.Context, cfg Config) (*Driver, error) {
	const op = "env/apptainer: open"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Root == "" {
		return nil, milepost.E("env/apptainer: configure", milepost.KindInvalid, "root is empty; it must be an absolute path")
	}
	if cfg.CgroupRoot == "" {
		cfg.CgroupRoot = "/sys/fs/cgroup"
	}
	if cfg.Images == "" {
		cfg.Images = filepath.Join(cfg.Root, "images")
	}
	d := &Driver{cfg: cfg}
	var err error
	if d.uid, d.gid, err = cfg.user(); err != nil {
		return nil, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if d.program, err = cfg.findProgram(); err != nil {
		return nil, err
	}
	if d.agent, err = guest.Program(cfg.Agent, "sandbox.apptainer.agent"); err != nil {
		return nil, err
	}
	if d.version, err = d.askVersion(ctx); err != nil {
		return nil, err
	}
	d.images = &images{dir: cfg.Images, pull: cfg.Pull, program: d.program, env: hostEnv()}
	if err := d.takeFolder(); err != nil {
		return nil, errors.Join(milepost.Wrap(op, milepost.KindUnavailable, err), d.Close())
	}
	return d, nil
}

// askVersion runs the program once.
func (d *Driver) askVersion(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.program, "--version")
	cmd.Env = hostEnv()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", milepost.E("env/apptainer: open", milepost.KindUnavailable, "%s --version: %w: %s", d.program, err, lastLines(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

// takeFolder collects what dead owners left, takes a folder and control groups, and tries whether tmpfs can be mounted.
func (d *Driver) takeFolder() error {
	if err := os.MkdirAll(d.cfg.Root, 0o711); err != nil {
		return err
	}
	groups := d.cfg.CgroupRoot != "none"
	if err := owner.Sweep(d.cfg.Root, func(name string) {
		if groups {
			cgroup.Sweep(d.cfg.CgroupRoot, name)
		}
	}); err != nil {
		return err
	}
	var err error
	if d.home, err = owner.TakeFolder(d.cfg.Root); err != nil {
		return err
	}
	if d.noGroups = "switched off by the configuration"; groups {
		cgroup.SweepEmpty(d.cfg.CgroupRoot, owner.Dead)
		if d.cgroups, err = cgroup.Open(d.cfg.CgroupRoot, filepath.Base(d.home)); err != nil {
			d.noGroups = err.Error()
		}
	}
	trial := filepath.Join(d.home, "trial")
	if err := os.Mkdir(trial, 0o755); err != nil {
		return err
	}
	if unix.Mount("milepost", trial, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "") == nil {
		d.quota = true
		if err := owner.Unmount(trial); err != nil {
			return err
		}
	}
	return os.Remove(trial)
}

// Describe says what the driver found, for a person (milepost doctor).
func (d *Driver) Describe() string {
	limits := "memory and processes limited by control groups"
	if d.cgroups == nil {
		limits = "memory limited per process, processes per user (no control groups: " + d.noGroups + ")"
	}
	disk := "disk limited"
	if !d.quota {
		disk = "disk not limited (tmpfs cannot be mounted without root)"
	}
	return fmt.Sprintf("%s; %s; %s", d.version, limits, disk)
}

// Create implements driver.Driver.
func (d *Driver) Create(ctx context.Context, spec *driver.Spec) (driver.Sandbox, error) {
	if spec.Workdir != "" {
		return nil, fmt.Errorf("workdir %q: driver apptainer does not take repositories out of images yet; set sandbox.driver: docker: %w", spec.Workdir, driver.ErrInvalid)
	}
	image, err := d.cfg.image(spec.Image)
	if err != nil {
		return nil, err
	}
	b, err := guest.OpenBase(ctx, spec.Base)
	if err != nil {
		return nil, err
	}
	if err := checkMounts(spec.Mounts); err != nil {
		return nil, err
	}
	file, err := d.images.path(ctx, image)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, createTime, errSlow)
	defer cancel()
	s, err := d.start(ctx, spec, file, b)
	if err != nil && errors.Is(context.Cause(ctx), errSlow) {
		err = milepost.E("env/apptainer: create", milepost.KindUnavailable, "%w", errSlow)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// checkMounts refuses what could not be shown, or not be written.
func checkMounts(mounts []driver.Mount) error {
	for _, m := range mounts {
		if info, err := os.Stat(m.Host); err != nil {
			return fmt.Errorf("mount: %w", err)
		} else if !info.IsDir() {
			return fmt.Errorf("mount %q is not a directory: %w", m.Host, driver.ErrInvalid)
		}
		if m.Writable && asRoot() {
			return fmt.Errorf("mount %q: commands run as sandbox.apptainer.user and could not write what root has there; run Milepost as another user than root, "+
				"or set tests.resident: false: %w", m.Host, driver.ErrInvalid)
		}
	}
	return nil
}

var errSlow = fmt.Errorf("the container did not come up within %s", createTime)

// Close implements driver.Driver: it gives up the lease and removes the owner's folder. Pulled images stay.
func (d *Driver) Close() error {
	d.closeOnce.Do(func() {
		if d.home != "" {
			d.closeErr = errors.Join(d.cgroups.Close(), owner.RemoveFolder(d.home))
		}
	})
	return d.closeErr
}

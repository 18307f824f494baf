package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/owner"
)

// workspace is one workspace on disk. The layout of its directory:
//
//	scratch/        a tmpfs of Limits.Disk bytes where one can be mounted, else a plain directory
//	scratch/upper   what was written (overlay), scratch/work its helper
//	scratch/ws      what commands see: the overlay, or the copied files
//	empty/          the base of a sandbox without one
//
// The overlay is mounted inside the tmpfs, so that detaching the tmpfs takes both away at once: an unmount is the
// dearest thing that a workspace does.
type workspace struct {
	d     *Driver
	dir   string
	base  string // host directory; an empty one of our own where the Spec has none
	quota int64
	root  *os.Root               // on path()
	mount string                 // the outermost mount; "" where nothing is mounted
	index map[string]dirfs.Stamp // of a copy, by relative path
}

func isLocalImage(image string) bool { return image == "local" || strings.HasPrefix(image, "local:") }

func (w *workspace) overlay() bool { return w.d.report.Workspace == WorkspaceOverlay }

func (w *workspace) scratch() string { return filepath.Join(w.dir, "scratch") }

// path is the host's path of the workspace.
func (w *workspace) path() string { return filepath.Join(w.scratch(), "ws") }

// files are the operations on the files of the workspace.
func (w *workspace) files() dirfs.Dir { return dirfs.New(w.root) }

// newWorkspace makes a workspace in dir, which must not exist. On failure nothing is left.
func (d *Driver) newWorkspace(ctx context.Context, dir string, spec *driver.Spec) (*workspace, error) {
	w := &workspace{d: d, dir: dir, base: spec.Base, quota: spec.Limits.Disk}
	err := func() error {
		for _, p := range []string{dir, w.scratch(), filepath.Join(dir, "empty")} {
			if err := os.Mkdir(p, 0o755); err != nil {
				return err
			}
		}
		if w.base == "" {
			w.base = filepath.Join(dir, "empty")
		}
		return w.fill(ctx)
	}()
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// fill mounts or copies what the workspace begins with.
func (w *workspace) fill(ctx context.Context) error {
	if w.d.report.Quota {
		opts := "mode=0755"
		if w.quota > 0 {
			opts += fmt.Sprintf(",size=%d,nr_inodes=%d", w.quota, max(w.quota/4096, 4096))
		}
		if err := unix.Mount("milepost", w.scratch(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
			return &os.PathError{Op: "mount tmpfs", Path: w.scratch(), Err: err}
		}
		w.mount = w.scratch()
	}
	var err error
	if w.overlay() {
		err = w.mountOverlay()
	} else {
		err = w.copyBase(ctx)
	}
	if err != nil {
		return err
	}
	w.root, err = os.OpenRoot(w.path())
	return err
}

// empty undoes fill. It is called once nothing runs on the workspace.
func (w *workspace) empty() error {
	if w.root != nil {
		if err := w.root.Close(); err != nil {
			return err
		}
		w.root = nil
	}
	if w.mount != "" {
		if err := owner.Unmount(w.mount); err != nil {
			return err
		}
		w.mount = ""
	}
	return nil
}

func (w *workspace) reset(ctx context.Context) error {
	if err := w.empty(); err != nil {
		return err
	}
	if err := owner.RemoveTree(w.scratch()); err != nil {
		return err
	}
	if err := os.Mkdir(w.scratch(), 0o755); err != nil {
		return err
	}
	return w.fill(ctx)
}

func (w *workspace) close() error {
	if err := w.empty(); err != nil {
		return err
	}
	return owner.RemoveTree(w.dir)
}

// probeWorkspace decides between overlay and copy and finds out whether a tmpfs can be mounted, by trying.
func (d *Driver) probeWorkspace() error {
	d.report.Quota = true
	try := func(mode WorkspaceMode) error {
		d.report.Workspace = mode
		w, err := d.newWorkspace(context.Background(), filepath.Join(d.home, "probe"), &driver.Spec{})
		if err != nil {
			return err
		}
		return w.close()
	}
	if d.cfg.Workspace != WorkspaceCopy {
		err := try(WorkspaceOverlay)
		if err == nil {
			return nil
		}
		if d.cfg.Workspace == WorkspaceOverlay {
			return fmt.Errorf("workspace: overlay cannot be used here: %w", err)
		}
		d.report.WorkspaceReason = err.Error()
	}
	if try(WorkspaceCopy) == nil {
		return nil
	}
	d.report.Quota = false
	return try(WorkspaceCopy)
}

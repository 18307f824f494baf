package apptainer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/guest"
	"github.com/milepost-rl/milepost/env/owner"
)

// places are the folders of the host that one sandbox may write to, all below dir: a tmpfs each where one can be mounted.
type places struct {
	dir    string
	mounts []string
}

// place is one of them.
type place struct {
	host, path string
	mode       os.FileMode
	size       int64 // bytes; 0: no bound
	files      int64
}

func (p *places) binds() []place {
	at := func(name, path string, mode os.FileMode) place {
		return place{host: filepath.Join(p.dir, name), path: path, mode: mode}
	}
	return []place{at("ws", agent.Workspace, 0o755), at("tmp", "/tmp", 0o777|os.ModeSticky), at("vartmp", "/var/tmp", 0o777|os.ModeSticky), at("shm", "/dev/shm", 0o777|os.ModeSticky)}
}

// makePlaces makes the folders in dir, which must not exist. On failure nothing is left.
func (d *Driver) makePlaces(dir string, l driver.Limits, b guest.Base) (*places, error) {
	p := &places{dir: dir}
	if err := p.make(d, l, b); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *places) make(d *Driver, l driver.Limits, b guest.Base) error {
	if err := os.Mkdir(p.dir, 0o711); err != nil { // a user without rights must get through where one mounts for it
		return err
	}
	for _, at := range p.binds() {
		at.size, at.files = d.room(at.path, l, b)
		if err := os.Mkdir(at.host, 0o755); err != nil {
			return err
		}
		if d.quota {
			opts := fmt.Sprintf("mode=%o", at.mode.Perm())
			if at.size > 0 {
				opts += fmt.Sprintf(",size=%d,nr_inodes=%d", at.size, at.files)
			}
			if err := unix.Mount("milepost", at.host, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
				return &os.PathError{Op: "mount tmpfs", Path: at.host, Err: err}
			}
			p.mounts = append(p.mounts, at.host)
		}
		if asRoot() {
			if err := os.Chown(at.host, d.uid, d.gid); err != nil {
				return err
			}
		}
		if err := os.Chmod(at.host, at.mode); err != nil {
			return err
		}
	}
	return nil
}

// room is how much a place may hold, as in the docker driver.
func (d *Driver) room(path string, l driver.Limits, b guest.Base) (size, files int64) {
	workspace, other := guest.Room(l, d.tmpSize())
	switch {
	case path != agent.Workspace:
		return other, guest.FilesIn(other)
	case workspace == 0:
		return 0, 0
	}
	return workspace + b.Bytes, guest.FilesIn(workspace) + b.Files
}

func (d *Driver) tmpSize() int64 {
	if d.cfg.TmpSize == 0 {
		return defaultTmpSize
	}
	return d.cfg.TmpSize
}

// close removes everything. It may be called again after a failure.
func (p *places) close() error {
	for len(p.mounts) > 0 {
		last := len(p.mounts) - 1
		if err := owner.Unmount(p.mounts[last]); err != nil {
			return err
		}
		p.mounts = p.mounts[:last]
	}
	return owner.RemoveTree(p.dir)
}

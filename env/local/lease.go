package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost/env/owner"
)

const (
	leaseFile   = "lease.json"
	ownerPrefix = "milepost-"
)

var leaseCount atomic.Int64

// takeLease makes a folder of this process's own in root and returns its path. The lease is in place before anything
// else is.
func takeLease(root string) (string, error) {
	l, err := owner.Current()
	if err != nil {
		return "", err
	}
	home := filepath.Join(root, fmt.Sprintf("%s%d-%s-%d", ownerPrefix, l.PID, l.Start, leaseCount.Add(1)))
	data, err := json.Marshal(l)
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(home, 0o700); err != nil {
		return "", err
	}
	tmp := filepath.Join(home, leaseFile+".tmp")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return "", err
	}
	return home, os.Rename(tmp, filepath.Join(home, leaseFile))
}

// parseOwner reads the process out of a folder's name, for a folder whose owner died before it wrote the lease.
func parseOwner(name string) (owner.Process, bool) {
	f := strings.Split(strings.TrimPrefix(name, ownerPrefix), "-")
	if !strings.HasPrefix(name, ownerPrefix) || len(f) != 3 {
		return owner.Process{}, false
	}
	pid, err := strconv.Atoi(f[0])
	return owner.Process{PID: pid, Start: f[1], Boot: owner.Boot()}, err == nil
}

// sweep removes the folders, mounts and control groups of owners that are dead. What belongs to a live one, and what
// does not look like an owner's folder at all, is left alone.
func sweep(root, cgroupRoot string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		l, ok := parseOwner(e.Name())
		if !ok || !e.IsDir() {
			continue
		}
		home := filepath.Join(root, e.Name())
		if b, err := os.ReadFile(filepath.Join(home, leaseFile)); err == nil {
			if err := json.Unmarshal(b, &l); err != nil {
				return fmt.Errorf("%s: %w", filepath.Join(home, leaseFile), err)
			}
		}
		if l.Alive() {
			continue
		}
		if cgroupRoot != "none" {
			sweepCgroups(cgroupRoot, e.Name())
		}
		if err := errors.Join(unmountBelow(home), removeTree(home)); err != nil {
			return fmt.Errorf("left by process %d, which is dead: %w", l.PID, err)
		}
	}
	if cgroupRoot != "none" {
		sweepEmptyCgroups(cgroupRoot)
	}
	return nil
}

// removeTree removes a directory. What a task made unwritable in it is made writable first.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, _ error) error { // best effort; RemoveAll reports
		if e != nil && e.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// unmountBelow unmounts what is mounted at or below dir, last mount first.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 4 {
			if p := unescapeMount(f[4]); under(p, dir) {
				points = append(points, p)
			}
		}
	}
	for i := len(points) - 1; i >= 0; i-- {
		if err := unmount(points[i]); err != nil {
			return err
		}
	}
	return nil
}

// unescapeMount undoes the octal escapes of /proc/self/mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// unmount detaches a mount. Nothing uses it any more when this is called, except perhaps a process of the host that
// looks into it; the kernel then frees the mount when that one leaves.
func unmount(p string) error {
	if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "unmount", Path: p, Err: err}
	}
	return nil
}

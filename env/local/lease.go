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
)

// lease names the process that owns a folder; a process id alone would be reused.
type lease struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot, of /proc/PID/stat
	Boot  string `json:"boot"`
}

const (
	leaseFile   = "lease.json"
	ownerPrefix = "milepost-"
)

var leaseCount atomic.Int64

func currentBoot() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // "" where there is none: then the start time alone decides
	return strings.TrimSpace(string(b))
}

// startTime returns field 22 of /proc/PID/stat.
func startTime(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	if i := strings.LastIndex(string(b), ") "); i >= 0 {
		rest = string(b)[i+2:] // the name may itself hold ") "
	}
	f := strings.Fields(rest)
	if !ok || len(f) < 20 {
		return "", fmt.Errorf("/proc/%d/stat: %d fields", pid, len(f))
	}
	return f[19], nil
}

func (l lease) alive() bool {
	if l.Boot != currentBoot() {
		return false
	}
	start, err := startTime(l.PID)
	return err == nil && start == l.Start
}

// takeLease makes a folder of this process's own in root and returns its path. The lease is in place before anything
// else is.
func takeLease(root string) (string, error) {
	l := lease{PID: os.Getpid(), Boot: currentBoot()}
	var err error
	if l.Start, err = startTime(l.PID); err != nil {
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
func parseOwner(name string) (lease, bool) {
	f := strings.Split(strings.TrimPrefix(name, ownerPrefix), "-")
	if !strings.HasPrefix(name, ownerPrefix) || len(f) != 3 {
		return lease{}, false
	}
	pid, err := strconv.Atoi(f[0])
	return lease{PID: pid, Start: f[1], Boot: currentBoot()}, err == nil
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
		if l.alive() {
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

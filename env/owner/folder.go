package owner

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

const (
	leaseFile = "lease.json"
	prefix    = "milepost-"
)

var leaseCount atomic.Int64

// TakeFolder makes a folder of this process's own in root and returns its path. The lease is in place before anything
// else is.
func TakeFolder(root string) (string, error) {
	l, err := Current()
	if err != nil {
		return "", err
	}
	home := filepath.Join(root, fmt.Sprintf("%s%d-%s-%d", prefix, l.PID, l.Start, leaseCount.Add(1)))
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

// Dead reports whether a name is that of an owner's folder, and the owner dead as far as the name tells.
func Dead(name string) bool {
	p, ok := parse(name)
	return ok && !p.Alive()
}

// parse reads the process out of a folder's name, for a folder whose owner died before it wrote the lease.
func parse(name string) (Process, bool) {
	f := strings.Split(strings.TrimPrefix(name, prefix), "-")
	if !strings.HasPrefix(name, prefix) || len(f) != 3 {
		return Process{}, false
	}
	pid, err := strconv.Atoi(f[0])
	return Process{PID: pid, Start: f[1], Boot: Boot()}, err == nil
}

// Sweep removes the folders in root, and the mounts in them, of owners that are dead. What belongs to a live one, and what
// does not look like an owner's folder at all, is left alone. before is called with the name of each folder, to end what
// may still use it.
func Sweep(root string, before func(name string)) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		l, ok := parse(e.Name())
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
		before(e.Name())
		if err := RemoveFolder(home); err != nil {
			return fmt.Errorf("left by process %d, which is dead: %w", l.PID, err)
		}
	}
	return nil
}

// RemoveFolder unmounts what is mounted in a folder and removes it.
func RemoveFolder(home string) error { return errors.Join(unmountBelow(home), RemoveTree(home)) }

// RemoveTree removes a directory. What a task made unwritable in it is made writable first.
func RemoveTree(dir string) error {
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
			if p := unescapeMount(f[4]); p == dir || strings.HasPrefix(p, dir+"/") {
				points = append(points, p)
			}
		}
	}
	for i := len(points) - 1; i >= 0; i-- {
		if err := Unmount(points[i]); err != nil {
			return err
		}
	}
	return nil
}

// unescapeMount undoes the octal escapes of /proc/self/mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// Unmount detaches a mount. Nothing uses it any more when this is called, except perhaps a process of the host that
// looks into it; the kernel then frees the mount when that one leaves.
func Unmount(p string) error {
	if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "unmount", Path: p, Err: err}
	}
	return nil
}

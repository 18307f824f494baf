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
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	leaseFile = "lease.json"
	prefix    = "milepost-"
	unnamed   = "new-" + prefix // a folder whose lease is not held yet
)

var (
	leaseCount atomic.Int64
	held       sync.Map // folder of this process: *os.File of its lease, which holds the lock
)

// TakeFolder makes a folder of this process's own in root and returns its path. It gets its name once its lease is
// written and locked. The lock, and not what the lease says, is what tells others that the owner lives: it ends with the
// process, and it holds across process namespaces and, where the file system has locks, across machines.
func TakeFolder(root string) (string, error) {
	l, err := Current()
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(l)
	if err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(root, unnamed)
	if err != nil {
		return "", err
	}
	home := filepath.Join(root, fmt.Sprintf("%s%d-%s-%d", prefix, l.PID, l.Start, leaseCount.Add(1)))
	f, err := os.OpenFile(filepath.Join(tmp, leaseFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(tmp))
	}
	_, err = f.Write(data)
	if err == nil {
		_, err = lock(f)
	}
	if err == nil {
		err = os.Rename(tmp, home)
	}
	if err != nil {
		return "", errors.Join(err, f.Close(), os.RemoveAll(tmp))
	}
	held.Store(home, f)
	return home, nil
}

// lockState says what a try for a lease's lock told.
type lockState int

const (
	gained  lockState = iota
	others            // a live process has it
	noLocks           // the file system has none
)

func lock(f *os.File) (lockState, error) {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return gained, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return others, nil
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOLCK):
			return noLocks, nil
		default:
			return noLocks, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
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

// Sweep removes the folders in root, and the mounts in them, of owners that are dead. What belongs to a live one or to
// another user, and what does not look like an owner's folder at all, is left alone. Several may sweep at once. before is
// called with the name of each folder, to end what may still use it.
func Sweep(root string, before func(name string)) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		home := filepath.Join(root, e.Name())
		if info, err := e.Info(); err == nil && e.IsDir() && strings.HasPrefix(e.Name(), unnamed) && time.Since(info.ModTime()) > time.Hour {
			_ = os.RemoveAll(home) // nothing was in it but a lease
		}
		l, ok := parse(e.Name())
		if !ok || !e.IsDir() {
			continue
		}
		done, dead := claim(home, l)
		if !dead {
			continue
		}
		before(e.Name())
		err := RemoveFolder(home)
		done()
		if err != nil {
			return fmt.Errorf("left by process %d, which is dead: %w", l.PID, err)
		}
	}
	return nil
}

// claim finds out whether the owner of a folder is dead, and keeps other sweeps away from it until done is called. named
// is the owner as the folder's name tells, which counts where the lease cannot be read as one.
func claim(home string, named Process) (done func(), dead bool) {
	f, err := os.OpenFile(filepath.Join(home, leaseFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, false // another user's
	}
	if err != nil { // no lease: it is being removed, or that was cut short
		return func() {}, !named.Alive()
	}
	l := named
	if b, err := os.ReadFile(f.Name()); err == nil {
		var read Process
		if json.Unmarshal(b, &read) == nil { // a machine that went down can leave a file without its contents
			l = read
		}
	}
	state, err := lock(f)
	// Without locks nothing is known of a process elsewhere.
	if err != nil || state == others || state == noLocks && l.Boot != Boot() || l.Alive() {
		_ = f.Close()
		return nil, false
	}
	return func() { _ = f.Close() }, true
}

// RemoveFolder unmounts what is mounted in a folder and removes it; a lease of this process ends with it.
func RemoveFolder(home string) error {
	err := errors.Join(unmountBelow(home), RemoveTree(home))
	if f, ok := held.LoadAndDelete(home); ok {
		err = errors.Join(err, f.(*os.File).Close())
	}
	return err
}

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

// Package cgroup limits commands as a whole with control groups, version 1 or 2: a directory named after the owner and in it
// one per command or sandbox (cgroup.go). spawn.go starts processes inside a group, from the one thread they may die with.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Owner is one owner's place in the control groups: a directory named after it, and in it one per command. A nil Owner
// has no groups.
type Owner struct {
	version string   // "v1" or "v2"
	dirs    []string // the owner's directories: pids and memory (v1), or the one (v2)
	homes   []string // v1: where the spawning thread goes back to, one for each of dirs
	next    atomic.Int64
}

// Group is the control group of one command. A nil Group limits nothing.
type Group struct {
	of   *Owner
	dirs []string
	fd   int // v2: the directory, for clone3; -1 otherwise
}

// roots returns the directories in which an owner's directory is made, and the version.
func roots(root string) ([]string, string) {
	if b, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		has := strings.Fields(string(b))
		if slices.Contains(has, "memory") && slices.Contains(has, "pids") {
			return []string{root}, "v2"
		}
		return nil, ""
	}
	pids, memory := filepath.Join(root, "pids"), filepath.Join(root, "memory")
	for _, d := range []string{pids, memory} {
		if _, err := os.Stat(filepath.Join(d, "tasks")); err != nil {
			return nil, ""
		}
	}
	return []string{pids, memory}, "v1"
}

// Open makes the owner's directories. An error means that there are none to be had, and why.
func Open(root, owner string) (*Owner, error) {
	places, version := roots(root)
	if version == "" {
		return nil, fmt.Errorf("%s has no pids and memory controllers", root)
	}
	c := &Owner{version: version}
	for i, r := range places {
		dir := filepath.Join(r, owner)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.dirs = append(c.dirs, dir)
		if version == "v1" {
			home, err := currentCgroup(r, filepath.Base(places[i]))
			if err != nil {
				return nil, errors.Join(err, c.Close())
			}
			c.homes = append(c.homes, home)
		}
	}
	if version == "v2" {
		if err := put(c.dirs[0], "cgroup.subtree_control", "+memory +pids"); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// currentCgroup returns the directory of this process's group of a version 1 controller, or the root of the hierarchy
// where the process's path is not visible in this namespace.
func currentCgroup(root, controller string) (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && slices.Contains(strings.Split(f[1], ","), controller) {
			dir := filepath.Join(root, f[2])
			if _, err := os.Stat(filepath.Join(dir, "tasks")); err == nil {
				return dir, nil
			}
		}
	}
	return root, nil
}

func put(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Version is "v1" or "v2".
func (c *Owner) Version() string { return c.version }

// Group makes the group of one command, of so many bytes and processes; 0 is no bound. A nil receiver has no groups and
// returns nil.
func (c *Owner) Group(memory, procs int64) (*Group, error) {
	if c == nil {
		return nil, nil
	}
	g := &Group{of: c, fd: -1}
	name := strconv.FormatInt(c.next.Add(1), 10)
	for _, d := range c.dirs {
		dir := filepath.Join(d, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(err, g.Close())
		}
		g.dirs = append(g.dirs, dir)
	}
	if err := g.Limit(memory, procs); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	if c.version == "v2" {
		fd, err := unix.Open(g.dirs[0], unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_PATH, 0)
		if err != nil {
			return nil, errors.Join(err, g.Close())
		}
		g.fd = fd
	}
	return g, nil
}

// Limit bounds the group to so many bytes and processes; 0 is no bound. The error wraps unix.EBUSY where version 1 finds
// more memory in use than that; version 2 ends processes then.
func (g *Group) Limit(memory, procs int64) error {
	if err := put(g.dirs[0], "pids.max", orMax(procs, "max")); err != nil {
		return err
	}
	dir := g.dirs[len(g.dirs)-1]
	if g.of.version == "v2" {
		return errors.Join(put(dir, "memory.max", orMax(memory, "max")), g.optional("memory.swap.max", "0"))
	}
	// The bound with swap may never be the smaller one: which of the two goes first depends on the direction.
	value := orMax(memory, "-1")
	err := put(dir, "memory.limit_in_bytes", value)
	if swap := g.optional("memory.memsw.limit_in_bytes", value); swap != nil || err == nil {
		return swap
	}
	return put(dir, "memory.limit_in_bytes", value)
}

func orMax(n int64, none string) string {
	if n <= 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

// optional sets what a kernel without swap accounting does not have.
func (g *Group) optional(file, value string) error {
	err := put(g.dirs[len(g.dirs)-1], file, value)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// enter moves the calling thread into a version 1 group, so that what it starts is born there; leave moves it back.
// "0" means the caller itself, the one form that takes no global lock.
func (g *Group) enter() error { return g.move(g.dirs) }
func (g *Group) leave() error { return g.move(g.of.homes) }

func (g *Group) move(dirs []string) error {
	for _, d := range dirs {
		if err := put(d, "tasks", "0"); err != nil {
			return err
		}
	}
	return nil
}

// Kills counts the processes of the group that the kernel killed for its memory.
func (g *Group) Kills() int64 {
	if g == nil {
		return 0
	}
	file := "memory.oom_control"
	if g.of.version == "v2" {
		file = "memory.events"
	}
	if len(g.dirs) == 0 {
		return 0
	}
	b, err := os.ReadFile(filepath.Join(g.dirs[len(g.dirs)-1], file))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if text, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			n, _ := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64) // the kernel writes numbers
			return n
		}
	}
	return 0
}

// Kill kills every process of the group, those outside the command's process group too.
func (g *Group) Kill() {
	if g == nil {
		return
	}
	killIn(g.dirs[0])
}

func killIn(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be gone already
		}
	}
}

// Close removes the group; it succeeds once no process is left in it, which makes it the proof of that.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	if g.fd >= 0 {
		unix.Close(g.fd)
		g.fd = -1
	}
	for len(g.dirs) > 0 {
		if err := removeCgroup(g.dirs[0]); err != nil {
			return err
		}
		g.dirs = g.dirs[1:]
	}
	return nil
}

// removeCgroup waits for the last dying process to leave; one that does not within 10 s is reported.
func removeCgroup(dir string) error {
	wait := 100 * time.Microsecond
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return &os.PathError{Op: "remove control group", Path: dir, Err: err}
		}
		killIn(dir)
		time.Sleep(wait)
		wait = min(2*wait, 20*time.Millisecond)
	}
}

// Close removes the owner's directories. A nil receiver has none.
func (c *Owner) Close() error {
	if c == nil {
		return nil
	}
	var errs []error
	for _, d := range c.dirs {
		errs = append(errs, removeCgroup(d))
	}
	return errors.Join(errs...)
}

// Sweep kills and removes what a dead owner left in the control groups. What cannot be removed does no harm but
// for its name, so this reports nothing.
func Sweep(root, owner string) {
	places, _ := roots(root)
	for _, r := range places {
		dir := filepath.Join(r, owner)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				_ = removeCgroup(filepath.Join(dir, e.Name()))
			}
		}
		_ = removeCgroup(dir)
	}
}

// SweepEmpty removes empty control groups of dead owners whose folder is gone, so that no sweep of a folder finds
// them. It kills nothing: an owner that looks dead may live in another process namespace.
func SweepEmpty(root string, dead func(name string) bool) {
	places, _ := roots(root)
	for _, r := range places {
		dirs, err := filepath.Glob(filepath.Join(r, "*"))
		if err != nil {
			continue // the pattern is ours; a root with a bracket in its name is left alone
		}
		for _, dir := range dirs {
			if !dead(filepath.Base(dir)) {
				continue
			}
			children, _ := filepath.Glob(filepath.Join(dir, "[0-9]*"))
			for _, c := range append(children, dir) {
				_ = unix.Rmdir(c) // not empty: not ours to remove
			}
		}
	}
}

package local

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/milepost-rl/milepost/env/driver"
)

const (
	workspacePath = "/workspace"
	insideID      = 1000 // user and group inside
	statusFD      = 3    // bubblewrap writes what happened
	blockFD       = 4    // it waits here before it starts the command
)

// systemArgs is the part of the argument list that every command shares.
func (d *Driver) systemArgs(nestedUsers bool) []string {
	a := []string{"--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL",
		"--uid", strconv.Itoa(insideID), "--gid", strconv.Itoa(insideID), "--hostname", "sandbox"}
	if !nestedUsers {
		a = append(a, "--disable-userns")
	}
	a = append(a, "--ro-bind", "/usr", "/usr")
	for _, p := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		if target, err := os.Readlink(p); err == nil {
			a = append(a, "--symlink", target, p)
		} else if _, err := os.Stat(p); err == nil {
			a = append(a, "--ro-bind", p, p)
		}
	}
	a = append(a, "--ro-bind", filepath.Join(d.home, "etc"), "/etc")
	size := strconv.FormatInt(d.cfg.TmpSize, 10)
	// Read-only, or a command that is root outside could write kernel settings (/proc/sys/kernel/core_pattern is a way
	// out): the kernel asks there for the user alone, not for a capability.
	a = append(a, "--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm",
		"--remount-ro", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/tmp")
	for _, p := range slices.Concat(d.python.prefixes, d.cfg.ReadOnly) { // behind /tmp, which may hold them
		a = append(a, "--ro-bind", p, p)
	}
	return a
}

// bwrapArgs is the whole argument list for one command.
func (s *sandbox) bwrapArgs(cmd *driver.Command) []string {
	a := slices.Clone(s.d.system)
	if s.spec.Network {
		a = append(a, "--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf")
	}
	a = append(a, "--bind", s.ws.path(), workspacePath)
	for _, m := range s.spec.Mounts {
		how := "--ro-bind"
		if m.Writable {
			how = "--bind"
		}
		a = append(a, how, m.Host, m.Path)
	}
	a = append(a, "--remount-ro", "/", "--chdir", path.Join(workspacePath, cmd.Dir))
	vars := s.environment(cmd, "/tmp")
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		a = append(a, "--setenv", k, vars[k])
	}
	a = append(a, "--json-status-fd", strconv.Itoa(statusFD), "--block-fd", strconv.Itoa(blockFD), "--")
	return append(a, cmd.Argv...)
}

// environment is all that a command finds in its environment.
func (s *sandbox) environment(cmd *driver.Command, home string) map[string]string {
	vars := map[string]string{
		"PATH": s.d.python.path(), "HOME": home, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
	}
	maps.Copy(vars, cmd.Env)
	return vars
}

package apptainer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/milepost-rl/milepost"
)

// Config says how sandboxes run.
type Config struct {
	Program    string        `yaml:"program"`  // the command; "" looks apptainer, then singularity, up in PATH
	Root       string        `yaml:"root"`     // absolute folder of the sandboxes' files, on a disk of this machine or in memory; "" = in the run folder, filled in by a run
	Image      string        `yaml:"image"`    // image of tasks that name none or "local:...": a SIF file or an unpacked folder (absolute path), docker://NAME, or NAME, which means docker://NAME
	Images     string        `yaml:"images"`   // absolute folder in which pulled images are kept as SIF, for all runs of a site; "" = images below root
	Pull       string        `yaml:"pull"`     // missing: pull an image that images does not hold; never: that is an error
	User       string        `yaml:"user"`     // UID:GID of commands where Milepost runs as root, which a sandbox never is; any other user is itself
	TmpSize    int64         `yaml:"tmp_size"` // bytes of /tmp and of /dev/shm at most, where they can be bounded; 0 is 256 MiB
	CgroupRoot string        `yaml:"cgroups"`  // where control groups are mounted; "" is /sys/fs/cgroup, "none" uses none
	Agent      string        `yaml:"agent"`    // statically linked program to run as process 1; "" = this one
	Lease      time.Duration `yaml:"lease"`    // a sandbox ends when its owner was silent for so long
}

const defaultTmpSize = 256 << 20

// Pull policies.
const (
	PullMissing = "missing"
	PullNever   = "never"
)

// Default returns the configuration where nothing is said. It names no image.
func Default() Config { return Config{Pull: PullMissing, User: "65534:65534", Lease: time.Minute} }

// Validate names the field that is wrong and what is allowed; root may still be empty. The error is of KindInvalid.
func (c *Config) Validate() error {
	bad := func(format string, args ...any) error {
		return milepost.E("env/apptainer: configure", milepost.KindInvalid, format, args...)
	}
	for name, p := range map[string]string{"root": c.Root, "images": c.Images, "agent": c.Agent, "cgroups": c.CgroupRoot} {
		if p != "" && !filepath.IsAbs(p) && (name != "cgroups" || p != "none") {
			return bad("%s %q must be an absolute path", name, p)
		}
	}
	if c.Image != "" {
		if _, err := parseImage(c.Image); err != nil {
			return bad("image: %w", err)
		}
	}
	switch {
	case c.Pull != PullMissing && c.Pull != PullNever:
		return bad("pull is %q; allowed: missing, never", c.Pull)
	case c.TmpSize < 0:
		return bad("tmp_size is %d; it must be positive, or 0 for %d", c.TmpSize, defaultTmpSize)
	case c.Lease < 5*time.Second:
		return bad("lease is %s; it must be at least 5s", c.Lease)
	}
	if uid, _, err := c.user(); err != nil {
		return bad("user: %w", err)
	} else if uid == 0 {
		return bad("user %q is root, who may write the host's kernel settings from inside; name another", c.User)
	}
	return nil
}

// user splits User.
func (c *Config) user() (uid, gid int, err error) {
	u, g, ok := strings.Cut(c.User, ":")
	uid, err = strconv.Atoi(u)
	if err == nil && ok {
		gid, err = strconv.Atoi(g)
	}
	if err != nil || !ok || uid < 0 || gid < 0 {
		return 0, 0, fmt.Errorf("%q must be UID:GID, as numbers", c.User)
	}
	return uid, gid, nil
}

// findProgram returns the path of the command, or an error that says how to get it.
func (c *Config) findProgram() (string, error) {
	names := []string{"apptainer", "singularity"}
	if c.Program != "" {
		names = []string{c.Program}
	}
	for _, name := range names {
		if p, err := exec.LookPath(name); err == nil {
			return filepath.Abs(p)
		}
	}
	return "", milepost.E("env/apptainer: configure", milepost.KindUnavailable, "%s was not found; on a cluster it may need `module load apptainer`, "+
		"elsewhere install the package apptainer, or name the program in sandbox.apptainer.program", strings.Join(names, " and "))
}

// commandUser is whom commands run as.
func (d *Driver) commandUser() int {
	if asRoot() {
		return d.uid
	}
	return os.Getuid()
}

// threadsOf counts the threads that a user has on this machine.
func threadsOf(uid int) (n int64) {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // a pattern that is one
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || int(info.Sys().(*syscall.Stat_t).Uid) != uid {
			continue
		}
		tasks, _ := os.ReadDir(filepath.Join(dir, "task")) // it may be gone
		n += int64(len(tasks))
	}
	return n
}

// asRoot reports whether containers are made by root, and commands run as User.
func asRoot() bool { return os.Getuid() == 0 }

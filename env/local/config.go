package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/milepost-rl/milepost"
)

// WorkspaceMode says how a workspace is made from its base.
type WorkspaceMode string

// The modes. Overlay makes a sandbox in a millisecond and finds changes at the cost of the change, and needs the right
// to mount. Copy copies the base and finds changes by size, times and inode of every file.
const (
	WorkspaceAuto    WorkspaceMode = "auto" // overlay where it can be mounted, else copy; Driver.Report says which and why
	WorkspaceOverlay WorkspaceMode = "overlay"
	WorkspaceCopy    WorkspaceMode = "copy"
)

// Config says where and how sandboxes run.
type Config struct {
	Root       string        `yaml:"root"`       // absolute folder of the workspaces, made if missing, not itself on an overlay; "" = in the run folder, filled in by a run
	Workspace  WorkspaceMode `yaml:"workspace"`  // overlay, copy, or auto (overlay where it can be mounted); "" is auto
	Unconfined bool          `yaml:"unconfined"` // run commands without bubblewrap: no protection whatever
	Python     string        `yaml:"python"`     // the interpreter commands find as python3; "" looks it up in PATH
	ReadOnly   []string      `yaml:"read_only"`  // further host paths shown read-only at their own place
	TmpSize    int64         `yaml:"tmp_size"`   // bytes of the private /tmp and of /dev/shm; 0 is 256 MiB
	CgroupRoot string        `yaml:"cgroups"`    // where control groups are mounted; "" is /sys/fs/cgroup, "none" uses none
	Bwrap      string        `yaml:"bwrap"`      // the program; "" looks bwrap up in PATH
}

const defaultTmpSize = 256 << 20

// Validate names the field that is wrong and what is allowed; root may still be empty. The error is of KindInvalid.
func (c *Config) Validate() error {
	const op = "env/local: configure"
	if c.Root != "" && !filepath.IsAbs(c.Root) {
		return milepost.E(op, milepost.KindInvalid, "root %q must be an absolute path", c.Root)
	}
	switch c.Workspace {
	case "", WorkspaceAuto, WorkspaceOverlay, WorkspaceCopy:
	default:
		return milepost.E(op, milepost.KindInvalid, "workspace %q is not one of auto, overlay, copy", c.Workspace)
	}
	for _, p := range c.ReadOnly {
		if !filepath.IsAbs(p) {
			return milepost.E(op, milepost.KindInvalid, "read_only %q must be an absolute path", p)
		}
	}
	if c.TmpSize < 0 {
		return milepost.E(op, milepost.KindInvalid, "tmp_size %d must be positive, or 0 for %d", c.TmpSize, defaultTmpSize)
	}
	return nil
}

func (c *Config) normalise() error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.Root == "" {
		return milepost.E("env/local: configure", milepost.KindInvalid, "root is empty; it must be an absolute path")
	}
	c.Root = filepath.Clean(c.Root)
	if c.Workspace == "" {
		c.Workspace = WorkspaceAuto
	}
	if c.TmpSize == 0 {
		c.TmpSize = defaultTmpSize
	}
	if c.CgroupRoot == "" {
		c.CgroupRoot = "/sys/fs/cgroup"
	}
	return nil
}

// findBwrap returns the path of bubblewrap, or an error that says how to get it.
func (c *Config) findBwrap() (string, error) {
	name := c.Bwrap
	if name == "" {
		name = "bwrap"
	}
	p, err := exec.LookPath(name)
	if err != nil {
		return "", milepost.E("env/local: configure", milepost.KindUnavailable,
			"%s was not found: install the package bubblewrap (apt-get install bubblewrap, dnf install bubblewrap), "+
				"or allow commands to run without any protection with unconfined: true (--unconfined)", name)
	}
	return p, nil
}

// interpreter is where python3 lives.
type interpreter struct {
	bin      string   // directory to put first in PATH; "" where python3 is the system's
	prefixes []string // directories to show read-only
}

// findPython asks the interpreter for its prefixes, which resolves shims and virtual environments. A machine without
// python3 is fine unless one was named.
func (c *Config) findPython(ctx context.Context) (interpreter, error) {
	name := c.Python
	if name == "" {
		if _, err := exec.LookPath("python3"); err != nil {
			return interpreter{}, nil
		}
		name = "python3"
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, "-I", "-c",
		"import sys; print(sys.prefix); print(sys.base_prefix); print(sys.executable)").Output()
	if err != nil {
		return interpreter{}, milepost.E("env/local: configure", milepost.KindInvalid,
			"python %q does not run: %v; name a Python 3 interpreter", name, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 3 {
		return interpreter{}, milepost.E("env/local: configure", milepost.KindInvalid, "python %q did not tell its prefix: %q", name, out)
	}
	var in interpreter
	for _, p := range lines[:2] {
		if !under(p, "/usr") && (len(in.prefixes) == 0 || in.prefixes[0] != p) {
			in.prefixes = append(in.prefixes, p)
		}
	}
	if dir := filepath.Dir(lines[2]); dir != "/usr/bin" {
		in.bin = dir
	}
	return in, nil
}

// under reports whether path p is dir or lies below it.
func under(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// path is the PATH that commands get.
func (in interpreter) path() string {
	const system = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
	if in.bin == "" {
		return system
	}
	return in.bin + ":" + system
}

// etcFiles are what commands see of the host's /etc: what the loader, name look-ups and alternatives need.
var etcFiles = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "mime.types", "protocols", "services",
	"ssl/certs", "ca-certificates",
}

// writeEtc makes the /etc of sandboxes: a copy of etcFiles and a few files of its own. One directory shown whole costs
// one mount a command, eighteen single files would cost eighteen.
func writeEtc(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "ssl"), 0o755); err != nil {
		return err
	}
	for _, name := range etcFiles {
		src := filepath.Join("/etc", name)
		if _, err := os.Lstat(src); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := copyTree(context.Background(), src, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"passwd":        fmt.Sprintf("root:x:0:0:root:/:/bin/sh\nagent:x:%d:%d:agent:/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", insideID, insideID),
		"group":         fmt.Sprintf("root:x:0:\nagent:x:%d:\nnogroup:x:65534:\n", insideID),
		"hosts":         "127.0.0.1 localhost sandbox\n::1 localhost\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
		"resolv.conf":   "", // the host's is laid over it where the Spec has the network
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

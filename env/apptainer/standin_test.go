package apptainer

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The stand-in takes the part of the program where it is not installed: it understands exactly the command lines that this
// driver makes, refuses every other, and makes a container as they say, with the namespaces, the read-only image, the mounts
// and the user. So the driver, the agent and the limits are really run; what Apptainer itself does is not.
const standInEnv = "MILEPOST_TEST_STANDIN"

// order is what the command line of an exec says.
type order struct {
	binds     [][3]string // host, path, "ro" or ""
	net       bool        // a network of its own
	uid, gid  string
	image     string
	argv      []string
	contained int // of the options that must be there
}

var flags = map[string]func(*order){
	"--containall": func(o *order) { o.contained++ }, "--no-home": func(o *order) { o.contained++ }, "--no-init": func(o *order) { o.contained++ },
	"--no-privs": func(o *order) { o.contained++ }, "--no-eval": func(o *order) { o.contained++ }, "--net": func(o *order) { o.net = true },
}

// valued are the options with a value; they report whether it is understood.
var valued = map[string]func(*order, string) bool{
	"--hostname": func(_ *order, v string) bool { return v == "sandbox" },
	"--network":  func(o *order, v string) bool { return o.net && v == "none" },
	"--no-mount": func(o *order, v string) bool { o.contained++; return v == "home,tmp,cwd,hostfs,sys,bind-paths" },
	"--security": func(o *order, v string) bool {
		what, id, _ := strings.Cut(v, ":")
		switch what {
		case "uid":
			o.uid = id
		case "gid":
			o.gid = id
		default:
			return false
		}
		return true
	},
	"--mount": func(o *order, v string) bool {
		fields, err := csv.NewReader(strings.NewReader(v)).Read()
		if err != nil || len(fields) < 3 || fields[0] != "type=bind" {
			return false
		}
		b := [3]string{strings.TrimPrefix(fields[1], "source="), strings.TrimPrefix(fields[2], "destination=")}
		if len(fields) == 4 {
			b[2] = fields[3]
		}
		o.binds = append(o.binds, b)
		return true
	},
}

func parseOrder(args []string) (*order, error) {
	o := &order{}
	if len(args) < 2 || args[0] != "--quiet" || args[1] != "exec" {
		return nil, fmt.Errorf("unknown command %q", args)
	}
	for args = args[2:]; len(args) > 0 && strings.HasPrefix(args[0], "--"); {
		if f := flags[args[0]]; f != nil {
			f(o)
			args = args[1:]
		} else if f := valued[args[0]]; f != nil && len(args) > 1 && f(o, args[1]) {
			args = args[2:]
		} else {
			return nil, fmt.Errorf("unknown flag: %q", args)
		}
	}
	if len(args) < 2 || o.contained != 6 {
		return nil, fmt.Errorf("an image and a command are needed, and full containment: %q", args)
	}
	o.image, o.argv = args[0], args[1:]
	return o, nil
}

// standIn is main where the test binary is run as the program.
func standIn(role string) int {
	err := errors.New("unknown role")
	switch role {
	case "program":
		if len(os.Args) == 2 && os.Args[1] == "--version" {
			fmt.Println("stand-in version 1")
			return 0
		}
		var code int
		if code, err = standInProgram(); err == nil {
			return code
		}
	case "inside":
		err = standInInside()
	}
	fmt.Fprintln(os.Stderr, "FATAL:  ", err)
	return 255
}

// standInProgram waits for process 1 of the namespaces.
func standInProgram() (int, error) {
	o, err := parseOrder(os.Args[1:])
	if err != nil {
		return 0, err
	}
	if _, err := os.Stat(o.image); err != nil {
		return 0, fmt.Errorf("could not open image %s: %w", o.image, err)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = []string{standInEnv + "=inside", "PATH=/usr/local/bin:/usr/bin:/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL}
	if o.net {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		return 1, nil
	} else if err != nil {
		return 0, err
	}
	return 0, nil
}

// standInInside makes the root of the container and becomes its process 1.
func standInInside() error {
	o, err := parseOrder(os.Args[1:])
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private: %w", err)
	}
	session := "/mnt" // every namespace has its own there
	if err := unix.Mount("session", session, "tmpfs", 0, "size=16m"); err != nil {
		return fmt.Errorf("session: %w", err)
	}
	root := filepath.Join(session, "root")
	for _, d := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(session, d), 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", o.image, session, session)
	if err := unix.Mount("overlay", root, "overlay", 0, layers); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	if err := mountInside(root, o); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("sandbox")); err != nil {
		return err
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot: %w", err)
	}
	if err := errors.Join(unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/")); err != nil {
		return err
	}
	return become(o)
}

func mountInside(root string, o *order) error {
	for _, m := range []struct{ path, fs, opts string }{{"/proc", "proc", ""}, {"/dev", "tmpfs", "mode=755"}} {
		p := filepath.Join(root, m.path)
		if err := os.MkdirAll(p, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, p, m.fs, unix.MS_NOSUID, m.opts); err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
	}
	for _, name := range []string{"null", "zero", "random", "urandom", "full", "tty"} {
		o.binds = append(o.binds, [3]string{"/dev/" + name, "/dev/" + name})
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, filepath.Join(root, "dev", name)); err != nil {
			return err
		}
	}
	for _, b := range o.binds {
		p := filepath.Join(root, b[1])
		info, err := os.Stat(b[0])
		if err != nil {
			return err
		}
		if info.IsDir() {
			err = os.MkdirAll(p, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(p), 0o755); err == nil {
			err = os.WriteFile(p, nil, 0o644)
		}
		if err != nil {
			return err
		}
		if err := unix.Mount(b[0], p, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", b[1], err)
		}
		flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_NOSUID)
		if b[2] == "ro" {
			flags |= unix.MS_RDONLY
		}
		if !strings.HasPrefix(b[1], "/dev/") {
			flags |= unix.MS_NODEV
		}
		if err := unix.Mount("", p, "", flags, ""); err != nil {
			return fmt.Errorf("remount %s: %w", b[1], err)
		}
	}
	return unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID, "")
}

// become gives every right up and runs the command as process 1.
func become(o *order) error {
	var uid, gid int
	if _, err := fmt.Sscan(o.uid+" "+o.gid, &uid, &gid); err != nil {
		return fmt.Errorf("the user %q %q: %w", o.uid, o.gid, err)
	}
	for c := range 64 { // of the calling thread, which is the one that goes on
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			break
		}
	}
	if err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), syscall.Setgroups(nil), syscall.Setgid(gid), syscall.Setuid(uid)); err != nil {
		return err
	}
	return syscall.Exec(o.argv[0], o.argv, []string{"PATH=/usr/local/bin:/usr/bin:/bin"})
}

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost/env/docker/wire"
)

// The descriptors of a supervisor besides the command's standard ones.
const (
	controlFD = 3 // the order comes in, as JSON; its end means: kill the command
	reportFD  = 4 // reports go out, a line of JSON each
)

// order is what a supervisor is to run.
type order struct {
	Command wire.Command
	Dir     string // absolute
}

// report is a line of a supervisor: that the command runs, then how it ended. A command that could not be run has only
// the second, with the reason.
type report struct {
	Started bool   `json:",omitempty"`
	Exit    int    `json:",omitempty"`
	Text    string `json:",omitempty"`
}

// superviseMain runs one command and ends with the last process of it.
func superviseMain() (int, error) {
	runtime.GOMAXPROCS(1)
	unix.CloseOnExec(controlFD)
	unix.CloseOnExec(reportFD)
	control, out := os.NewFile(controlFD, "control"), json.NewEncoder(os.NewFile(reportFD, "report"))
	if err := offerToOOM(); err != nil {
		return 1, err
	}
	if err := errors.Join(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)); err != nil {
		return 1, fmt.Errorf("prctl: %w", err)
	}
	in := json.NewDecoder(control)
	var o order
	if err := in.Decode(&o); err != nil {
		return 1, fmt.Errorf("the order: %w", err)
	}
	pid, code, err := launch(&o)
	if err != nil {
		return 0, out.Encode(report{Exit: code, Text: err.Error()})
	}
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} { // the command's alone from here on
		if err := f.Close(); err != nil {
			return 1, err
		}
	}
	if err := out.Encode(report{Started: true}); err != nil {
		return 1, err
	}
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, control)
		for !over.Load() {
			killTree(os.Getpid(), nil)
			time.Sleep(time.Millisecond)
		}
	}()
	code = await(pid)
	for !empty() {
		killTree(os.Getpid(), nil)
	}
	over.Store(true)
	return 0, out.Encode(report{Exit: code})
}

// launch starts the command with its limits. Where it cannot be run, code is what a shell would exit with.
func launch(o *order) (pid, code int, err error) {
	argv, env := texts(o.Command.Argv), texts(o.Command.Env)
	for _, kv := range env {
		if name, value, _ := strings.Cut(kv, "="); name == "PATH" {
			if err := os.Setenv("PATH", value); err != nil {
				return 0, 126, err
			}
		}
	}
	if err := os.Chdir(o.Dir); err != nil {
		return 0, 126, err
	}
	program, err := exec.LookPath(argv[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		if errors.Is(err, os.ErrPermission) {
			return 0, 126, err
		}
		return 0, 127, err
	}
	if err := setLimits(&o.Command); err != nil {
		return 0, 126, err
	}
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}}
	if o.Command.Memory > 0 || o.Command.Procs > 0 {
		pid, err = startBounded(program, argv, attr, &o.Command)
	} else {
		pid, err = syscall.ForkExec(program, argv, attr)
	}
	if err != nil {
		return 0, 126, fmt.Errorf("%s: %w", argv[0], err)
	}
	return pid, 0, nil
}

// startBounded starts a command with the limits that this process itself could not live under. The command is held, as a
// debugger holds it, at its first instruction until it has them.
func startBounded(program string, argv []string, attr *syscall.ProcAttr, c *wire.Command) (pid int, err error) {
	runtime.LockOSThread() // a debugger is a thread
	defer runtime.UnlockOSThread()
	attr.Sys.Ptrace = true
	if pid, err = syscall.ForkExec(program, argv, attr); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			await(pid)
		}
	}()
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || !ws.Stopped() {
		return 0, fmt.Errorf("hold: %#x %w", ws, errors.Join(err, syscall.ESRCH))
	}
	for which, v := range map[int]int64{unix.RLIMIT_AS: c.Memory, unix.RLIMIT_NPROC: c.Procs} {
		if v <= 0 {
			continue
		}
		if err := unix.Prlimit(pid, which, &unix.Rlimit{Cur: uint64(v), Max: uint64(v)}, nil); err != nil {
			return 0, fmt.Errorf("rlimit %d: %w", which, err)
		}
	}
	return pid, syscall.PtraceDetach(pid)
}

// setLimits bounds this process, and with it the command, by what the kernel limits per process.
func setLimits(c *wire.Command) error {
	list := map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: 4096}
	if c.FileSize > 0 {
		list[unix.RLIMIT_FSIZE] = uint64(c.FileSize)
	}
	if c.CPU > 0 {
		list[unix.RLIMIT_CPU] = uint64((c.CPU + time.Second - 1) / time.Second)
	}
	for which, v := range list {
		var old unix.Rlimit
		if err := unix.Getrlimit(which, &old); err != nil {
			return fmt.Errorf("rlimit %d: %w", which, err)
		}
		v = min(v, old.Max)
		if err := syscall.Setrlimit(which, &syscall.Rlimit{Cur: v, Max: v}); err != nil {
			return fmt.Errorf("rlimit %d: %w", which, err)
		}
	}
	return nil
}

// await reaps until the command itself has ended and returns its exit code, 128+n where signal n ended it.
func await(command int) int {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		if errors.Is(err, unix.EINTR) || err == nil && pid != command {
			continue
		}
		if err == nil && ws.Exited() {
			return ws.ExitStatus()
		}
		return 128 + int(ws.Signal())
	}
}

// empty reaps what is dead and reports whether no child is left.
func empty() bool {
	for {
		pid, err := syscall.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) || err == nil && pid > 0 {
			continue
		}
		return err != nil
	}
}

func texts(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

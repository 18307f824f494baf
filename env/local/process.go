package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost/env/cgroup"
	"github.com/milepost-rl/milepost/env/driver"
)

// running is one command from its start to the proof that nothing of it is left.
//
// Invariants: reap alone waits for the process, and closes done as its last act; result and err are written before
// that and never after. mu guards what killing touches (gone, timedOut, the group, init): after gone is set no process
// is signalled any more, since its id may be another's.
type running struct {
	s      *sandbox
	cmd    *exec.Cmd
	group  *cgroup.Group // nil where there are no control groups
	status *status       // nil where unconfined
	block  *os.File      // bubblewrap waits for a byte here
	stdin  *os.File
	output *os.File // the reading end of standard output; read by stdout unless it is the caller's
	stdout *capture
	stderr *capture
	begin  time.Time
	timer  *time.Timer

	mu       sync.Mutex
	gone     bool
	timedOut bool
	init     int // pidfd of process 1 inside; -1 where there is none

	done   chan struct{}
	result *driver.Result
	err    error
}

func (r *running) Stdin() io.WriteCloser { return r.stdin }
func (r *running) Stdout() io.Reader     { return closing{r.output} }

func (r *running) Wait() (*driver.Result, error) {
	<-r.done
	return r.result, r.err
}

// launch starts a command. long leaves its standard input and output to the caller.
func (s *sandbox) launch(ctx context.Context, cmd *driver.Command, long bool) (*running, error) {
	r := &running{s: s, cmd: &exec.Cmd{}, init: -1, done: make(chan struct{})}
	var p pipes
	err := r.prepare(cmd, &p)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		r.begin = time.Now()
		err = s.d.spawn.Start(r.cmd, r.group)
	}
	closeAll(p.child)
	if err != nil {
		closeAll(p.ours)
		return nil, errors.Join(fmt.Errorf("start: %w", err), r.group.Close())
	}
	r.listen(cmd, long, p.ours)
	if cmd.Limits.Wall > 0 {
		r.timer = time.AfterFunc(cmd.Limits.Wall, func() { r.kill(true) })
	}
	err = r.confine(cmd.Limits)
	s.running.Add(r)
	go r.reap()
	if err != nil {
		r.Kill()
		<-r.done
		return nil, errors.Join(err, r.err)
	}
	return r, nil
}

// prepare fills r.cmd and r.group. The pipes are, in order: stdin, stdout, stderr, status, block.
func (r *running) prepare(cmd *driver.Command, p *pipes) error {
	s, c := r.s, r.cmd
	fds := make([]*os.File, 5)
	for i := range fds {
		var err error
		if fds[i], err = p.open(i == 0 || i == 4); err != nil {
			return err
		}
	}
	c.Stdin, c.Stdout, c.Stderr = fds[0], fds[1], fds[2]
	c.Env = []string{}
	if s.d.cfg.Unconfined {
		// The shell looks the program up and answers 127 where there is none, as bubblewrap's case is told.
		c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", `exec "$@"`, "sh"}, cmd.Argv...)
		for k, v := range s.environment(cmd, s.ws.scratch()) {
			c.Env = append(c.Env, k+"="+v)
		}
		c.Dir = filepath.Join(s.ws.path(), cmd.Dir)
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	} else {
		c.Path, c.Args = s.d.bwrap, append([]string{"bwrap"}, s.bwrapArgs(cmd)...)
		c.ExtraFiles = fds[3:]
		// A process group of its own: a Ctrl-C at the terminal is for Milepost, which ends its commands itself.
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	var err error
	r.group, err = s.d.openGroup(cmd.Limits)
	return err
}

// bwrapProcs is how many processes bubblewrap itself has in the group: monitor, init, and one for the second user namespace.
const bwrapProcs = 3

// openGroup makes the group of one command; nil where there are none.
func (d *Driver) openGroup(l driver.Limits) (*cgroup.Group, error) {
	procs := int64(l.Procs)
	if procs > 0 {
		procs += bwrapProcs
	}
	return d.cgroups.Group(l.Memory, procs)
}

// listen takes over our ends of the pipes.
func (r *running) listen(cmd *driver.Command, long bool, ours []*os.File) {
	r.stdin, r.output, r.block = ours[0], ours[1], ours[4]
	r.stderr = newCapture(ours[2], cmd.Limits.Output)
	if !long {
		r.stdout = newCapture(ours[1], cmd.Limits.Output)
		go func() {
			_, _ = r.stdin.Write(cmd.Stdin) // a program need not read its input
			_ = r.stdin.Close()
		}()
	}
	if r.s.d.cfg.Unconfined {
		_ = ours[3].Close()
	} else {
		r.status = readStatus(ours[3])
	}
}

// confine sets the rlimits of process 1 while it waits, then lets it go on. An error here may only be the echo of
// bubblewrap's own failure, which reap finds out.
func (r *running) confine(l driver.Limits) error {
	defer r.block.Close()
	if r.status == nil {
		return setRlimits(r.cmd.Process.Pid, l, r.group != nil)
	}
	pid, ok := <-r.status.child
	if !ok {
		return errors.New("bubblewrap ended before it started the command")
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("process 1 of the sandbox: %w", err)
	}
	r.mu.Lock()
	r.init = fd
	r.mu.Unlock()
	if err := setRlimits(pid, l, r.group != nil); err != nil {
		return err
	}
	_, err = r.block.Write([]byte{1})
	return err
}

// Kill ends the whole process tree.
func (r *running) Kill() { r.kill(false) }

func (r *running) kill(timeout bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return
	}
	r.timedOut = r.timedOut || timeout
	r.killLocked()
}

// killLocked kills process 1, with which its whole namespace dies, and everything the control group knows of.
func (r *running) killLocked() {
	if r.init >= 0 {
		_ = unix.PidfdSendSignal(r.init, unix.SIGKILL, nil, 0) // it may be gone already
	}
	_ = r.cmd.Process.Kill()
	if r.status == nil {
		_ = unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL) // not reaped yet, so the group's number is still its own
	}
	r.group.Kill()
}

// reap waits for the end of the command and for the proof that nothing of it is left.
func (r *running) reap() {
	if r.status == nil {
		r.awaitUnconfined()
	}
	waitErr := r.cmd.Wait()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Lock()
	err := r.awaitEmpty()
	oom := r.group.Kills() > 0
	err = errors.Join(err, r.group.Close())
	r.gone = true
	r.mu.Unlock()

	r.stdout.wait(grace)
	r.stderr.wait(grace)
	_ = r.stdin.Close() // the writer of Exec may have closed it
	if r.status != nil {
		<-r.status.done
	}
	r.result, r.err = r.conclude(waitErr, oom)
	r.err = errors.Join(r.err, err)
	r.s.running.Remove(r)
	r.s.d.spawn.Release()
	close(r.done)
}

// awaitUnconfined waits for the program without reaping it and kills what it left in its session.
func (r *running) awaitUnconfined() {
	for {
		err := unix.Waitid(unix.P_PID, r.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	r.mu.Lock()
	r.killLocked()
	r.mu.Unlock()
}

// awaitEmpty returns once process 1 of the sandbox is dead; the kernel lets it die only after every other process of
// its namespace. bubblewrap has ended, and with it (--die-with-parent) process 1 is about to.
func (r *running) awaitEmpty() error {
	if r.init < 0 {
		return nil
	}
	defer func() {
		_ = unix.Close(r.init)
		r.init = -1
	}()
	_ = unix.PidfdSendSignal(r.init, unix.SIGKILL, nil, 0)
	fds := []unix.PollFd{{Fd: int32(r.init), Events: unix.POLLIN}}
	for deadline := time.Now().Add(10 * time.Second); ; {
		n, err := unix.Poll(fds, 1000)
		if n == 1 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for process 1 of the sandbox: %w", err)
		}
		if time.Now().After(deadline) {
			return errors.New("process 1 of the sandbox does not die")
		}
	}
}

// conclude makes the result out of what bubblewrap reported, or an error where the failure is bubblewrap's.
func (r *running) conclude(waitErr error, oom bool) (*driver.Result, error) {
	var exitErr *exec.ExitError
	if waitErr != nil && !errors.As(waitErr, &exitErr) {
		return nil, fmt.Errorf("wait: %w", waitErr)
	}
	res := &driver.Result{OutOfMemory: oom, Duration: time.Since(r.begin), Stderr: r.stderr.Data, StderrTruncated: r.stderr.Truncated}
	if r.stdout != nil {
		res.Stdout, res.StdoutTruncated = r.stdout.Data, r.stdout.Truncated
		if r.stdout.err != nil {
			return nil, fmt.Errorf("standard output: %w", r.stdout.err)
		}
	}
	if r.stderr.err != nil {
		return nil, fmt.Errorf("standard error: %w", r.stderr.err)
	}
	state := r.cmd.ProcessState
	switch ws := state.Sys().(syscall.WaitStatus); {
	case r.timedOut:
		res.TimedOut, res.ExitCode = true, 128+int(syscall.SIGKILL)
	case r.status != nil && r.status.ended:
		res.ExitCode = r.status.exit
	case r.status == nil && ws.Exited():
		res.ExitCode = ws.ExitStatus()
	case ws.Signaled(): // killed by us, or for its memory
		res.ExitCode = 128 + int(ws.Signal())
	case oom:
		res.ExitCode = 128 + int(syscall.SIGKILL)
	case bytes.HasPrefix(res.Stderr, []byte("bwrap: execvp ")):
		res.ExitCode = 127
	default:
		return nil, fmt.Errorf("bubblewrap (exit %d): %s", state.ExitCode(), bytes.TrimSpace(res.Stderr))
	}
	return res, nil
}

package apptainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/cgroup"
	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/guest"
)

// sandbox implements driver.Sandbox: one run of the program. Its files and commands are package guest's.
//
// Invariants: await alone waits for the program, and closes ended as its last act; before that, the process group's number
// is the program's own and may be signalled.
type sandbox struct {
	*guest.Sandbox
	d      *Driver
	places *places
	group  *cgroup.Group // nil where there are no control groups
	cmd    *exec.Cmd
	said   guest.Tail
	ended  chan struct{}
}

// What the program itself needs beside the agent: the starter, image drivers in user space.
const (
	programMemory = 128 << 20
	programProcs  = 32
)

// start makes a container and fills its workspace. On failure nothing is left.
func (d *Driver) start(ctx context.Context, spec *driver.Spec, image string, b guest.Base) (_ *sandbox, err error) {
	s := &sandbox{d: d, cmd: &exec.Cmd{}, ended: make(chan struct{})}
	defer func() {
		if err != nil {
			if closeErr := s.Close(); closeErr != nil {
				err = fmt.Errorf("%w; and the container is left: %w", err, closeErr)
			}
		}
	}()
	if s.places, err = d.makePlaces(filepath.Join(d.home, fmt.Sprintf("s%d", d.next.Add(1))), spec.Limits, b); err != nil {
		return nil, err
	}
	limits := guest.LimitsOf(spec.Limits, b)
	if s.group, err = d.cgroups.Group(withProgram(limits)); err != nil {
		return nil, err
	}
	conn, err := s.run(d.execArgs(spec, image, s.places))
	if err != nil {
		return nil, err
	}
	link, err := guest.NewLink(conn, d.cfg.Lease)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s.Sandbox = guest.New(s, link, b, limits, inside...)
	if s.group == nil {
		s.Bound(d.perProcess)
	}
	return s, s.Unpack(ctx)
}

// perProcess is what takes the place of a control group. The kernel counts the processes of a user, so those that are there
// already are added.
func (d *Driver) perProcess(l driver.Limits) (memory, procs int64) {
	if l.Procs > 0 {
		procs = int64(l.Procs) + agent.OverheadProcs + programProcs + threadsOf(d.commandUser())
	}
	return l.Memory, procs
}

// withProgram adds what the program itself needs.
func withProgram(l guest.Limits) (memory, procs int64) {
	if memory = l.Memory; memory > 0 {
		memory += programMemory
	}
	if procs = l.Procs; procs > 0 {
		procs += programProcs
	}
	return memory, procs
}

// stdio is the connection to process 1.
type stdio struct {
	io.ReadCloser
	in io.WriteCloser
}

func (c stdio) Write(b []byte) (int, error) { return c.in.Write(b) }
func (c stdio) Close() error                { return errors.Join(c.in.Close(), c.ReadCloser.Close()) }

// run starts the program in its control group.
func (s *sandbox) run(args []string) (io.ReadWriteCloser, error) {
	c := s.cmd
	c.Path, c.Args, c.Env, c.Dir = s.d.program, append([]string{s.d.program}, args...), hostEnv(), "/"
	// A process group of its own: a Ctrl-C at the terminal is for Milepost, which ends its sandboxes itself.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inR.Close(), inW.Close())
	}
	c.Stdin, c.Stdout, c.Stderr = inR, outW, &s.said
	c.WaitDelay = endTime // for what may hold standard error after the program's end
	err = s.d.spawn.Start(c, s.group)
	_, _ = inR.Close(), outW.Close() // the program has them
	if err != nil {
		_, _ = inW.Close(), outR.Close() // there is nothing to lose
		return nil, milepost.E("env/apptainer: start", milepost.KindUnavailable, "%w", err)
	}
	go s.await()
	return stdio{outR, inW}, nil
}

func (s *sandbox) await() {
	_ = s.cmd.Wait() // how it ended is the agent's to say, or what it said
	s.d.spawn.Release()
	close(s.ended)
}

// Gone implements guest.Host: a sandbox that ran out of memory as a whole is the task's doing.
func (s *sandbox) Gone() error {
	if s.group.Kills() > 0 {
		return milepost.E("env/apptainer", milepost.KindMemory, "the sandbox ran out of memory and ended")
	}
	return nil
}

// Said implements guest.Host.
func (s *sandbox) Said() string {
	select { // what a failing program says comes with its end
	case <-s.ended:
	case <-time.After(time.Second):
	}
	return s.said.String()
}

// Kills implements guest.Host: inside there is no control group to be seen.
func (s *sandbox) Kills() int64 { return s.group.Kills() }

// Limit implements guest.Host.
func (s *sandbox) Limit(_ context.Context, want guest.Limits, l driver.Limits) error {
	if s.group == nil {
		return nil // then the agent limits every process
	}
	err := s.group.Limit(withProgram(want))
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("the files in the sandbox take more than the %d bytes of memory that the command may use: %w", l.Memory, driver.ErrFull)
	}
	return err
}

// Close implements driver.Sandbox. Ending the connection ends process 1, and with it the container.
func (s *sandbox) Close() error {
	if s.Sandbox != nil {
		s.Closing()
		s.Ended()
	}
	if s.cmd.Process != nil {
		if err := s.end(); err != nil {
			return err
		}
	}
	if err := s.group.Close(); err != nil {
		return err
	}
	if s.places == nil {
		return nil
	}
	return s.places.close()
}

// end waits for the end of the program and kills what does not end by itself.
func (s *sandbox) end() error {
	if s.endedWithin(endTime) {
		return nil
	}
	_ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL) // not reaped yet, so the number is still its own
	s.group.Kill()
	if s.endedWithin(killTime) {
		return nil
	}
	return milepost.E("env/apptainer: close", milepost.KindUnavailable, "%s (process %d) does not end", s.d.program, s.cmd.Process.Pid)
}

func (s *sandbox) endedWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.ended:
		return true
	case <-timer.C:
		return false
	}
}

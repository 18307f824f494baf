package cgroup

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Spawner starts commands, all from one operating system thread.
//
// Invariants: (1) bubblewrap dies with the thread that started it (PR_SET_PDEATHSIG counts threads, not processes), so
// that thread lives as long as any command it started; (2) a thread is in a version 1 control group only between enter
// and leave, and nothing else runs on it; (3) with no command alive there is neither thread nor goroutine.
type Spawner struct {
	mu    sync.Mutex
	alive int // commands started and not yet released, and starts under way
	jobs  chan spawnJob
}

type spawnJob struct {
	cmd   *exec.Cmd
	group *Group
	done  chan error
}

// Start starts cmd in the group, which may be nil. After success the caller calls Release once the command has ended.
func (s *Spawner) Start(cmd *exec.Cmd, g *Group) error {
	s.mu.Lock()
	if s.alive == 0 {
		s.jobs = make(chan spawnJob)
		go serve(s.jobs)
	}
	s.alive++
	jobs := s.jobs
	s.mu.Unlock()
	job := spawnJob{cmd, g, make(chan error, 1)}
	jobs <- job
	err := <-job.done
	if err != nil {
		s.Release()
	}
	return err
}

// Release says that one started command has ended.
func (s *Spawner) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive--; s.alive == 0 {
		close(s.jobs)
	}
}

// serve never unlocks its thread, so the thread ends with it, whatever group it was left in.
func serve(jobs <-chan spawnJob) {
	runtime.LockOSThread()
	// What it starts must not possess the keys of Milepost's session. A kernel without keyrings has none to possess.
	_, _ = unix.KeyctlJoinSessionKeyring("")
	for j := range jobs {
		j.done <- startIn(j.cmd, j.group)
	}
}

func startIn(cmd *exec.Cmd, g *Group) error {
	if g == nil {
		return cmd.Start()
	}
	if g.of.version == "v2" {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, g.fd
		return cmd.Start()
	}
	if err := g.enter(); err != nil {
		_ = g.leave() // it may have entered one of the two
		return err
	}
	err := cmd.Start()
	if back := g.leave(); err == nil && back != nil {
		_ = cmd.Process.Kill() // a thread that cannot leave would start the next command in the wrong group
		_ = cmd.Wait()
		return back
	}
	return err
}

package agent

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// children starts the supervisors and reaps every child of process 1, the orphans that it adopts included.
//
// Invariants: mu is held from before a supervisor is forked until it is in waiting, and while a child is reaped, so that
// none is reaped unknown; a child that is not in waiting is an orphan, which no command owns.
type children struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus // by process id; each gets one status
}

func newChildren() *children {
	c := &children{waiting: map[int]chan syscall.WaitStatus{}}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	go func() {
		for range died {
			c.reap()
		}
	}()
	return c
}

// start runs this program as a supervisor with the given descriptors. The channel gets its status.
func (c *children) start(files []uintptr) (int, <-chan syscall.WaitStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err := syscall.ForkExec(Path, []string{Path, superviseRole}, &syscall.ProcAttr{Env: os.Environ(), Files: files})
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	c.waiting[pid] = ch
	return pid, ch, nil
}

// kill kills a supervisor that has not been reaped.
func (c *children) kill(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.waiting[pid]; ok {
		_ = unix.Kill(pid, unix.SIGKILL) // not reaped, so the id is still its own
	}
}

// reap takes the status of every dead child. It reports whether there is a child left.
func (c *children) reap() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return false // ECHILD
		case pid == 0:
			return true
		default:
			if ch, ok := c.waiting[pid]; ok {
				ch <- ws
				delete(c.waiting, pid)
			}
		}
	}
}

// sweepTime is how long single orphans are hunted before everything in the container is killed.
const sweepTime = 2 * time.Second

// sweep ends every process that belongs to no supervisor. Where no supervisor is left, or they do not get fewer, it kills
// all processes but this one, in one system call.
func (c *children) sweep() {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		left := c.reap()
		c.mu.Lock()
		alone := len(c.waiting) == 0
		orphans := 0
		switch {
		case alone && !left:
			c.mu.Unlock()
			return
		case alone || time.Since(begin) > sweepTime:
			_ = unix.Kill(-1, unix.SIGKILL) // ESRCH: nobody is left
		default:
			known := make(map[int]bool, len(c.waiting))
			for pid := range c.waiting {
				known[pid] = true
			}
			orphans = killTree(os.Getpid(), known)
		}
		c.mu.Unlock()
		if !alone && orphans == 0 {
			return
		}
	}
}

// process is one line of /proc.
type process struct {
	pid, parent int
	state       byte
}

// processes lists the processes of this namespace. What dies meanwhile is left out.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := dir.Readdirnames(-1)
	dir.Close()
	var out []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		i := strings.LastIndex(string(text), ") ") // the name before it may hold anything
		f := strings.Fields(string(text[max(i, 0):]))
		if len(f) < 3 {
			continue
		}
		parent, err := strconv.Atoi(f[2])
		if err == nil {
			out = append(out, process{pid, parent, f[1][0]})
		}
	}
	return out
}

// descendants returns the living processes below root, without those below a process of except.
func descendants(root int, except map[int]bool) []process {
	all := processes()
	inside := map[int]bool{root: true}
	var out []process
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if inside[p.parent] && !inside[p.pid] && !except[p.pid] {
				inside[p.pid], grown = true, true
				if p.state != 'Z' && p.state != 'X' {
					out = append(out, p)
				}
			}
		}
	}
	return out
}

// killTree kills the processes below root and returns how many it found. They are stopped first, all of them, since what
// is stopped cannot fork: with a bounded number of processes that comes to an end.
func killTree(root int, except map[int]bool) int {
	found := descendants(root, except)
	for range 50 {
		running := 0
		for _, p := range found {
			if p.state != 'T' && unix.Kill(p.pid, unix.SIGSTOP) == nil {
				running++
			}
		}
		if running == 0 {
			break
		}
		found = descendants(root, except)
	}
	for _, p := range found {
		_ = unix.Kill(p.pid, unix.SIGKILL) // it may be gone
	}
	return len(found)
}

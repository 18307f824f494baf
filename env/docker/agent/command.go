package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/docker/wire"
	"github.com/milepost-rl/milepost/env/driver"
)

// command is one command from its request to the proof that nothing of it is left.
type command struct {
	spec *wire.Command

	mu       sync.Mutex
	control  *os.File // closing it kills; nil once closed
	timedOut bool
	killed   bool
	overdue  func()      // ends the supervisor
	timer    *time.Timer // calls it
}

// killTime is how long a supervisor may take to end a command that is over, before process 1 does.
const killTime = 5 * time.Second

// kill asks the supervisor for the end.
func (c *command) kill(timeout bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed {
		return
	}
	c.killed, c.timedOut = true, timeout
	if c.control != nil {
		_ = c.control.Close()
		c.control = nil
	}
	if c.overdue != nil {
		c.timer = time.AfterFunc(killTime, c.overdue)
	}
}

// buried ends the watch over a supervisor that has been reaped.
func (c *command) buried() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.overdue = nil
	if c.timer != nil {
		c.timer.Stop()
	}
}

// kill ends the command of that id, which may be one that is about to start.
func (s *server) kill(id string) {
	s.mu.Lock()
	c := s.running[id]
	s.mu.Unlock()
	if c != nil {
		c.kill(false)
	}
}

// exec serves OpExec.
func (s *server) exec(conn *wire.Conn, req *wire.Request) {
	c := &command{spec: req.Command}
	result, err := s.run(conn, req.ID, c)
	answer := wire.Answer{Result: result}
	if err != nil {
		answer = wire.Failed(err)
	}
	_ = conn.SendJSON(wire.FrameAnswer, answer) // where the driver has gone there is nobody to tell
}

// checkDir says whether a command can work in dir.
func (s *server) checkDir(dir string) error {
	info, err := s.root.Stat(dir)
	if err != nil {
		return dirfs.Escapes(err)
	}
	if !info.IsDir() {
		return fmt.Errorf("the working directory %s: %w", dir, syscall.ENOTDIR)
	}
	return nil
}

func (s *server) run(conn *wire.Conn, id string, c *command) (*wire.Result, error) {
	if c.spec == nil || len(c.spec.Argv) == 0 {
		return nil, fmt.Errorf("a command without a program: %w", driver.ErrInvalid)
	}
	if err := s.checkDir(string(c.spec.Dir)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.running[id] = c
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.running, id)
		s.mu.Unlock()
	}()
	if err := conn.Send(wire.FrameAccepted, nil); err != nil {
		return nil, err
	}
	kills := s.counter.read()
	begin := time.Now()
	p, died, err := s.startSupervisor(c)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.overdue = func() { s.children.kill(p.pid) }
	if c.killed {
		c.timer = time.AfterFunc(killTime, c.overdue)
	}
	c.mu.Unlock()
	if c.spec.Wall > 0 {
		timer := time.AfterFunc(c.spec.Wall, func() { c.kill(true) })
		defer timer.Stop()
	}
	end := s.follow(conn, c, p, died)
	c.mu.Lock()
	defer c.mu.Unlock()
	result := &wire.Result{ExitCode: end.Exit, TimedOut: c.timedOut, Duration: time.Since(begin), OutOfMemory: s.counter.read() > kills,
		StdoutTruncated: p.stdout.truncated, StderrTruncated: p.stderr.truncated}
	if c.timedOut {
		result.ExitCode = 128 + int(syscall.SIGKILL)
	}
	return result, nil
}

// supervisor is the agent's side of one: the descriptors it works on.
type supervisor struct {
	pid            int
	stdin          *os.File
	stdout, stderr *pump
	report         *os.File
}

// startSupervisor forks a supervisor and gives it the order.
func (s *server) startSupervisor(c *command) (p *supervisor, died <-chan syscall.WaitStatus, err error) {
	var theirs, ours []*os.File
	defer func() {
		closeAll(theirs)
		if err != nil {
			closeAll(ours)
		}
	}()
	for i := range 5 { // stdin, stdout, stderr, control, report
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		if i == 0 || i == controlFD {
			theirs, ours = append(theirs, r), append(ours, w)
		} else {
			theirs, ours = append(theirs, w), append(ours, r)
		}
	}
	fds := make([]uintptr, len(theirs))
	for i, f := range theirs {
		fds[i] = f.Fd()
	}
	pid, died, err := s.children.start(fds)
	if err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			err = fmt.Errorf("the sandbox's processes are used up: %w", driver.ErrFull)
		}
		return nil, nil, err
	}
	go sendOrder(c, s.dir, ours[controlFD])
	return &supervisor{pid: pid, stdin: ours[0], stdout: &pump{pipe: ours[1]}, stderr: &pump{pipe: ours[2]}, report: ours[reportFD]}, died, nil
}

// sendOrder writes the order, after which the control pipe is the command's to be killed with.
func sendOrder(c *command, root string, control *os.File) {
	env := append(os.Environ(), texts(c.spec.Env)...)
	o := order{Command: *c.spec, Dir: filepath.Join(root, string(c.spec.Dir))}
	o.Command.Env = dedupe(env)
	err := json.NewEncoder(control).Encode(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed || err != nil { // an unread order: the supervisor is dead, which its status says
		_ = control.Close()
		return
	}
	c.control = control
}

// dedupe keeps the last value of each variable.
func dedupe(env []string) [][]byte {
	last := map[string]int{}
	for i, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		last[name] = i
	}
	var out [][]byte
	for i, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); last[name] == i {
			out = append(out, []byte(kv))
		}
	}
	return out
}

// follow passes the streams on until nothing of the command is left, and returns how it ended.
func (s *server) follow(conn *wire.Conn, c *command, p *supervisor, died <-chan syscall.WaitStatus) report {
	limit := c.spec.Output
	if c.spec.Long {
		limit = -1
	}
	started := make(chan struct{})
	p.stdout.start(conn, wire.FrameStdout, limit, started)
	p.stderr.start(conn, wire.FrameStderr, c.spec.Output, started)
	go feed(conn, p.stdin)
	end := report{Exit: 128 + int(syscall.SIGKILL)} // where the supervisor cannot tell: the command killed it
	reports := json.NewDecoder(p.report)
	var first report
	if reports.Decode(&first) == nil && first.Started {
		_ = conn.Send(wire.FrameStarted, nil)
	} else if first.Text != "" {
		end = first
		_ = conn.Send(wire.FrameStarted, nil)
		_ = conn.Send(wire.FrameStderr, []byte("milepost: "+first.Text+"\n"))
	}
	close(started)
	if first.Started {
		var last report
		if reports.Decode(&last) == nil {
			end = last
		}
	}
	c.kill(false) // from here on no time-out and no kill is its end
	s.bury(c, died)
	p.stdout.finish()
	p.stderr.finish()
	closeAll([]*os.File{p.stdin, p.report})
	return end
}

// bury waits for a supervisor whose command is over and does its work where it did not.
func (s *server) bury(c *command, died <-chan syscall.WaitStatus) {
	ws := <-died
	c.buried()
	if !ws.Exited() || ws.ExitStatus() != 0 {
		s.children.sweep()
	}
}

// feed writes standard input until it ends, then reads on, so that the driver never waits.
func feed(conn *wire.Conn, stdin *os.File) {
	for {
		t, data, err := conn.Receive()
		if err != nil {
			return
		}
		if t == wire.FrameData && stdin != nil {
			if _, err := stdin.Write(data); err != nil {
				_ = stdin.Close()
				stdin = nil
			}
		}
		if t == wire.FrameEnd && stdin != nil {
			_ = stdin.Close()
			stdin = nil
		}
	}
}

// pump sends what a pipe holds, up to a limit; the rest is read and dropped. truncated is valid after finish.
type pump struct {
	pipe      *os.File
	done      chan struct{}
	truncated bool
}

// start begins; nothing is sent before started is closed. A negative limit is none, 0 too.
func (p *pump) start(conn *wire.Conn, frame wire.Frame, limit int64, started <-chan struct{}) {
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		<-started
		buf := make([]byte, 64<<10)
		for left := limit; ; {
			n, err := p.pipe.Read(buf)
			keep := int64(n)
			if limit > 0 {
				keep = min(keep, left)
				left -= keep
				p.truncated = p.truncated || keep < int64(n)
			}
			if keep > 0 && conn.Send(frame, buf[:keep]) != nil {
				limit, left = 1, 0 // the driver has gone; the command must not wait for it
			}
			if err != nil {
				return
			}
		}
	}()
}

// finish waits for the end of the pipe, which nothing holds open any more.
func (p *pump) finish() {
	_ = p.pipe.SetReadDeadline(time.Now().Add(killTime))
	<-p.done
	_ = p.pipe.Close()
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a pipe's end; there is nothing to lose
	}
}

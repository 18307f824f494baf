package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/milepost-rl/milepost/env/driver"
)

// Program answers for a command and returns its exit code. It must return soon after ctx ends: that is how it is killed.
type Program func(ctx context.Context, c *Call) int

// Call is one command as its Program sees it.
type Call struct {
	Argv   []string
	Dir    string // relative to the workspace root, "." for the root itself
	Env    map[string]string
	Limits driver.Limits
	Files  *Files
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	OutOfMemory bool  // set by the program: the result says so
	Fail        error // set by the program: the driver itself failed, for tests of infrastructure failure
}

// process is one Program under way. done closes after result and err are written.
type process struct {
	cancel context.CancelFunc
	stdin  io.WriteCloser
	stdout io.Reader
	done   chan struct{}
	result *driver.Result
	err    error
}

func (p *process) Stdin() io.WriteCloser { return p.stdin }
func (p *process) Stdout() io.Reader     { return p.stdout }
func (p *process) Kill()                 { p.cancel() }
func (p *process) Wait() (*driver.Result, error) {
	<-p.done
	return p.result, p.err
}

// capped keeps the first limit bytes; 0 keeps all.
type capped struct {
	limit     int64
	data      []byte
	truncated bool
}

func (c *capped) Write(p []byte) (int, error) {
	n := len(p)
	if room := c.limit - int64(len(c.data)); c.limit > 0 && int64(n) > room {
		p, c.truncated = p[:room], true
	}
	c.data = append(c.data, p...)
	return n, nil
}

// Exec implements driver.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *driver.Command) (*driver.Result, error) {
	if err := s.checkDir(cmd.Dir); err != nil {
		return nil, err
	}
	out := &capped{limit: cmd.Limits.Output}
	p := s.launch(ctx, cmd, bytes.NewReader(cmd.Stdin), out, nil)
	<-p.done
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.err == nil {
		p.result.Stdout, p.result.StdoutTruncated = out.data, out.truncated
	}
	return p.result, p.err
}

// Start implements driver.Sandbox.
func (s *sandbox) Start(_ context.Context, cmd *driver.Command) (driver.Process, error) {
	if err := s.checkDir(cmd.Dir); err != nil {
		return nil, err
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := s.launch(context.Background(), cmd, inR, outW, func() {
		_ = inR.Close() // io.Pipe's ends never fail to close
		_ = outW.Close()
	})
	p.stdin, p.stdout = inW, outR
	return p, nil
}

func (s *sandbox) checkDir(dir string) error {
	s.Files.mu.Lock()
	defer s.Files.mu.Unlock()
	_, n, err := s.at(dir, true)
	if err == nil && !n.mode.IsDir() {
		err = fmt.Errorf("the working directory %s: %w", dir, syscall.ENOTDIR)
	}
	return err
}

// launch runs the program in a goroutine. after is called when the program is killed or has ended, to free its pipes.
func (s *sandbox) launch(ctx context.Context, cmd *driver.Command, in io.Reader, out io.Writer, after func()) *process {
	begin := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	stopTimer := func() bool { return true }
	if cmd.Limits.Wall > 0 {
		stopTimer = time.AfterFunc(cmd.Limits.Wall, func() { cancel(errWall) }).Stop
	}
	p := &process{cancel: func() { cancel(context.Canceled) }, done: make(chan struct{})}
	s.mu.Lock()
	s.running[p] = struct{}{}
	s.mu.Unlock()
	if after != nil {
		context.AfterFunc(ctx, after) // a killed program must not hang on its pipes
	}
	go func() {
		errOut := &capped{limit: cmd.Limits.Output}
		call := &Call{Argv: cmd.Argv, Dir: cmd.Dir, Env: cmd.Env, Limits: cmd.Limits, Files: s.Files, Stdin: in, Stdout: out, Stderr: errOut}
		code := s.d.program(ctx, call)
		stopTimer()
		cause := context.Cause(ctx)
		cancel(nil)
		p.result = &driver.Result{ExitCode: code, Stderr: errOut.data, StderrTruncated: errOut.truncated,
			OutOfMemory: call.OutOfMemory, TimedOut: errors.Is(cause, errWall), Duration: time.Since(begin)}
		if cause != nil {
			p.result.ExitCode = 128 + int(syscall.SIGKILL)
		}
		p.err = call.Fail
		s.mu.Lock()
		delete(s.running, p)
		s.mu.Unlock()
		close(p.done)
	}()
	return p
}

var errWall = errors.New("wall time")

// killAll ends every program and waits for it.
func (s *sandbox) killAll() {
	s.mu.Lock()
	left := make([]*process, 0, len(s.running))
	for p := range s.running {
		left = append(left, p)
	}
	s.mu.Unlock()
	for _, p := range left {
		p.Kill()
		<-p.done
	}
}

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

// Exec implements driver.Sandbox.
func (s *sandbox) Exec(ctx context.Context, cmd *driver.Command) (*driver.Result, error) {
	if err := s.checkDir(cmd.Dir); err != nil {
		return nil, err
	}
	out := &driver.Capped{Limit: cmd.Limits.Output}
	p := s.launch(ctx, cmd, bytes.NewReader(cmd.Stdin), out, nil)
	<-p.done
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.err == nil {
		p.result.Stdout, p.result.StdoutTruncated = out.Data, out.Truncated
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
	s.running.Add(p)
	if after != nil {
		context.AfterFunc(ctx, after) // a killed program must not hang on its pipes
	}
	go func() {
		errOut := &driver.Capped{Limit: cmd.Limits.Output}
		call := &Call{Argv: cmd.Argv, Dir: cmd.Dir, Env: cmd.Env, Limits: cmd.Limits, Files: s.Files, Stdin: in, Stdout: out, Stderr: errOut}
		code := s.d.program(ctx, call)
		stopTimer()
		cause := context.Cause(ctx)
		cancel(nil)
		p.result = &driver.Result{ExitCode: code, Stderr: errOut.Data, StderrTruncated: errOut.Truncated,
			OutOfMemory: call.OutOfMemory, TimedOut: errors.Is(cause, errWall), Duration: time.Since(begin)}
		if cause != nil {
			p.result.ExitCode = 128 + int(syscall.SIGKILL)
		}
		p.err = call.Fail
		s.running.Remove(p)
		close(p.done)
	}()
	return p
}

var errWall = errors.New("wall time")

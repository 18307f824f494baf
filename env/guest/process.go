package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/docker/wire"
	"github.com/milepost-rl/milepost/env/driver"
)

// process is one command, seen from the driver.
//
// Invariants: receive alone reads the stream and closes done as its last act; result and err are written before that and
// never after. When done is closed, no goroutine and no stream of the command is left, however it ended.
type process struct {
	s      *Sandbox
	cmd    *driver.Command
	id     string
	long   bool
	stream *yamux.Stream
	conn   *wire.Conn
	begin  time.Time
	kills  int64 // of Host.Kills before it began

	accepted chan struct{} // closed when the agent can be told to kill it
	started  chan struct{} // closed when the command runs, or could not be run
	stdout   driver.Capped
	stderr   driver.Capped
	output   *io.PipeReader // of a started command
	outputIn *io.PipeWriter
	writers  sync.WaitGroup // the writer of standard input

	killing sync.Once
	overdue atomic.Pointer[time.Timer]

	done   chan struct{}
	result *driver.Result
	err    error
}

const (
	killTime = 15 * time.Second // for the agent to prove the end of a command that was killed
	wallSlop = 30 * time.Second // beyond a command's wall time, which the agent keeps
	dropTime = 2 * time.Second  // for the caller to read what a killed command had written
)

var commands atomic.Int64

// Exec implements driver.Sandbox.
func (s *Sandbox) Exec(ctx context.Context, cmd *driver.Command) (*driver.Result, error) {
	p, err := s.launch(ctx, cmd, false)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
		<-p.done
		return nil, ctx.Err()
	}
	return p.Wait()
}

// Start implements driver.Sandbox.
func (s *Sandbox) Start(ctx context.Context, cmd *driver.Command) (driver.Process, error) {
	p, err := s.launch(ctx, cmd, true)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.started:
	case <-ctx.Done():
		p.Kill()
		<-p.done
		return nil, ctx.Err()
	}
	select {
	case <-p.done:
		if p.err != nil {
			return nil, p.err
		}
	default:
	}
	return p, nil
}

// launch starts a command. long leaves its standard input and output to the caller.
func (s *Sandbox) launch(ctx context.Context, cmd *driver.Command, long bool) (*process, error) {
	p := &process{s: s, cmd: cmd, id: strconv.FormatInt(commands.Add(1), 36), long: long, begin: time.Now(), kills: s.host.Kills(),
		accepted: make(chan struct{}), started: make(chan struct{}), done: make(chan struct{}), stdout: driver.Capped{Limit: cmd.Limits.Output}, stderr: driver.Capped{Limit: cmd.Limits.Output}}
	if long {
		p.output, p.outputIn = io.Pipe()
	}
	s.limiting.Lock()
	defer s.limiting.Unlock()
	if err := s.limit(ctx, cmd.Limits); err != nil {
		return nil, s.explain(err)
	}
	var err error
	p.stream, p.conn, err = s.link.open(&wire.Request{Op: wire.OpExec, ID: p.id, Command: s.wireCommand(cmd, long)})
	if err != nil {
		return nil, s.explain(err)
	}
	s.running.Add(p)
	if !long {
		p.writers.Go(func() {
			in := p.conn.PayloadWriter()
			if _, err := in.Write(cmd.Stdin); err == nil { // a program need not read its input
				_ = in.Close()
			}
		})
	}
	if cmd.Limits.Wall > 0 {
		p.overdue.Store(time.AfterFunc(cmd.Limits.Wall+wallSlop, p.abandon))
	}
	go p.receive()
	return p, nil
}

func (s *Sandbox) wireCommand(cmd *driver.Command, long bool) *wire.Command {
	c := &wire.Command{Dir: []byte(cmd.Dir), Wall: cmd.Limits.Wall, CPU: cmd.Limits.CPU, Output: cmd.Limits.Output, FileSize: cmd.Limits.FileSize, Long: long}
	if s.single != nil {
		c.Memory, c.Procs = s.single(cmd.Limits)
	}
	for _, a := range cmd.Argv {
		c.Argv = append(c.Argv, []byte(a))
	}
	for _, kv := range s.env {
		c.Env = append(c.Env, []byte(kv))
	}
	for k, v := range cmd.Env {
		c.Env = append(c.Env, []byte(k+"="+v))
	}
	return c
}

// receive takes what the agent sends until the command is over.
func (p *process) receive() {
	answer, err := p.frames()
	if t := p.overdue.Swap(nil); t != nil {
		t.Stop()
	}
	_ = p.stream.Close() // the agent is done with it
	p.writers.Wait()
	p.result, p.err = p.conclude(answer, err)
	p.s.running.Remove(p)
	select {
	case <-p.started:
	default:
		close(p.started)
	}
	close(p.done)
	if p.long {
		_ = p.outputIn.Close() // never fails
	}
}

// frames reads up to the answer.
func (p *process) frames() (*wire.Answer, error) {
	for {
		t, data, err := p.conn.Receive()
		if err != nil {
			return nil, fmt.Errorf("the container's agent does not answer: %w", err)
		}
		switch t {
		case wire.FrameAccepted:
			close(p.accepted)
		case wire.FrameStarted:
			close(p.started)
		case wire.FrameStdout:
			if p.long {
				_, _ = p.outputIn.Write(data) // a caller that wants no more has closed it
			} else {
				_, _ = p.stdout.Write(data)
			}
		case wire.FrameStderr:
			_, _ = p.stderr.Write(data)
		case wire.FrameAnswer:
			return decode(data)
		default:
			return nil, fmt.Errorf("a frame %q came from a command", t)
		}
	}
}

// conclude makes the result of the agent's answer.
func (p *process) conclude(answer *wire.Answer, err error) (*driver.Result, error) {
	if err == nil {
		err = answer.Err()
	}
	if err == nil && answer.Result == nil {
		err = errors.New("the container's agent answered without a result")
	}
	if err != nil {
		return p.lost(err)
	}
	r := answer.Result
	out := &driver.Result{ExitCode: r.ExitCode, Stderr: p.stderr.Data, StderrTruncated: r.StderrTruncated, TimedOut: r.TimedOut,
		OutOfMemory: r.OutOfMemory || p.s.host.Kills() > p.kills, Duration: r.Duration}
	if !p.long {
		out.Stdout, out.StdoutTruncated = p.stdout.Data, r.StdoutTruncated
	}
	return out, nil
}

// lost is the end of a command whose container went. Where the sandbox is being closed it was killed; where the container
// ran out of memory the command did.
func (p *process) lost(err error) (*driver.Result, error) {
	killed := &driver.Result{ExitCode: 137, Stderr: p.stderr.Data, Duration: time.Since(p.begin)}
	if !p.long {
		killed.Stdout = p.stdout.Data
	}
	if p.s.closing.Load() {
		return killed, nil
	}
	if err = p.s.explain(err); milepost.KindOf(err) == milepost.KindMemory {
		killed.OutOfMemory = true
		return killed, nil
	}
	return nil, err
}

// Kill ends the whole process tree.
func (p *process) Kill() {
	p.killing.Do(func() {
		if old := p.overdue.Swap(time.AfterFunc(killTime, p.abandon)); old != nil {
			old.Stop()
		}
		if p.long {
			time.AfterFunc(dropTime, func() { _ = p.output.Close() })
		}
		go func() { // it must not keep the caller waiting, nor fail
			select {
			case <-p.accepted:
			case <-p.done:
				return
			}
			_, _ = p.s.link.call(context.Background(), &wire.Request{Op: wire.OpKill, ID: p.id}, nil, nil)
		}()
	})
}

// abandon gives the container up: its agent does not do its work. Whoever uses the sandbox gets an error, and Close
// removes it.
func (p *process) abandon() {
	select {
	case <-p.done:
	default:
		_ = p.s.link.session.Close() // its streams end with it
	}
}

// Wait implements driver.Process.
func (p *process) Wait() (*driver.Result, error) {
	<-p.done
	return p.result, p.err
}

// Stdout implements driver.Process.
func (p *process) Stdout() io.Reader { return p.output }

// Stdin implements driver.Process.
func (p *process) Stdin() io.WriteCloser { return &stdin{p: p} }

// stdin writes to a started command.
type stdin struct {
	p    *process
	once sync.Once
}

func (w *stdin) Write(b []byte) (int, error) {
	select {
	case <-w.p.done:
		return 0, io.ErrClosedPipe
	default:
		return w.p.conn.PayloadWriter().Write(b)
	}
}

func (w *stdin) Close() error {
	w.once.Do(func() { _ = w.p.conn.PayloadWriter().Close() }) // the command may be gone
	return nil
}

func decode(data []byte) (*wire.Answer, error) {
	var a wire.Answer
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, fmt.Errorf("the container's agent answered with nonsense: %w", err)
	}
	return &a, nil
}

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/milepost-rl/milepost"
)

// Spec says what to run and how to tell that it works.
type Spec struct {
	Name  string            // for messages, journal and log, for example "vllm-0"
	Argv  []string          // command and arguments
	Env   map[string]string // on top of the caller's environment
	Dir   string            // working directory; "" = the caller's
	Log   string            // file that gets stdout and stderr, appended
	Ports []string          // host:port addresses it will listen on; they must be free before it starts
	Check func() error      // further condition before the start (model directory); nil = none

	Ready        func(context.Context) error // nil once the process can serve; asked every ReadyEvery. nil = ready at once
	ReadyEvery   time.Duration               // default 500 ms
	ReadyTimeout time.Duration               // default 10 min
	Grace        time.Duration               // from SIGTERM to SIGKILL at a stop; default 15 s
}

func (s Spec) filled() Spec {
	if s.ReadyEvery == 0 {
		s.ReadyEvery = 500 * time.Millisecond
	}
	if s.ReadyTimeout == 0 {
		s.ReadyTimeout = 10 * time.Minute
	}
	if s.Grace == 0 {
		s.Grace = 15 * time.Second
	}
	return s
}

// Exit says how a process ended.
type Exit struct {
	Reason string `json:"reason"`               // "exit status 1", "signal: killed", or "gone" for an adopted process
	Asked  bool   `json:"asked"`                // Stop was called
	Tail   string `json:"last_lines,omitempty"` // the last lines of its log since the start
}

// Err is the exit as an error of KindUnavailable.
func (e Exit) err(id Identity) error {
	text := fmt.Sprintf("%v ended: %s", id, e.Reason)
	if e.Tail != "" {
		text += "; the last lines of its log:\n" + e.Tail
	}
	return milepost.E("supervise: run", milepost.KindUnavailable, "%s", text)
}

// Process is a running process, started or adopted.
//
// Invariant: exit is written once, before done is closed, and read only after it.
type Process struct {
	spec   Spec
	id     Identity
	offset int64 // size of the log before the start
	done   chan struct{}
	exit   Exit

	mu    sync.Mutex
	asked bool
}

// Start checks the conditions and starts the process in a group of its own. It does not wait for readiness. Kinds:
// KindConflict where a port is in use, KindNotFound where the program or what Check wants is missing, KindUnavailable
// where the system refuses.
func Start(spec Spec) (*Process, error) {
	const op = "supervise: start"
	spec = spec.filled()
	if err := spec.Startable(); err != nil {
		return nil, err
	}
	log, offset, err := openLog(spec.Log)
	if err != nil {
		return nil, milepost.E(op, milepost.KindUnavailable, "%s: %w", spec.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(spec.Argv[0], spec.Argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = spec.Dir, log, log
	cmd.Env = os.Environ()
	for k, v := range spec.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		kind := milepost.KindUnavailable
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			kind = milepost.KindNotFound
		}
		return nil, milepost.E(op, kind, "%s: start %s: %w", spec.Name, spec.Argv[0], err)
	}
	id, err := identify(spec.Name, cmd.Process.Pid) // it is a zombie at worst until Wait, so /proc has it
	if err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		return nil, milepost.E(op, milepost.KindUnavailable, "%s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, id: id, offset: offset, done: make(chan struct{})}
	go func() {
		err := cmd.Wait()
		reason := "exit status 0"
		if err != nil {
			reason = err.Error()
		}
		p.finish(reason)
	}()
	return p, nil
}

// Adopt takes over a process that an earlier run started and journaled. It fails with KindNotFound where that process
// is gone; the caller then reaps what is left of its group and starts a new one. Whether it still works is
// WaitReady's to find out.
func Adopt(spec Spec, id Identity) (*Process, error) {
	spec = spec.filled()
	if !id.Alive() {
		return nil, milepost.E("supervise: adopt", milepost.KindNotFound, "%v no longer runs", id)
	}
	p := &Process{spec: spec, id: id, done: make(chan struct{})}
	if info, err := os.Stat(spec.Log); err == nil {
		p.offset = info.Size()
	}
	go func() {
		for id.Alive() { // it is no child of ours, so there is no wait; nor an exit code
			time.Sleep(10 * pollEvery)
		}
		p.finish("gone")
	}()
	return p, nil
}

// Startable checks what can be checked before a start: the command, what Check wants, and that the ports are free. Kinds
// as Start's.
func (s Spec) Startable() error {
	const op = "supervise: start"
	if len(s.Argv) == 0 {
		return milepost.E(op, milepost.KindInvalid, "%s: the command is empty", s.Name)
	}
	if s.Check != nil {
		if err := s.Check(); err != nil {
			return milepost.Wrap(op, milepost.KindInvalid, err)
		}
	}
	for _, addr := range s.Ports {
		if err := free(addr); err != nil {
			return milepost.E(op, milepost.KindConflict, "%s: %w", s.Name, err)
		}
	}
	return nil
}

func (p *Process) finish(reason string) {
	p.mu.Lock()
	asked := p.asked
	p.mu.Unlock()
	p.exit = Exit{Reason: reason, Asked: asked, Tail: tail(p.spec.Log, p.offset)}
	close(p.done)
}

// Identity is what to journal.
func (p *Process) Identity() Identity { return p.id }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the process ended; valid after Done is closed.
func (p *Process) Exit() Exit {
	<-p.done
	return p.exit
}

// WaitReady asks Spec.Ready until it is content. It fails at once when the process ends, with its last log lines, and
// after ReadyTimeout with the last answer of Ready.
func (p *Process) WaitReady(ctx context.Context) error {
	const op = "supervise: wait until ready"
	if p.spec.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.spec.ReadyTimeout, errNotReady)
	defer cancel()
	for {
		err := p.spec.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.exit.err(p.id)
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errNotReady) {
				return milepost.E(op, milepost.KindUnavailable, "%v is not ready after %v: %w", p.id, p.spec.ReadyTimeout, err)
			}
			return milepost.Wrap(op, milepost.KindCanceled, ctx.Err())
		case <-time.After(p.spec.ReadyEvery):
		}
	}
}

var errNotReady = errors.New("not ready in time")

// Stop ends the whole group: SIGTERM, after Spec.Grace SIGKILL. It returns when every member is gone.
func (p *Process) Stop(ctx context.Context) error {
	p.mu.Lock()
	p.asked = true
	p.mu.Unlock()
	if err := stopGroup(ctx, p.id, p.spec.Grace); err != nil {
		return err
	}
	<-p.done
	return nil
}

// free reports whether an address can be listened on.
func free(addr string) error {
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %s is in use by another process; stop it or choose another port", addr)
	}
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return l.Close()
}

func openLog(path string) (*os.File, int64, error) {
	if path == "" {
		path = os.DevNull
	} else if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, 0, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// tailLines and tailBytes bound what of a log goes into an error.
const (
	tailLines = 20
	tailBytes = 4096
)

// tail returns the last lines of a log behind offset; "" where it cannot be read, for it is only ever an addition to
// another error.
func tail(path string, offset int64) string {
	if path == "" {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	data := make([]byte, max(0, info.Size()-max(offset, info.Size()-tailBytes)))
	n, err := f.ReadAt(data, info.Size()-int64(len(data)))
	if err != nil && err != io.EOF {
		return ""
	}
	lines := bytes.Split(bytes.TrimSpace(data[:n]), []byte("\n"))
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	return strings.ToValidUTF8(string(bytes.Join(lines, []byte("\n"))), "�")
}

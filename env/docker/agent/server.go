package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/milepost-rl/milepost/env/dirfs"
	"github.com/milepost-rl/milepost/env/docker/wire"
)

// server is process 1.
//
// Invariants: every stream is served by one goroutine of its own; at most maxFileOps of them work on files at a time, so
// that no more threads are needed than were made at the start; commands are in running from before their supervisor
// starts until nothing of them is left.
type server struct {
	root     *os.Root
	dir      string   // absolute path of root
	temps    []string // the places besides the workspace that commands can write to
	files    dirfs.Dir
	fileOps  chan struct{}
	children *children
	counter  oomCounter

	mu      sync.Mutex // guards index and running
	index   index
	running map[string]*command
}

const maxFileOps = 6

func newServer(dir string, temps []string) (*server, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &server{root: root, dir: dir, temps: temps, files: dirfs.New(root), fileOps: make(chan struct{}, maxFileOps), children: newChildren(),
		counter: findOOMCounter(), index: index{}, running: map[string]*command{}}, nil
}

// Multiplex is the configuration of the multiplexed connection, the same on both sides but for who keeps it alive.
func Multiplex(keepAlive time.Duration) *yamux.Config {
	c := yamux.DefaultConfig()
	c.LogOutput = io.Discard // what goes wrong is returned
	c.EnableKeepAlive = keepAlive > 0
	if keepAlive > 0 {
		c.KeepAliveInterval = keepAlive
	}
	c.ConnectionWriteTimeout = 30 * time.Second
	c.StreamCloseTimeout = time.Minute
	c.MaxStreamWindowSize = 1 << 20
	return c
}

// serve answers streams until the connection ends, or is silent for longer than the lease.
func (s *server) serve(conn io.ReadWriteCloser, lease time.Duration) error {
	heard := &listener{ReadWriteCloser: conn}
	heard.last.Store(time.Now().UnixNano())
	session, err := yamux.Server(heard, Multiplex(0))
	if err != nil {
		return err
	}
	go func() {
		for {
			left := lease - time.Since(time.Unix(0, heard.last.Load()))
			if left <= 0 {
				fmt.Fprintln(os.Stderr, "agent: nothing was heard for", lease)
				os.Exit(3)
			}
			time.Sleep(left)
		}
	}()
	for {
		stream, err := session.AcceptStream()
		if errors.Is(err, io.EOF) || errors.Is(err, yamux.ErrSessionShutdown) {
			return nil
		}
		if err != nil {
			return err
		}
		go s.stream(stream)
	}
}

// listener notes when something was last heard.
type listener struct {
	io.ReadWriteCloser
	last atomic.Int64
}

func (l *listener) Read(b []byte) (int, error) {
	n, err := l.ReadWriteCloser.Read(b)
	if n > 0 {
		l.last.Store(time.Now().UnixNano())
	}
	return n, err
}

// stream serves one request.
func (s *server) stream(stream *yamux.Stream) {
	defer stream.Close()
	c := wire.NewConn(stream)
	var req wire.Request
	if err := c.ReceiveJSON(wire.FrameRequest, &req); err != nil {
		return // the driver gave up
	}
	switch req.Op {
	case wire.OpExec:
		s.exec(c, &req)
	case wire.OpKill:
		s.kill(req.ID)
		_ = c.SendJSON(wire.FrameAnswer, wire.Answer{})
	default:
		s.fileOps <- struct{}{}
		defer func() { <-s.fileOps }()
		s.file(c, &req)
	}
}

package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/hashicorp/yamux"

	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/docker/wire"
)

// link is the connection to a container's agent: streams multiplexed over the container's standard input and output.
//
// Its goroutines (one that splits standard error off, three of the multiplexer) end with close, which may be called again,
// or with the container.
type link struct {
	attached *attached
	session  *yamux.Session
}

// attached is the hijacked connection of one attach call.
type attached struct {
	response types.HijackedResponse
	out      *io.PipeReader
	complain tail
	ended    chan struct{}
	once     sync.Once
}

// attach connects to a container that has not started yet, so that nothing it says is missed.
func attach(ctx context.Context, cli *client.Client, id string) (*attached, error) {
	response, err := cli.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, goneError("attach", err)
	}
	out, in := io.Pipe()
	a := &attached{response: response, out: out, ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		_, err := stdcopy.StdCopy(in, &a.complain, response.Reader)
		if err == nil {
			err = io.EOF
		}
		_ = in.CloseWithError(err) // never fails
	}()
	return a, nil
}

func (a *attached) Read(b []byte) (int, error)  { return a.out.Read(b) }
func (a *attached) Write(b []byte) (int, error) { return a.response.Conn.Write(b) }

// Close ends the connection and its goroutine.
func (a *attached) Close() error {
	a.once.Do(func() {
		a.response.Close()
		_ = a.out.Close() // never fails
	})
	<-a.ended
	return nil
}

// newLink begins to speak to the agent of a container that has started. The lease is kept by pings.
func newLink(a *attached, lease time.Duration) (*link, error) {
	session, err := yamux.Client(a, agent.Multiplex(lease/4))
	if err != nil {
		return nil, err
	}
	return &link{a, session}, nil
}

func (l *link) close() {
	_ = l.session.Close() // the connection is what matters
	_ = l.attached.Close()
	<-l.session.CloseChan()
}

// open starts a request on a stream of its own.
func (l *link) open(req *wire.Request) (*yamux.Stream, *wire.Conn, error) {
	stream, err := l.session.OpenStream()
	if err != nil {
		return nil, nil, fmt.Errorf("the container's agent does not answer: %w", err)
	}
	conn := wire.NewConn(stream)
	if err := conn.SendJSON(wire.FrameRequest, req); err != nil {
		_ = stream.Close()
		return nil, nil, fmt.Errorf("the container's agent does not answer: %w", err)
	}
	return stream, conn, nil
}

// opTime bounds one operation on files, whatever its size.
const opTime = 10 * time.Minute

// call does one request: send, if any, writes its payload, receive, if any, reads that of the answer.
func (l *link) call(ctx context.Context, req *wire.Request, send func(io.Writer) error, receive func(*wire.Answer, io.Reader) error) (*wire.Answer, error) {
	stream, conn, err := l.open(req)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if err := stream.SetDeadline(time.Now().Add(opTime)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Now()) })
	defer stop()
	answer, err := exchange(conn, send, receive)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return answer, err
}

func exchange(conn *wire.Conn, send func(io.Writer) error, receive func(*wire.Answer, io.Reader) error) (*wire.Answer, error) {
	if send != nil {
		w := conn.PayloadWriter()
		if err := errors.Join(send(w), w.Close()); err != nil {
			return nil, err
		}
	}
	var answer wire.Answer
	if err := conn.ReceiveJSON(wire.FrameAnswer, &answer); err != nil {
		return nil, fmt.Errorf("the container's agent does not answer: %w", err)
	}
	if err := answer.Err(); err != nil {
		return nil, err
	}
	if receive != nil {
		return &answer, receive(&answer, conn.Payload())
	}
	return &answer, nil
}

// tail keeps the last bytes that were written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	if n := len(t.data) - tailSize; n > 0 {
		t.data = append(t.data[:0], t.data[n:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

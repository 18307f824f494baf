package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/milepost-rl/milepost/env/docker/agent"
	"github.com/milepost-rl/milepost/env/docker/wire"
)

// Link is the connection to a sandbox's agent: streams multiplexed over the standard input and output of process 1.
//
// Its goroutines, those of the multiplexer, end with Close, which may be called again, or with the connection.
type Link struct {
	conn    io.ReadWriteCloser
	session *yamux.Session
}

// NewLink begins to speak to the agent of a sandbox that has started, over conn, which is the Link's from here on. The
// lease is kept by pings.
func NewLink(conn io.ReadWriteCloser, lease time.Duration) (*Link, error) {
	session, err := yamux.Client(conn, agent.Multiplex(lease/4))
	if err != nil {
		return nil, err
	}
	return &Link{conn, session}, nil
}

// Close ends the connection.
func (l *Link) Close() {
	_ = l.session.Close() // the connection is what matters
	_ = l.conn.Close()
	<-l.session.CloseChan()
}

// open starts a request on a stream of its own.
func (l *Link) open(req *wire.Request) (*yamux.Stream, *wire.Conn, error) {
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
func (l *Link) call(ctx context.Context, req *wire.Request, send func(io.Writer) error, receive func(*wire.Answer, io.Reader) error) (*wire.Answer, error) {
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

// Tail keeps the last bytes that were written to it: what a process said before it died.
type Tail struct {
	mu   sync.Mutex
	data []byte
}

const tailSize = 4 << 10

// Write implements io.Writer.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	if n := len(t.data) - tailSize; n > 0 {
		t.data = append(t.data[:0], t.data[n:]...)
	}
	return len(b), nil
}

// String returns what is kept.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

package docker

import (
	"context"
	"io"
	"sync"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/milepost-rl/milepost/env/guest"
)

// attached is the hijacked connection of one attach call.
type attached struct {
	response types.HijackedResponse
	out      *io.PipeReader
	complain guest.Tail
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

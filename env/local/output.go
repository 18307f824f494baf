package local

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/milepost-rl/milepost/env/driver"
)

// capture reads a pipe to its end and keeps the first bytes; the program is never made to wait or told.
// The fields are valid after done.
type capture struct {
	driver.Capped
	pipe *os.File
	done chan struct{}
	err  error
}

func newCapture(pipe *os.File, limit int64) *capture {
	c := &capture{Capped: driver.Capped{Limit: limit}, pipe: pipe, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_, err := io.Copy(&c.Capped, pipe)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.err = err
		}
		if err := pipe.Close(); err != nil && c.err == nil {
			c.err = err
		}
	}()
	return c
}

// wait returns once the pipe has ended. Everything that could hold its other end is dead, except where nothing is
// confined and a process got away: then the pipe is given up after the grace.
func (c *capture) wait(grace time.Duration) {
	if c == nil {
		return
	}
	_ = c.pipe.SetReadDeadline(time.Now().Add(grace)) // fails only where it is closed already
	<-c.done
}

// closing is a pipe's reading end that closes itself when it has ended.
type closing struct{ *os.File }

func (c closing) Read(p []byte) (int, error) {
	n, err := c.File.Read(p)
	if err != nil {
		_ = c.File.Close() // nothing more can come
	}
	return n, err
}

package local

import (
	"errors"
	"io"
	"os"
	"time"
)

// capture reads a pipe to its end and keeps the first limit bytes; the program is never made to wait or told.
// The fields are valid after done.
type capture struct {
	pipe      *os.File
	limit     int64 // 0: keep everything
	done      chan struct{}
	data      []byte
	truncated bool
	err       error
}

func newCapture(pipe *os.File, limit int64) *capture {
	c := &capture{pipe: pipe, limit: limit, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_, err := io.Copy(writerFunc(c.keep), pipe)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.err = err
		}
		if err := pipe.Close(); err != nil && c.err == nil {
			c.err = err
		}
	}()
	return c
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func (c *capture) keep(p []byte) {
	if room := c.limit - int64(len(c.data)); c.limit > 0 && int64(len(p)) > room {
		p, c.truncated = p[:room], true
	}
	c.data = append(c.data, p...)
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

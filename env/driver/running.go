package driver

import (
	"path"
	"sync"
)

// Running is the set of a sandbox's commands that are not known to be over. The zero value is empty and ready.
type Running[P interface {
	comparable
	Process
}] struct {
	mu  sync.Mutex
	set map[P]struct{}
}

// Add puts a command in, before anything can end it.
func (r *Running[P]) Add(p P) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil {
		r.set = map[P]struct{}{}
	}
	r.set[p] = struct{}{}
}

// Remove takes a command out of which nothing is left.
func (r *Running[P]) Remove(p P) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.set, p)
}

// All lists the commands, in no order.
func (r *Running[P]) All() []P {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]P, 0, len(r.set))
	for p := range r.set {
		out = append(out, p)
	}
	return out
}

// KillAll ends every command and waits for the proof. How each ended is its own Wait's to tell.
func (r *Running[P]) KillAll() {
	left := r.All()
	for _, p := range left {
		p.Kill()
	}
	for _, p := range left {
		_, _ = p.Wait()
	}
}

// Skipped reports whether skip holds for the path p, relative and clean, or for a directory above it.
func Skipped(p string, skip func(string) bool) bool {
	for ; p != "."; p = path.Dir(p) {
		if skip(p) {
			return true
		}
	}
	return false
}

// Capped is a writer that keeps the first Limit bytes, all of them where Limit is 0, and never fails.
type Capped struct {
	Limit     int64
	Data      []byte
	Truncated bool // more was written than Limit
}

// Write implements io.Writer.
func (c *Capped) Write(p []byte) (int, error) {
	n := len(p)
	if room := c.Limit - int64(len(c.Data)); c.Limit > 0 && int64(n) > room {
		p, c.Truncated = p[:room], true
	}
	c.Data = append(c.Data, p...)
	return n, nil
}

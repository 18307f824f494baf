package docker

import (
	"context"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
)

// watchMemory notes which containers of this driver run out of memory, until ctx ends. A container removes itself when it
// ends, so there is nothing to ask afterwards; and without knowing, the end of a container for its memory, which is the
// task's doing, would look like a failure of the engine.
func (e *engine) watchMemory(ctx context.Context) {
	for ctx.Err() == nil {
		list := filters.NewArgs(filters.Arg("type", "container"), filters.Arg("event", "oom"), filters.Arg("label", labelOwner+"="+e.d.me.name))
		messages, failed := e.cli.Events(ctx, events.ListOptions{Filters: list})
		e.listen(messages, failed)
		select {
		case <-ctx.Done():
		case <-time.After(e.d.cfg.Retry):
		}
	}
}

// listen returns when the stream of events ends.
func (e *engine) listen(messages <-chan events.Message, failed <-chan error) {
	for {
		select {
		case m := <-messages:
			e.mu.Lock()
			if _, ok := e.open[m.Actor.ID]; ok {
				e.memory[m.Actor.ID] = true
			}
			e.mu.Unlock()
		case <-failed:
			return
		}
	}
}

// ranOut reports whether a container ran out of memory. The engine may tell a moment later than the connection ends.
func (e *engine) ranOut(id string) bool {
	for range 20 {
		e.mu.Lock()
		out := e.memory[id]
		e.mu.Unlock()
		if out {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

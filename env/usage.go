package env

import (
	"context"
	"sync"
)

// state says whether operations may begin.
type state string

const (
	open      state = "" // they may
	resetting state = "being reset"
	closed    state = "closed" // for good
)

// usage counts the operations under way on a sandbox and hands it over to Reset and Close, alone.
//
// Invariants: an operation begins only in state open, so that once another state is set their number only falls, also
// where one is begun inside another (Walk); owned is set by one of Reset and Close at a time and only while active is
// 0; every command that is tracked is cancelled when the state leaves open, whichever comes first.
type usage struct {
	mu      sync.Mutex
	changed sync.Cond // L is mu; set by the first that waits
	state   state
	active  int
	owned   bool
	next    int
	running map[int]context.CancelFunc // commands of Exec
}

// begin counts one operation; otherwise it returns why none may begin.
func (u *usage) begin() state {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.state == open {
		u.active++
	}
	return u.state
}

func (u *usage) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.active--
	u.changed.Broadcast()
}

// track makes a context that ends when Reset or Close want the sandbox. The caller calls the function when done.
func (u *usage) track(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.state != open {
		cancel()
	}
	if u.running == nil {
		u.running = map[int]context.CancelFunc{}
	}
	id := u.next
	u.next++
	u.running[id] = cancel
	return ctx, func() {
		cancel()
		u.mu.Lock()
		delete(u.running, id)
		u.mu.Unlock()
	}
}

// take sets the state, cancels the commands under way and returns once the caller has the sandbox alone, until give.
// Resetting is refused, with the reason, where the sandbox is closed or being reset; closing never is.
func (u *usage) take(s state) (refused state) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s == resetting && u.state != open {
		return u.state
	}
	u.state = s
	for _, cancel := range u.running {
		cancel()
	}
	u.changed.L = &u.mu
	for u.active > 0 || u.owned {
		u.changed.Wait()
	}
	if s == resetting && u.state == closed { // Close came while this waited; it goes first
		return closed
	}
	u.owned = true
	return open
}

// give ends what take began.
func (u *usage) give() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.owned = false
	if u.state == resetting {
		u.state = open
	}
	u.changed.Broadcast()
}

package policy

import (
	"context"
	"sync"
	"testing"
	"time"
)

// fakeClock stands still but for Sleep, which moves it on at once and remembers how far.
type fakeClock struct {
	mu    sync.Mutex
	now   time.Time
	slept []time.Duration
}

func newFakeClock() *fakeClock { return &fakeClock{now: time.Unix(1000, 0)} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.slept = append(c.slept, d)
	return ctx.Err()
}

func TestBackoff(t *testing.T) {
	b := Backoff{Base: 100 * time.Millisecond, Max: time.Second}
	for n, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		if got := b.Wait(n, 0); got != want*time.Millisecond {
			t.Errorf("longest wait before retry %d is %v, want %v", n, got, want*time.Millisecond)
		}
		if got := b.Wait(n, 0.75); got != want*time.Millisecond/4 {
			t.Errorf("wait %d at .75 is %v, want a quarter of %v", n, got, want*time.Millisecond)
		}
	}
	if got := b.Wait(500, 0); got != time.Second {
		t.Errorf("wait 500 is %v", got)
	}
}

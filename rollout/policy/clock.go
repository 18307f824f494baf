package policy

import (
	"context"
	"math/rand/v2"
	"time"
)

// Clock is the time a pool lives in; tests inject their own.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error // nil, or ctx's error where it ended first
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// Now returns the current time.
func (SystemClock) Now() time.Time { return time.Now() }

// Sleep waits for d or for ctx to end.
func (SystemClock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Backoff is exponential back-off with full jitter: the wait before retry n (from 0) is uniform in
// (0, min(Max, Base·2ⁿ)].
type Backoff struct {
	Base time.Duration `yaml:"base"` // bound of the first wait
	Max  time.Duration `yaml:"max"`  // bound of every wait
}

// Wait returns the wait before retry n, u being uniform in [0, 1).
func (b Backoff) Wait(n int, u float64) time.Duration {
	top := b.Base
	for range n {
		if top *= 2; top >= b.Max {
			top = b.Max
			break
		}
	}
	return time.Duration((1 - u) * float64(top))
}

func uniform() float64 { return rand.Float64() }

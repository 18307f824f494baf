package rollout

import "time"

// Clock is the time by which an episode's wall limit and durations go.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f in a goroutine of its own after d, unless stop is called before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// SystemClock is the real time.
type SystemClock struct{}

// Now is time.Now.
func (SystemClock) Now() time.Time { return time.Now() }

// AfterFunc is time.AfterFunc.
func (SystemClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	return time.AfterFunc(d, f).Stop
}

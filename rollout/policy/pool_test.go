package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hosts is a transport that answers for several servers: by host a status code, 0 for a refused connection.
type hosts struct {
	mu    sync.Mutex
	codes map[string]int
	seen  []string
}

func (h *hosts) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, r.URL.Host)
	code := h.codes[r.URL.Host]
	if code == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader("{}")), Request: r, Header: http.Header{}}, nil
}

func (h *hosts) set(host string, code int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.codes[host] = code
}

func (h *hosts) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.seen
	h.seen = nil
	return s
}

func ask(ctx context.Context, c *vllm.Client) error { return c.Health(ctx) }

func testPool(t *testing.T, h *hosts, change func(*PoolConfig)) (*Pool, *fakeClock) {
	t.Helper()
	cfg := DefaultPoolConfig()
	cfg.URLs = []string{"http://a", "http://b"}
	if change != nil {
		change(&cfg)
	}
	clock := newFakeClock()
	p, err := NewPool(cfg, PoolDeps{HTTP: &http.Client{Transport: h}, Clock: clock, Rand: func() float64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	return p, clock
}

func TestPoolIsStickyAndLeastLoaded(t *testing.T) {
	h := &hosts{codes: map[string]int{"a": 200, "b": 200}}
	p, _ := testPool(t, h, nil)
	// While one request of session 1 holds a, session 2 goes to b; both stay there.
	_, err := p.Do(t.Context(), "1", func(ctx context.Context, c *vllm.Client) error {
		at, err := p.Do(ctx, "2", ask)
		if at != "http://b" {
			t.Errorf("session 2 went to %s while a was busy", at)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		for session, want := range map[string]string{"1": "http://a", "2": "http://b"} {
			if at, err := p.Do(t.Context(), session, ask); at != want || err != nil {
				t.Errorf("session %s went to %s, %v; want %s", session, at, err, want)
			}
		}
	}
	p.Forget("2")
	if at, _ := p.Do(t.Context(), "2", ask); at != "http://a" {
		t.Errorf("a forgotten session went to %s, want the first of equals", at)
	}
}

func TestPoolMovesOnAndBacksOff(t *testing.T) {
	h := &hosts{codes: map[string]int{"a": 503, "b": 200}}
	p, clock := testPool(t, h, nil)
	if at, err := p.Do(t.Context(), "1", ask); at != "http://b" || err != nil {
		t.Fatalf("went to %s, %v; want b after a failed", at, err)
	}
	if len(clock.slept) != 1 || clock.slept[0] != 200*time.Millisecond {
		t.Errorf("slept %v, want one base back-off", clock.slept)
	}
	h.take()
	if at, _ := p.Do(t.Context(), "1", ask); at != "http://b" || len(h.take()) != 1 {
		t.Errorf("the session did not stay with b")
	}
}

func TestPoolNamesEveryEndpointWhenNoneIsLeft(t *testing.T) {
	h := &hosts{codes: map[string]int{"a": 503}}
	p, clock := testPool(t, h, func(c *PoolConfig) { c.OpenFor = time.Hour })
	_, err := p.Do(t.Context(), "1", ask)
	if milepost.KindOf(err) != milepost.KindUnavailable {
		t.Fatalf("error %v, want KindUnavailable", err)
	}
	for _, want := range []string{"no endpoint is left after 7 attempts", "http://a (joining, circuit open): ", "HTTP 503", "http://b (joining, circuit open): ", "connection refused"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q:\n%v", want, err)
		}
	}
	if got := len(h.take()); got != 6 {
		t.Errorf("%d requests, want 3 to each before its circuit opened", got)
	}
	if len(clock.slept) != 6 || clock.slept[5] != 6400*time.Millisecond {
		t.Errorf("slept %v, want six doubling waits", clock.slept)
	}
}

func TestPoolCircuit(t *testing.T) {
	h := &hosts{codes: map[string]int{"a": 500}}
	p, clock := testPool(t, h, func(c *PoolConfig) { c.URLs = c.URLs[:1]; c.Retries = 0 })
	for range 4 {
		_, _ = p.Do(t.Context(), "", ask)
	}
	if got := len(h.take()); got != 3 {
		t.Fatalf("%d requests reached the endpoint, want 3 until the circuit opened", got)
	}
	_ = clock.Sleep(t.Context(), p.cfg.OpenFor)
	// Half-open: one trial, and nobody else meanwhile.
	h.set("a", 200)
	blocked := make(chan error, 1)
	_, err := p.Do(t.Context(), "", func(ctx context.Context, c *vllm.Client) error {
		go func() {
			_, err := p.Do(t.Context(), "", ask)
			blocked <- err
		}()
		select {
		case <-blocked:
			t.Error("a second request went to a half-open endpoint")
		case <-time.After(20 * time.Millisecond):
		}
		return c.Health(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-blocked; err != nil {
		t.Fatal(err)
	}
	if s := p.Stats()[0]; s.Circuit != "closed" || s.Done != 2 || s.Failed != 3 {
		t.Errorf("stats %+v, want closed with 2 done and 3 failed", s)
	}
}

func TestPoolHealthChecks(t *testing.T) {
	h := &hosts{codes: map[string]int{"a": 503, "b": 200}}
	p, _ := testPool(t, h, func(c *PoolConfig) { c.OpenFor = time.Hour })
	p.Check(t.Context(), nil)
	if s := p.Stats(); s[0].Circuit != "open" || s[1].Circuit != "closed" {
		t.Fatalf("after one check: %+v, want a open and b closed", s)
	}
	h.set("a", 200)
	p.Check(t.Context(), nil)
	if s := p.Stats(); s[0].Circuit != "half-open" {
		t.Errorf("a recovered endpoint is %s, want half-open", s[0].Circuit)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	cancel()
	<-done
}

func TestPoolOwnFaultIsNotRetried(t *testing.T) {
	h := &hosts{codes: map[string]int{"a": 400, "b": 400}}
	p, _ := testPool(t, h, nil)
	for range 9 {
		if _, err := p.Do(t.Context(), "", ask); milepost.KindOf(err) != milepost.KindInvalid {
			t.Fatalf("HTTP 400: %v, want KindInvalid", err)
		}
	}
	if got := len(h.take()); got != 9 {
		t.Errorf("%d requests, want 9: no retry and no open circuit", got)
	}
}

func TestPoolAttemptTimeout(t *testing.T) {
	h := &hosts{codes: map[string]int{"a": 200}}
	p, _ := testPool(t, h, func(c *PoolConfig) { c.URLs = c.URLs[:1]; c.Retries = 0; c.Timeout = time.Millisecond })
	_, err := p.Do(t.Context(), "", func(ctx context.Context, _ *vllm.Client) error {
		<-ctx.Done()
		return milepost.E("test", milepost.KindTimeout, "%w", ctx.Err())
	})
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "no answer within 1ms") {
		t.Errorf("an attempt that ran out of time: %v, want KindUnavailable", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = p.Do(ctx, "", func(context.Context, *vllm.Client) error {
		cancel()
		return milepost.Wrap("test", milepost.KindUnavailable, context.Canceled)
	})
	if milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("a caller that gave up: %v, want KindCanceled", err)
	}
}

func TestPoolBoundsConcurrency(t *testing.T) {
	h := &hosts{codes: map[string]int{"a": 200, "b": 200}}
	p, _ := testPool(t, h, func(c *PoolConfig) { c.MaxConcurrent = 3 })
	var now, most [2]atomic.Int64
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			_, err := p.Do(t.Context(), fmt.Sprint(i%7), func(_ context.Context, c *vllm.Client) error {
				k := int(c.URL()[len(c.URL())-1] - 'a')
				n := now[k].Add(1)
				for m := most[k].Load(); n > m && !most[k].CompareAndSwap(m, n); m = most[k].Load() {
				}
				time.Sleep(50 * time.Microsecond)
				now[k].Add(-1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for k := range most {
		if m := most[k].Load(); m < 1 || m > 3 {
			t.Errorf("endpoint %d had up to %d requests, want 1 to 3", k, m)
		}
	}
}

func TestPoolConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*PoolConfig){
		"listed twice":        func(c *PoolConfig) { c.URLs = []string{"http://a", "http://a/"} },
		"not of the form":     func(c *PoolConfig) { c.URLs = []string{"a:8000"} },
		"max_concurrent is 0": func(c *PoolConfig) { c.MaxConcurrent = 0 },
		"timeout is 0s":       func(c *PoolConfig) { c.Timeout = 0 },
		"retries is -1":       func(c *PoolConfig) { c.Retries = -1 },
		"backoff is":          func(c *PoolConfig) { c.Backoff.Max = 0 },
		"open_after is 0":     func(c *PoolConfig) { c.OpenAfter = 0 },
		"health_every is 0s":  func(c *PoolConfig) { c.HealthEvery = 0 },
	} {
		cfg := DefaultPoolConfig()
		cfg.URLs = []string{"http://a"}
		change(&cfg)
		if _, err := NewPool(cfg, PoolDeps{}); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want KindInvalid with %q", err, want)
		}
	}
}

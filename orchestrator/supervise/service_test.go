package supervise

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

// stillClock moves only by Sleep.
type stillClock struct {
	mu    sync.Mutex
	now   time.Time
	slept []time.Duration
}

func (c *stillClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stillClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.slept = append(c.slept, d)
	return ctx.Err()
}

// recorded keeps a service's events and cancels when one of the given kind comes for the n-th time.
type recorded struct {
	kinds  []string
	events []Event
}

func (r *recorded) note(e Event) {
	r.kinds = append(r.kinds, string(e.Kind))
	r.events = append(r.events, e)
}

func TestServiceRestartsAndGivesUp(t *testing.T) {
	var r recorded
	clock := &stillClock{}
	s := Service{
		Spec: shell(t, "echo broken; exit 7"), Restart: Restart{Max: 3, Base: time.Second, Cap: 3 * time.Second, Healthy: time.Minute},
		Notify: r.note, Clock: clock, Rand: func() float64 { return 1 },
	}
	err := s.Run(t.Context())
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "exit status 7; the last lines of its log:\nbroken") {
		t.Errorf("error %v", err)
	}
	once := "started ready exited "
	if got := strings.Join(r.kinds, " "); got != strings.Repeat(once, 3)+"started ready gave_up" {
		t.Errorf("events %s", got)
	}
	if got := fmt.Sprint(clock.slept); got != "[1s 2s 3s]" {
		t.Errorf("waits %s", got)
	}
}

func TestServiceStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var r recorded
	s := Service{Spec: shell(t, "exec sleep 100"), Restart: DefaultRestart(), Notify: func(e Event) {
		if r.note(e); e.Kind == EventReady {
			cancel()
		}
	}}
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	last := r.events[len(r.events)-1]
	if strings.Join(r.kinds, " ") != "started ready exited" || !last.Exit.Asked || last.Identity.Alive() {
		t.Errorf("events %v, last %+v", r.kinds, last.Exit)
	}
}

func TestServiceAdoptsOrReaps(t *testing.T) {
	run := func(old Identity, ready func(context.Context) error) (recorded, error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var r recorded
		spec := shell(t, "exec sleep 100")
		spec.Ready, spec.ReadyTimeout = ready, 50*time.Millisecond
		s := Service{Spec: spec, Restart: DefaultRestart(), Adopt: &old, Clock: &stillClock{}, Notify: func(e Event) {
			if r.note(e); e.Kind == EventReady {
				cancel()
			}
		}}
		err := s.Run(ctx)
		return r, err
	}
	p := begin(t, shell(t, "exec sleep 100"))
	r, err := run(p.Identity(), nil)
	if got := strings.Join(r.kinds, " "); err != nil || got != "adopted ready exited" || r.events[0].Identity != p.Identity() {
		t.Errorf("a healthy process: %s, %v", got, err)
	}
	r, err = run(p.Identity(), nil) // it is gone by now
	if got := strings.Join(r.kinds, " "); err != nil || got != "started ready exited" {
		t.Errorf("a process that is gone: %s, %v", got, err)
	}
	sick := begin(t, shell(t, "exec sleep 100"))
	r, err = run(sick.Identity(), func(context.Context) error {
		if sick.Identity().Alive() {
			return errors.New("hangs")
		}
		return nil
	})
	if got := strings.Join(r.kinds, " "); err != nil || got != "adopted exited started ready exited" || sick.Identity().Alive() {
		t.Errorf("a process that hangs: %s, %v", got, err)
	}
}

func TestServiceRefusesBadStartAtOnce(t *testing.T) {
	var r recorded
	s := Service{Spec: Spec{Name: "x", Argv: []string{"/no/such"}, Log: filepath.Join(t.TempDir(), "l")}, Restart: DefaultRestart(), Notify: r.note}
	if err := s.Run(t.Context()); milepost.KindOf(err) != milepost.KindNotFound || strings.Join(r.kinds, " ") != "gave_up" {
		t.Errorf("%v, events %v", err, r.kinds)
	}
	s.Restart.Base = 0
	if err := s.Run(t.Context()); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("bad policy: %v", err)
	}
}

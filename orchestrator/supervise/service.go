package supervise

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/milepost-rl/milepost"
)

// Restart says when and how often a process that ended by itself is started again.
type Restart struct {
	Max     int           `yaml:"max"`     // restarts in a row before giving up; 0 = never restart
	Base    time.Duration `yaml:"base"`    // wait before the first; doubled each time, with jitter
	Cap     time.Duration `yaml:"cap"`     // longest wait
	Healthy time.Duration `yaml:"healthy"` // a process that was up this long starts the count anew
}

// DefaultRestart is three restarts in a row, 1 s to 1 min apart.
func DefaultRestart() Restart {
	return Restart{Max: 3, Base: time.Second, Cap: time.Minute, Healthy: 5 * time.Minute}
}

// Validate checks every field.
func (r Restart) Validate() error {
	if r.Max < 0 || r.Base <= 0 || r.Cap < r.Base || r.Healthy < 0 {
		return milepost.E("supervise: restart policy", milepost.KindInvalid,
			"max is %d, base %v, cap %v, healthy %v; max and healthy must be at least 0, base above 0, cap at least base", r.Max, r.Base, r.Cap, r.Healthy)
	}
	return nil
}

// EventKind is what happened to a service.
type EventKind string

// The events of a service, in the order in which a process goes through them.
const (
	EventStarted EventKind = "started" // journal the identity now: a crash from here on leaves a process behind
	EventAdopted EventKind = "adopted"
	EventReady   EventKind = "ready"
	EventExited  EventKind = "exited"
	EventGaveUp  EventKind = "gave_up"
)

// Event is one thing that happened to a service.
type Event struct {
	Kind     EventKind
	Identity Identity
	Exit     *Exit         // of exited
	Err      error         // of gave_up
	Wait     time.Duration // of exited: until the next start
}

// Service keeps one process up.
type Service struct {
	Spec    Spec
	Restart Restart
	Adopt   *Identity   // process of an earlier run to take over where it still runs and gets ready; else its group is reaped
	Notify  func(Event) // called in order, from Run's goroutine, before Run goes on; nil = nobody
	Clock   Clock       // nil = the machine's
	Rand    func() float64
}

// Clock is the time a service lives in; tests inject their own.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run keeps the process up until ctx ends, then stops its group and returns nil. It returns an error where the first
// start is refused (port in use, model missing) or where the process ended more often in a row than Restart allows.
func (s *Service) Run(ctx context.Context) error {
	if err := s.Restart.Validate(); err != nil {
		return err
	}
	if s.Clock == nil {
		s.Clock = systemClock{}
	}
	if s.Rand == nil {
		s.Rand = rand.Float64
	}
	p, err := s.first(ctx)
	for failures := 0; ; {
		if err != nil {
			return s.giveUp(p, err)
		}
		began := s.Clock.Now()
		err := s.watch(ctx, p)
		if err == nil {
			return nil
		}
		if s.Restart.Healthy > 0 && s.Clock.Now().Sub(began) >= s.Restart.Healthy {
			failures = 0
		}
		if failures++; failures > s.Restart.Max {
			return s.giveUp(p, err)
		}
		wait := s.backoff(failures)
		exit := p.Exit()
		s.tell(Event{Kind: EventExited, Identity: p.id, Exit: &exit, Wait: wait})
		if s.Clock.Sleep(ctx, wait) != nil {
			return nil
		}
		if p, err = s.start(); err != nil {
			return s.giveUp(p, err)
		}
	}
}

// first adopts what is there, or starts.
func (s *Service) first(ctx context.Context) (*Process, error) {
	if s.Adopt == nil {
		return s.start()
	}
	p, err := Adopt(s.Spec, *s.Adopt)
	if err == nil {
		s.tell(Event{Kind: EventAdopted, Identity: p.id})
		return p, nil
	}
	if _, err := Reap(ctx, []Identity{*s.Adopt}, s.Spec.filled().Grace); err != nil {
		return nil, err
	}
	return s.start()
}

func (s *Service) start() (*Process, error) {
	p, err := Start(s.Spec)
	if err == nil {
		s.tell(Event{Kind: EventStarted, Identity: p.id})
	}
	return p, err
}

// watch follows one process to its end. It returns nil where ctx ended, after the group is gone.
func (s *Service) watch(ctx context.Context, p *Process) error {
	err := p.WaitReady(ctx)
	if err == nil {
		s.tell(Event{Kind: EventReady, Identity: p.id})
		select {
		case <-p.Done():
			err = p.Exit().err(p.id)
		case <-ctx.Done():
		}
	}
	// Whatever is left of the group goes: an engine whose server ended, or one that never got ready.
	if stop := p.Stop(context.WithoutCancel(ctx)); stop != nil {
		return stop
	}
	if ctx.Err() != nil {
		exit := p.Exit()
		s.tell(Event{Kind: EventExited, Identity: p.id, Exit: &exit})
		return nil
	}
	return err
}

func (s *Service) giveUp(p *Process, err error) error {
	e := Event{Kind: EventGaveUp, Err: err}
	if p != nil {
		e.Identity = p.id
	}
	s.tell(e)
	return err
}

// backoff is the wait before restart n (from 1): half fixed, half jitter.
func (s *Service) backoff(n int) time.Duration {
	d := s.Restart.Base
	for range n - 1 {
		if d *= 2; d >= s.Restart.Cap {
			d = s.Restart.Cap
			break
		}
	}
	return d/2 + time.Duration(s.Rand()*float64(d/2))
}

func (s *Service) tell(e Event) {
	if s.Notify != nil {
		s.Notify(e)
	}
}

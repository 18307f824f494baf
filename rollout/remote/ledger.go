package remote

import (
	"slices"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// order is one episode that a caller of Run waits for.
type order struct {
	req        rollout.Request
	probeSteps bool

	attempt  int       // grows with each hand-out and each hand-back
	losses   int       // hand-outs whose worker fell silent
	worker   string    // who holds it; "" = it waits in the queue
	heard    time.Time // when it was handed out, or when its worker last said that it works on it
	unwanted bool      // its caller gave up; the worker was told to end it
	ended    chan ended
}

// ended is what Run returns.
type ended struct {
	episode *milepost.Episode
	err     error
}

// ledger says who holds which episode of a run in one epoch. It has no lock, clock, goroutine or I/O, so its owner serialises
// calls.
//
// Invariants:
//   - An order is in orders from add to end, and ends once: whoever ends it takes it out and is the only one to answer.
//   - It is in the queue exactly while nobody holds it.
//   - attempt only grows. What carries another attempt than the latest counts for nothing.
//   - Silence of a worker puts its orders back at the head of the queue; until one is handed out again, its old worker can
//     still answer, or take it back by a heartbeat.
//   - An unwanted order is never handed out again.
type ledger struct {
	run       string
	epoch     uint64
	lease     time.Duration
	maxLosses int

	orders map[string]*order // by episode
	queue  []*order
	stats  Stats
}

func newLedger(run string, epoch uint64, cfg Config) *ledger {
	return &ledger{run: run, epoch: epoch, lease: cfg.Lease, maxLosses: cfg.MaxLosses, orders: map[string]*order{}}
}

func (l *ledger) add(req rollout.Request, probeSteps bool) (*order, error) {
	if l.orders[req.Episode] != nil {
		return nil, milepost.E("remote: run", milepost.KindConflict, "episode %s is under way already", req.Episode)
	}
	o := &order{req: req, probeSteps: probeSteps, ended: make(chan ended, 1)}
	l.orders[req.Episode] = o
	l.queue = append(l.queue, o)
	return o, nil
}

// next hands the first waiting order out; nil where none waits.
func (l *ledger) next(worker string, now time.Time) *order {
	if len(l.queue) == 0 {
		return nil
	}
	o := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	o.attempt++
	o.worker, o.heard = worker, now
	l.stats.HandedOut++
	return o
}

// current is the order that an address is the latest hand-out of; nil where it is of no use any more.
func (l *ledger) current(a address) *order {
	o := l.orders[a.Episode]
	if o == nil || a.Run != l.run || a.Epoch != l.epoch || a.Attempt != o.attempt || o.attempt == 0 {
		return nil
	}
	return o
}

// hear takes the word of a worker that it works on held, and returns what of it nobody waits for.
func (l *ledger) hear(worker string, held []address, now time.Time) (over []address) {
	for _, a := range held {
		if a.Run != l.run || a.Epoch != l.epoch {
			continue // another run's, or an epoch's that the worker learns of by the notice
		}
		o := l.current(a)
		switch {
		case o == nil || o.unwanted || o.worker != "" && o.worker != worker:
			over = append(over, a)
		case o.worker == "":
			l.queue = slices.DeleteFunc(l.queue, func(q *order) bool { return q == o })
			o.worker, o.heard = worker, now
		default:
			o.heard = now
		}
	}
	return over
}

// expire takes the orders of workers that fell silent away from them, and returns those that end by it.
func (l *ledger) expire(now time.Time) (lost []*order) {
	for _, o := range l.orders {
		if o.worker == "" || now.Sub(o.heard) <= l.lease {
			continue
		}
		o.losses++
		l.stats.Lost++
		if o.unwanted || o.losses >= l.maxLosses {
			lost = append(lost, o)
			continue
		}
		l.requeue(o)
	}
	return lost
}

// requeue makes an order wait again, before those that never ran.
func (l *ledger) requeue(o *order) {
	o.worker = ""
	l.queue = slices.Insert(l.queue, 0, o)
}

// giveBack takes an order that its worker hands back; a heartbeat that was sent before does not take it again. It reports
// whether the order ends by it: nobody wants it any more.
func (l *ledger) giveBack(o *order) (over bool) {
	l.stats.HandedBack++
	o.attempt++
	if o.worker != "" && !o.unwanted {
		l.requeue(o)
	}
	return o.unwanted
}

// refresh begins all leases anew: the run itself could hear nobody.
func (l *ledger) refresh(now time.Time) {
	for _, o := range l.orders {
		o.heard = now
	}
}

// withdraw gives an order up. It reports whether it ended by it; otherwise a worker has it and must be told.
func (l *ledger) withdraw(o *order) bool {
	o.unwanted = true
	l.stats.Cancelled++
	if o.worker != "" {
		return false
	}
	l.end(o)
	return true
}

// end takes an order out. It reports whether it was still there.
func (l *ledger) end(o *order) bool {
	if l.orders[o.req.Episode] != o {
		return false
	}
	delete(l.orders, o.req.Episode)
	if o.worker == "" {
		l.queue = slices.DeleteFunc(l.queue, func(q *order) bool { return q == o })
	}
	return true
}

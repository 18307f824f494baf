package messages

import (
	"context"
	"crypto/rand"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
)

// WorkerInfo is what a worker tells about itself with every heartbeat. All versions read each other's: fields are only added
// to it.
type WorkerInfo struct {
	Name    string    `json:"name"`
	Host    string    `json:"host"`
	Wire    int       `json:"wire"` // version of the messages that it speaks; a run of another version gets nothing from it
	Slots   int       `json:"slots"`
	Busy    int       `json:"busy"`
	Served  int       `json:"served"`            // results published since it started
	Failed  int       `json:"failed"`            // of them, infrastructure failures
	Failing int       `json:"failing,omitempty"` // failures of its own since its last success
	Started time.Time `json:"started"`
	Drains  bool      `json:"drains,omitempty"` // stopping: takes nothing new
}

// Self is what a worker that starts now says of itself; its name, where it was given none, is its host's with a random part.
// Wire is the caller's to fill in. Errors: KindUnavailable where the host has no name.
func Self(name string, slots int) (WorkerInfo, error) {
	host, err := os.Hostname()
	if err != nil {
		return WorkerInfo{}, milepost.Wrap("messages: name worker", milepost.KindUnavailable, err)
	}
	if name == "" {
		name = SafeToken(host) + "-" + rand.Text()[:8]
	}
	return WorkerInfo{Name: name, Host: host, Slots: slots, Started: time.Now()}, nil
}

// ListWorkers listens to the heartbeats on a subject for wait, which should be a few of them, and returns the workers heard, by
// name. Errors: KindUnavailable, KindCanceled, KindCorrupt for a heartbeat that cannot be read.
func ListWorkers(ctx context.Context, nc *nats.Conn, subject string, wait time.Duration) ([]WorkerInfo, error) {
	const op = "messages: list workers"
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	tctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	seen := map[string]WorkerInfo{}
	for {
		m, err := sub.NextMsgWithContext(tctx)
		if tctx.Err() != nil {
			break
		}
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		var w WorkerInfo
		if w.Wire, err = DecodeAny(m.Header, m.Data, &w); err != nil {
			return nil, err
		}
		seen[w.Name] = w
	}
	if err := ctx.Err(); err != nil {
		return nil, milepost.Wrap(op, milepost.KindCanceled, err)
	}
	out := make([]WorkerInfo, 0, len(seen))
	for _, w := range seen {
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b WorkerInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Slots is the life of a worker: slots and a heartbeat until it is to stop, then a drain.
type Slots struct {
	N        int
	Drain    time.Duration
	Slot     func(ctx, hard context.Context) // takes work until ctx ends, and lets go of what it holds when hard does
	Beat     func(ctx context.Context)       // tells that the worker lives, until the drain is over
	Draining func()                          // called once, when ctx has ended
}

// Run returns when all slots have. When ctx ends they have Drain to finish what they hold, then hard ends.
func (s Slots) Run(ctx context.Context) {
	hard, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	var slots, side sync.WaitGroup
	for range s.N {
		slots.Go(func() { s.Slot(ctx, hard) })
	}
	beat, stopBeat := context.WithCancel(context.WithoutCancel(ctx))
	side.Go(func() { s.Beat(beat) })
	<-ctx.Done()
	s.Draining()
	timer := time.AfterFunc(s.Drain, kill)
	slots.Wait()
	timer.Stop()
	stopBeat()
	side.Wait()
}

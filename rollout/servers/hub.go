package servers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// Members is the run's side: who samples. Calls about one name come one after the other.
type Members interface {
	// Join takes a server in; an error is why the run will never have it, as long as it is as it is, unless its kind is
	// KindUnavailable, KindTimeout or KindCanceled: then it is asked again, as it is after half a lease without an answer.
	Join(ctx context.Context, name string, o Offer) error
	// Gone: the server is dead, silent or ill; it may join again.
	Gone(name, why string)
	// Drain: the server stops. It gets no more requests, and Drain returns when those that it has ended, or ctx did.
	Drain(ctx context.Context, name string)
}

// Hub is the run's side of the servers that join it from other machines.
//
// Invariants:
//   - mu guards seen and foreign. What becomes of one server is decided by one goroutine, its keeper, which follows the latest heartbeat:
//     so Members hears of each server in order, and a slow join holds up nobody else.
//   - A server is joined only while its claim holds: claimed before Join, repeated each Heartbeat, given back after Gone for
//     good, Drain, a refusal, and Close.
type Hub struct {
	cfg     Config
	nc      *nats.Conn
	subj    subjects
	run     string
	epoch   uint64
	members Members
	say     func(string)

	ctx    context.Context
	cancel context.CancelFunc
	sub    *nats.Subscription

	mu      sync.Mutex
	seen    map[string]*keeper
	foreign map[int]bool // versions of servers that were reported
	wg      sync.WaitGroup
}

// keeper follows one server.
type keeper struct {
	name  string
	beats chan wireBeat // the latest one
	why   string        // it could not join at the last try, as was said; keep's own
}

// NewHub listens for servers from here on; Close ends it. Errors: KindUnavailable.
func NewHub(cfg Config, nc *nats.Conn, prefix, run string, epoch uint64, members Members, say func(string)) (*Hub, error) {
	h := &Hub{cfg: cfg, nc: nc, subj: subjects(prefix), run: run, epoch: epoch, members: members, say: say, seen: map[string]*keeper{}, foreign: map[int]bool{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	var err error
	if h.sub, err = nc.Subscribe(h.subj.beats(), h.onBeat); err != nil {
		return nil, milepost.Wrap("servers: new hub", milepost.KindUnavailable, err)
	}
	return h, nil
}

// Close gives all servers back; Members hears that they are gone.
func (h *Hub) Close() {
	_ = h.sub.Unsubscribe() // fails only on a closed connection
	h.cancel()
	h.mu.Lock()
	h.seen = nil
	h.mu.Unlock()
	h.wg.Wait()
}

func (h *Hub) onBeat(m *nats.Msg) {
	var b wireBeat
	version, err := messages.DecodeAny(m.Header, m.Data, &b)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen == nil {
		return
	}
	if version != 0 && version != wireVersion && !h.foreign[version] {
		h.foreign[version] = true
		h.say(fmt.Sprintf("the server %s speaks version %d of the messages, this run version %d: servers of that version do not join; start them with the run's release", b.Name, version, wireVersion))
	}
	if err != nil || version != wireVersion || b.Name == "" {
		return
	}
	k := h.seen[b.Name]
	if k == nil {
		k = &keeper{name: b.Name, beats: make(chan wireBeat, 1)}
		h.seen[b.Name] = k
		h.wg.Go(func() { h.keep(k) })
	}
	select {
	case <-k.beats: // an older one that nobody has looked at
	default:
	}
	k.beats <- b
}

// keep follows a server until it is silent for good or the hub is closed.
func (h *Hub) keep(k *keeper) {
	joined := false
	var as wireBeat // that it joined with
	gone := func(why string) {
		if joined {
			joined = false
			h.members.Gone(k.name, why)
		}
	}
	silence := time.NewTimer(h.cfg.Lease)
	defer silence.Stop()
	for {
		select {
		case <-h.ctx.Done():
			if joined {
				h.free(k.name, "")
			}
			gone("the run is over")
			return
		case <-silence.C:
			if !h.nc.IsConnected() { // the run hears nobody: silence says nothing of the server
				silence.Reset(h.cfg.Lease)
				continue
			}
			gone(fmt.Sprintf("silent for %s", h.cfg.Lease))
			if h.leave(k) {
				return
			}
			silence.Reset(h.cfg.Lease)
		case b := <-k.beats:
			switch {
			case b.Drains && joined:
				ctx, cancel := context.WithTimeout(h.ctx, b.Drain)
				h.members.Drain(ctx, k.name)
				cancel()
				joined = false
				h.free(k.name, "")
			case b.Drains:
				if b.Run == h.run { // claimed, not taken in yet
					h.free(k.name, "")
				}
			case !b.Ready:
				gone("its server does not answer")
			case joined && (b.Offer != as.Offer || !b.Started.Equal(as.Started)):
				gone("it was started anew")
			case joined:
				if r, err := h.claim(k.name); err == nil && !r.Taken { // without an answer silence decides
					gone(r.Why)
				}
			case b.Run != "" && b.Run != h.run, b.Only != "" && b.Only != h.run:
			default:
				joined, as = h.join(k, b.Offer), b
			}
			silence.Reset(h.cfg.Lease) // joining takes its time
		}
	}
}

// leave ends the keeper of a silent server, unless it has spoken at the last moment.
func (h *Hub) leave(k *keeper) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(k.beats) > 0 {
		return false
	}
	delete(h.seen, k.name)
	return true
}

// join claims a server and takes it in. Where it cannot be taken in now the claim stays, and the next heartbeat tries again.
func (h *Hub) join(k *keeper, o Offer) bool {
	name := k.name
	if r, err := h.claim(name); err != nil || !r.Taken {
		return false
	}
	ctx, cancel := context.WithTimeout(h.ctx, h.cfg.Lease/2) // nobody repeats the claim meanwhile
	defer cancel()
	err := h.members.Join(ctx, name, o)
	switch kind := milepost.KindOf(err); {
	case err == nil:
		k.why = ""
		return true
	case h.ctx.Err() != nil: // the keeper ends
	case ctx.Err() != nil, kind == milepost.KindUnavailable, kind == milepost.KindTimeout, kind == milepost.KindCanceled:
		if k.why != err.Error() {
			k.why = err.Error()
			h.say(fmt.Sprintf("the server %s at %s cannot join yet: %v", name, o.URL, err))
		}
	default:
		h.say(fmt.Sprintf("the server %s at %s is refused: %v", name, o.URL, err))
		h.free(name, err.Error())
	}
	return false
}

// claim says that the run wants the server, or still does.
func (h *Hub) claim(name string) (wireReply, error) { return h.ask(h.ctx, name, wireClaim{}) }

// free gives the server back.
func (h *Hub) free(name, reason string) {
	_, _ = h.ask(context.WithoutCancel(h.ctx), name, wireClaim{Free: true, Reason: reason}) // else the claim lapses
}

func (h *Hub) ask(ctx context.Context, name string, c wireClaim) (r wireReply, err error) {
	c.V, c.Run, c.Epoch = wireVersion, h.run, h.epoch
	m, err := messages.Encode(h.subj.claim(name), c)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Heartbeat)
	defer cancel()
	answer, err := h.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return r, milepost.Wrap("servers: claim", milepost.KindUnavailable, err)
	}
	return r, messages.Decode(wireVersion, answer.Header, answer.Data, &r)
}

package evaluate

import (
	"context"
	"sync"
	"sync/atomic"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// Meter stands between agent loop and model and keeps what an episode does not: what the endpoint said that conversations
// cost, and with which kind of failure they broke. It is safe for concurrent use; an episode's entry stays until Take.
type Meter struct {
	model    rollout.Model
	answered atomic.Bool // some turn of some conversation succeeded
	mu       sync.Mutex
	tallies  map[string]Tally // by session
}

// Tally is what the meter heard of one conversation.
type Tally struct {
	Usage *rollout.Usage // nil where the model tells none, or not of every turn
	Err   error          // of the model, that ended the conversation; nil where none did
	Fatal bool           // no other attempt can fare better: no such model, access denied, or the first request of all was refused
}

// NewMeter listens to a model.
func NewMeter(m rollout.Model) *Meter { return &Meter{model: m, tallies: map[string]Tally{}} }

// Take returns and forgets what was heard of a session.
func (m *Meter) Take(session string) Tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tallies[session]
	delete(m.tallies, session)
	return t
}

// Open implements rollout.Model.
func (m *Meter) Open(ctx context.Context, o rollout.Opening) (rollout.Conversation, error) {
	c, err := m.model.Open(ctx, o)
	if err != nil {
		m.fault(o.Session, err)
		return nil, err
	}
	return &metered{Conversation: c, meter: m, session: o.Session}, nil
}

// fault keeps the failure of a conversation.
func (m *Meter) fault(session string, err error) {
	kind := milepost.KindOf(err)
	if kind == milepost.KindLimit || kind == milepost.KindCanceled || kind == milepost.KindTimeout {
		return // the episode's own end
	}
	fatal := kind == milepost.KindNotFound || kind == milepost.KindDenied || kind == milepost.KindInvalid && !m.answered.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tallies[session]
	t.Err, t.Fatal = err, fatal
	m.tallies[session] = t
}

// metered is one conversation; used by one goroutine.
type metered struct {
	rollout.Conversation
	meter   *Meter
	session string
}

func (c *metered) Next(ctx context.Context) (rollout.Turn, error) {
	turn, err := c.Conversation.Next(ctx)
	if err != nil {
		c.meter.fault(c.session, err)
	} else {
		c.meter.answered.Store(true)
	}
	return turn, err
}

func (c *metered) Observe(ctx context.Context, r rollout.ToolResult) error {
	err := c.Conversation.Observe(ctx, r)
	if err != nil {
		c.meter.fault(c.session, err)
	}
	return err
}

// Endpoint implements rollout.Endpointer; "" where the model names none.
func (c *metered) Endpoint() string {
	if e, ok := c.Conversation.(rollout.Endpointer); ok {
		return e.Endpoint()
	}
	return ""
}

// Close takes down the usage.
func (c *metered) Close() error {
	if u, ok := c.Conversation.(rollout.Metered); ok {
		if usage := u.Usage(); usage.Told {
			c.meter.mu.Lock()
			t := c.meter.tallies[c.session]
			t.Usage = &usage
			c.meter.tallies[c.session] = t
			c.meter.mu.Unlock()
		}
	}
	return c.Conversation.Close()
}

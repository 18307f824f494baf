package shadow

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/messages"
)

// A request that cannot be read, or that was handed out too often without a result, is set aside: copied byte for byte into
// the dead-letter stream, with the reason, for a person to look at. Nobody waits for it there. The probe itself has ended
// (untrusted), or the prober publishes it again when it misses the request.

// Headers of a dead letter and of its replay.
const (
	reasonHeader = "Milepost-Reason" // why it was set aside
	workerHeader = "Milepost-Worker" // by whom
	replayHeader = "Milepost-Replay" // of a replay: the dead letter's number
)

// deadLetter keeps a copy of a request under P.dead.KIND.RUN.
func (w *Worker) deadLetter(ctx context.Context, m jetstream.Msg, why string) {
	subject := strings.Replace(m.Subject(), w.names("any").requests(), w.cfg.Streams.Prefix+".dead.", 1)
	out := nats.NewMsg(subject)
	out.Data = m.Data()
	out.Header.Set(messages.SumHeader, m.Headers().Get(messages.SumHeader))
	out.Header.Set(reasonHeader, strings.Join(strings.Fields(why), " "))
	out.Header.Set(workerHeader, w.cfg.Name)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := w.js.PublishMsg(ctx, out); err != nil {
		w.onErr(milepost.E("shadow: dead letter", milepost.KindUnavailable, "%s: %w", subject, err))
	}
}

// DeadLetter is a request that was set aside.
type DeadLetter struct {
	Seq    uint64             `json:"seq"` // its number, by which it is shown and replayed
	Time   time.Time          `json:"time"`
	Kind   milepost.ProbeKind `json:"kind"`
	Run    string             `json:"run"` // as a subject token where the request cannot be read
	Reason string             `json:"reason"`
	Worker string             `json:"worker,omitempty"` // that set it aside
	Bytes  int                `json:"bytes"`
	Fault  string             `json:"fault,omitempty"` // why it cannot be read; the following are empty then

	ID      string                `json:"id,omitempty"` // of the request: EPISODE/STEP, EPISODE/verdict or TASK/baseline
	Task    string                `json:"task,omitempty"`
	Epoch   uint64                `json:"epoch,omitempty"`
	Attempt int                   `json:"attempt,omitempty"`
	Tree    string                `json:"tree,omitempty"`
	Delta   []milepost.TreeChange `json:"delta,omitempty"`
	Body    []byte                `json:"body,omitempty"` // the message; only from Get
}

// DeadFilter chooses dead letters; zero fields choose all.
type DeadFilter struct {
	Run    string
	Kind   milepost.ProbeKind
	ID     string    // a part of the request's id
	Reason string    // a part of the reason
	After  time.Time // set aside then or later
}

func (f DeadFilter) subject(prefix string) string {
	run, kind := "*", "*"
	if f.Run != "" {
		run = messages.SafeToken(f.Run)
	}
	if f.Kind != "" {
		kind = string(f.Kind)
	}
	return prefix + ".dead." + kind + "." + run
}

func (f DeadFilter) matches(d *DeadLetter) bool {
	return strings.Contains(d.ID, f.ID) && strings.Contains(d.Reason, f.Reason) && !d.Time.Before(f.After)
}

// DeadLetters is the dead-letter stream of a server.
type DeadLetters struct {
	js     jetstream.JetStream
	prefix string
	stream jetstream.Stream
}

// OpenDead opens the stream under the prefix. Errors: KindNotFound where no run has used the prefix, KindUnavailable.
func OpenDead(ctx context.Context, nc *nats.Conn, prefix string) (*DeadLetters, error) {
	const op = "shadow: dead letters"
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	s, err := js.Stream(ctx, newNames(prefix, "any").deadLetters())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, milepost.E(op, milepost.KindNotFound, "the server has no streams under the prefix %q: no run or worker has used it", prefix)
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return &DeadLetters{js, prefix, s}, nil
}

// List returns the dead letters that f chooses, oldest first, without bodies. Errors: KindInvalid, KindUnavailable.
func (d *DeadLetters) List(ctx context.Context, f DeadFilter) ([]DeadLetter, error) {
	const op = "shadow: list dead letters"
	if f.Kind != "" && kindIndex(f.Kind) < 0 {
		return nil, milepost.E(op, milepost.KindInvalid, "kind %q is not one of %v", f.Kind, kinds)
	}
	info, err := d.stream.Info(ctx, jetstream.WithSubjectFilter(f.subject(d.prefix)))
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if len(info.State.Subjects) == 0 {
		return nil, nil
	}
	c, err := d.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{f.subject(d.prefix)}})
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	var out []DeadLetter
	for {
		m, err := c.Next(jetstream.FetchMaxWait(5 * time.Second))
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindCorrupt, err)
		}
		l, _ := d.read(m.Subject(), m.Headers(), m.Data())
		l.Seq, l.Time = meta.Sequence.Stream, meta.Timestamp
		if f.matches(&l) {
			out = append(out, l)
		}
		if meta.NumPending == 0 {
			return out, nil
		}
	}
}

// Get returns one dead letter with its body. Errors: KindNotFound, KindUnavailable.
func (d *DeadLetters) Get(ctx context.Context, seq uint64) (*DeadLetter, error) {
	l, _, _, err := d.get(ctx, seq)
	return l, err
}

func (d *DeadLetters) get(ctx context.Context, seq uint64) (*DeadLetter, *wireRequest, *jetstream.RawStreamMsg, error) {
	const op = "shadow: read dead letter"
	m, err := d.stream.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil, nil, milepost.E(op, milepost.KindNotFound, "there is no dead letter %d", seq)
	}
	if err != nil {
		return nil, nil, nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	l, req := d.read(m.Subject, m.Header, m.Data)
	l.Seq, l.Time, l.Body = m.Sequence, m.Time, m.Data
	return &l, req, m, nil
}

// read makes what can be made of a dead letter; req is nil where its request cannot be read.
func (d *DeadLetters) read(subject string, h nats.Header, body []byte) (l DeadLetter, req *wireRequest) {
	l = DeadLetter{Reason: h.Get(reasonHeader), Worker: h.Get(workerHeader), Bytes: len(body)}
	if parts := strings.Split(strings.TrimPrefix(subject, d.prefix+".dead."), "."); len(parts) == 2 {
		l.Kind, l.Run = milepost.ProbeKind(parts[0]), parts[1]
	}
	req = &wireRequest{}
	if err := decode(h, body, req); err != nil {
		l.Fault = err.Error()
		return l, nil
	}
	l.Run, l.ID, l.Epoch, l.Attempt, l.Tree, l.Delta = req.Run, req.ID, req.Epoch, req.Attempt, req.Tree, req.Delta
	if len(req.TaskBody) > 0 {
		if t, err := parseTask(req.Task, req.TaskBody); err == nil {
			l.Task = t.ID
		}
	}
	return l, req
}

// Replay publishes a dead letter's request once more and, unless keep is set, deletes the dead letter. Its result changes no
// probe that is final: it is there for later requests of the same state, and for a person to see whether what was wrong is
// mended. A replay that is refused or fails leaves the dead letter where it is. Errors: KindNotFound, KindCorrupt for a
// request that cannot be read (it would only be set aside again), KindConflict where the run has a newer epoch, which
// ignores the result, or where it was replayed within the last two minutes; KindUnavailable.
func (d *DeadLetters) Replay(ctx context.Context, seq uint64, keep bool) (*DeadLetter, error) {
	const op = "shadow: replay dead letter"
	l, req, m, err := d.get(ctx, seq)
	if err != nil {
		return nil, err
	}
	if req == nil {
		return nil, milepost.E(op, milepost.KindCorrupt, "dead letter %d cannot be read, a worker would only set it aside again: %s", seq, l.Fault)
	}
	n := newNames(d.prefix, req.Run)
	epoch, err := readEpoch(ctx, d.js, n)
	if err != nil {
		return nil, err
	}
	if epoch != req.Epoch {
		return nil, milepost.E(op, milepost.KindConflict, "dead letter %d is of epoch %d of run %s, which is in epoch %d now and ignores its result", seq, req.Epoch, req.Run, epoch)
	}
	out := nats.NewMsg(n.probe(l.Kind))
	out.Data = m.Data
	out.Header.Set(messages.SumHeader, m.Header.Get(messages.SumHeader))
	out.Header.Set(replayHeader, fmt.Sprint(seq))
	ack, err := d.js.PublishMsg(ctx, out, jetstream.WithMsgID(fmt.Sprintf("replay/%d/%d", seq, m.Time.UnixNano())), jetstream.WithExpectStream(n.probes()))
	if err != nil {
		return nil, milepost.E(op, milepost.KindUnavailable, "dead letter %d: %w", seq, err)
	}
	if ack.Duplicate && keep {
		return nil, milepost.E(op, milepost.KindConflict, "dead letter %d was replayed within the last two minutes", seq)
	}
	if !keep { // a duplicate is a replay that was interrupted here
		if err := d.stream.DeleteMsg(ctx, seq); err != nil {
			return nil, milepost.E(op, milepost.KindUnavailable, "dead letter %d was replayed and could not be deleted: %w", seq, err)
		}
	}
	return l, nil
}

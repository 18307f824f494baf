package shadow

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
)

// claim makes this epoch the owner of the run's results. First it writes its epoch, by compare and swap, where an older
// epoch finds it; then it ends the older ones' consumers, purges the requests and results they left and makes its own
// consumer. An older prober that loses its consumer claims again, finds the newer epoch and stops. Errors: KindConflict
// where a newer epoch owns the run, KindUnavailable.
func claim(ctx context.Context, js jetstream.JetStream, n names, epoch uint64, ackWait time.Duration) (jetstream.Consumer, error) {
	const op = "shadow: claim run"
	if err := writeEpoch(ctx, js, n, epoch); err != nil {
		return nil, err
	}
	results, err := js.Stream(ctx, n.results())
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	mine, err := results.Consumer(ctx, n.resultConsumer(epoch))
	if err == nil {
		return mine, nil // this epoch had it before the connection broke
	}
	probes, err := js.Stream(ctx, n.probes())
	if err == nil {
		err = probes.Purge(ctx, jetstream.WithPurgeSubject(n.allProbes()))
	}
	if err == nil {
		err = results.Purge(ctx, jetstream.WithPurgeSubject(n.resultFilter()))
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	for range 10 { // an older epoch that had read before this one wrote may make its consumer once more
		if err := endOlder(ctx, results, n, epoch); err != nil {
			return nil, err
		}
		mine, err = results.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: n.resultConsumer(epoch), FilterSubject: n.resultFilter(),
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: -1, InactiveThreshold: time.Hour})
		var api *jetstream.APIError
		if !errors.As(err, &api) || api.ErrorCode != notUnique {
			break
		}
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return mine, nil
}

// notUnique is the server's code for a consumer of a work queue whose subjects another one has already.
const notUnique jetstream.ErrorCode = 10100

// writeEpoch makes epoch the run's, unless it is already or a newer one is (KindConflict).
func writeEpoch(ctx context.Context, js jetstream.JetStream, n names, epoch uint64) error {
	const op = "shadow: claim run"
	s, err := js.Stream(ctx, n.epochs())
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	for range 10 {
		have, seq, err := lastEpoch(ctx, s, n)
		if err != nil {
			return err
		}
		if have > epoch {
			return milepost.E(op, milepost.KindConflict, "epoch %d of the run is older than epoch %d, which owns it now", epoch, have)
		}
		if have == epoch {
			return nil
		}
		_, err = js.Publish(ctx, n.epoch(), strconv.AppendUint(nil, epoch, 10), jetstream.WithExpectLastSequencePerSubject(seq))
		if err == nil {
			return nil
		}
		var api *jetstream.APIError
		if !errors.As(err, &api) || api.ErrorCode != jetstream.JSErrCodeStreamWrongLastSequence &&
			api.ErrorCode != jetstream.JSErrCodeStreamWrongLastSequenceConstant { // the latter on replicated streams
			break
		} // another claim came between: look again
	}
	return milepost.Wrap(op, milepost.KindUnavailable, err)
}

// readEpoch returns the epoch that owns a run, 0 where none ever did. Errors: KindUnavailable, KindCorrupt.
func readEpoch(ctx context.Context, js jetstream.JetStream, n names) (uint64, error) {
	s, err := js.Stream(ctx, n.epochs())
	if err != nil {
		return 0, milepost.Wrap("shadow: read epoch", milepost.KindUnavailable, err)
	}
	epoch, _, err := lastEpoch(ctx, s, n)
	return epoch, err
}

// lastEpoch returns the run's epoch and the number of the message that says so; zeros where there is none.
func lastEpoch(ctx context.Context, s jetstream.Stream, n names) (epoch, seq uint64, err error) {
	const op = "shadow: read epoch"
	m, err := s.GetLastMsgForSubject(ctx, n.epoch())
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if epoch, err = strconv.ParseUint(string(m.Data), 10, 64); err != nil {
		return 0, 0, milepost.E(op, milepost.KindCorrupt, "the run's epoch on the server is %q, not a number", m.Data)
	}
	return epoch, m.Sequence, nil
}

// endOlder deletes the result consumers of the run's other epochs, which are older: writeEpoch has made sure of it.
func endOlder(ctx context.Context, results jetstream.Stream, n names, epoch uint64) error {
	const op = "shadow: claim run"
	list := results.ConsumerNames(ctx)
	var older []string
	for name := range list.Name() {
		digits, ok := strings.CutPrefix(name, n.run+"-")
		if _, err := strconv.ParseUint(digits, 10, 64); ok && err == nil && digits != fmt.Sprint(epoch) {
			older = append(older, name)
		}
	}
	if err := list.Err(); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	for _, name := range older {
		if err := results.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
	}
	return nil
}

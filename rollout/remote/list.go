package remote

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
)

// ListWorkers listens for wait, which should be a few heartbeats, and returns the rollout workers heard, by name. Errors:
// KindUnavailable, KindCanceled, KindCorrupt for a heartbeat that cannot be read.
func ListWorkers(ctx context.Context, nc *nats.Conn, prefix string, wait time.Duration) ([]WorkerInfo, error) {
	const op = "remote: list workers"
	sub, err := nc.SubscribeSync(subjects(prefix).workers())
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
		w, err := readHeartbeat(m)
		if err != nil {
			return nil, err
		}
		seen[w.Name] = w.WorkerInfo
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

package servers

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost/internal/messages"
)

// ListWorkers listens for wait, which should be a few heartbeats, and returns the servers heard, by name. Errors:
// KindUnavailable, KindCanceled, KindCorrupt for a heartbeat that cannot be read.
func ListWorkers(ctx context.Context, nc *nats.Conn, prefix string, wait time.Duration) ([]messages.WorkerInfo, error) {
	return messages.ListWorkers(ctx, nc, subjects(prefix).beats(), wait)
}

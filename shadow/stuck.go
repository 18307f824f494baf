package shadow

import (
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
)

// A server may take connections and store nothing: its disk is full, or too few servers of its cluster are up. All that a
// client sees is requests that nobody answers, so the run says what a person should look at. It goes on trying meanwhile.

// stuckFor is how long nothing must have been stored for the run to say so, and how often it says so again.
const stuckFor = 2 * publishBound

// restartAdvice is what to do about it. nats-server 2.15 refuses all writes to a stream once one failed for want of room,
// until it is started anew; the embedded server is started anew by itself (Server.watch).
const restartAdvice = "look for a full disk or a reached max_store on the server, or for servers of its cluster that are down; " +
	"once there is room, restart nats-server: after a full disk it refuses writes until then. " +
	"Nothing is lost meanwhile: what could not be stored is sent again"

// refusals is since when nothing could be stored, and when that was last said; zero where all is well.
type refusals struct{ since, said time.Time }

// refused takes note of a failed try to publish and returns what is to be said about it, nil if nothing yet.
func (r *refusals) refused(err error, now time.Time) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && strings.HasPrefix(api.Description, "maximum ") {
		return nil // the queue is full (max_requests), which workers mend
	}
	if r.since.IsZero() {
		r.since, r.said = now, now
	}
	if now.Sub(r.said) < stuckFor {
		return nil
	}
	r.said = now
	return milepost.E("shadow: server", milepost.KindUnavailable, "connected, but nothing could be stored for %s: %s", now.Sub(r.since).Round(time.Second), restartAdvice)
}

package shadow

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
)

// reasonHeader says, in the dead-letter stream, why a request was set aside.
const reasonHeader = "Milepost-Reason"

// deadLetter keeps a copy of a request, byte for byte, in the dead-letter stream under P.dead.KIND.RUN.
func (w *Worker) deadLetter(ctx context.Context, m jetstream.Msg, why string) {
	subject := strings.Replace(m.Subject(), w.cfg.Streams.Prefix+".probe.", w.cfg.Streams.Prefix+".dead.", 1)
	out := nats.NewMsg(subject)
	out.Data = m.Data()
	out.Header.Set(sumHeader, m.Headers().Get(sumHeader))
	out.Header.Set(reasonHeader, strings.Join(strings.Fields(why), " "))
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := w.js.PublishMsg(ctx, out); err != nil {
		w.onErr(milepost.E("shadow: dead letter", milepost.KindUnavailable, "%s: %w", subject, err))
	}
}

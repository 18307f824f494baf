package shadow

import (
	"context"
	"encoding/json"
	"io"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/internal/messages"
)

// BaseExporter gives base repositories away; *repo.Store is one.
type BaseExporter interface {
	Base(ctx context.Context, task *milepost.Task) (*repo.Base, error)
	Export(ctx context.Context, b *repo.Base, w io.Writer) error
}

// onBaseAsk answers a worker that lacks a base repository, in the background: making the archive may take long.
func (p *Prober) onBaseAsk(m *nats.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped != nil {
		return // the worker's request times out, or a newer epoch answers
	}
	p.wg.Go(func() {
		reply := messages.BaseReply{V: messages.BaseVersion}
		if name, err := p.putBase(m); err != nil {
			reply.Error = err.Error()
			p.report(err)
		} else {
			reply.Object = name
		}
		if out, err := messages.Encode(m.Reply, reply); err == nil {
			p.report(milepost.Wrap("shadow: answer for a base", milepost.KindUnavailable, p.nc.PublishMsg(out)))
		}
	})
}

// putBase uploads the archive that m asks for and returns the object's name.
func (p *Prober) putBase(m *nats.Msg) (string, error) {
	const op = "shadow: base archive"
	var ask messages.BaseAsk
	if err := messages.Decode(messages.BaseVersion, m.Header, m.Data, &ask); err != nil {
		return "", err
	}
	task, err := p.task(ask.Task)
	switch {
	case p.opts.bases == nil:
		return "", milepost.E(op, milepost.KindInvalid, "the orchestrator gives no base repositories away (WithBases)")
	case err != nil || task.BaseTree != ask.Tree:
		return "", milepost.E(op, milepost.KindNotFound, "task %q with base tree %q is not of this run", ask.Task, ask.Tree)
	}
	ctx, cancel := context.WithTimeout(p.ctx, messages.BaseBound)
	defer cancel()
	name := messages.BaseObject(ask.Tree)
	if ask.Again {
		p.objs.Forget(name)
	}
	return name, p.objs.Upload(ctx, name, func() (io.ReadCloser, error) {
		b, err := p.opts.bases.Base(ctx, task)
		if err != nil {
			return nil, err
		}
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(p.opts.bases.Export(ctx, b, w)) }() // ends with the upload, which closes r
		return r, nil
	})
}

// parseTask reads the wire form of a task, given its sum. Errors: KindCorrupt.
func parseTask(sum string, body json.RawMessage) (*milepost.Task, error) {
	const op = "shadow: read task"
	if got := messages.HashHex(body); got != sum {
		return nil, milepost.E(op, milepost.KindCorrupt, "task %s has the body of %s", sum, got)
	}
	var t milepost.Task
	if err := json.Unmarshal(body, &t); err != nil {
		return nil, milepost.E(op, milepost.KindCorrupt, "task %s: %w", sum, err)
	}
	return &t, nil
}

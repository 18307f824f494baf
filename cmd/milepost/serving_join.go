package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/rollout/servers"
)

// accept lets servers on other machines (milepost worker serve) join the run over its messenger, until stop.
func (s *serving) accept(nc *nats.Conn, run string, epoch uint64, model string) (stop func(), err error) {
	shape, vocab, err := modelShape(model)
	if err != nil {
		return nil, err
	}
	members := &joined{serving: s, want: servers.Offer{Model: shape, Vocab: vocab}}
	hub, err := servers.NewHub(s.cfg.Serve, nc, s.cfg.Probes.Prober.Streams.Prefix, run, epoch, members, s.say)
	if err != nil {
		return nil, err
	}
	if len(s.cfg.Server.URLs) == 0 && s.cfg.Server.Replicas == 0 {
		s.say("waiting for servers to join: milepost worker serve --nats " + nc.ConnectedUrlRedacted())
	}
	watch, cancel := context.WithCancel(s.ctx)
	s.work.Go(func() { s.watch(watch) })
	return func() { hub.Close(); cancel() }, nil
}

// joined implements servers.Members by the replicas of a serving.
type joined struct {
	*serving
	want servers.Offer // what of an offer is the run's model's
}

// Join implements servers.Members.
func (j *joined) Join(ctx context.Context, name string, o servers.Offer) error {
	const op = "join run"
	switch {
	case o.Vocab != 0 && o.Vocab != j.want.Vocab:
		return milepost.E(op, milepost.KindConflict, "its model has a vocabulary of %d tokens, the run's %d", o.Vocab, j.want.Vocab)
	case o.Model != "" && o.Model != j.want.Model:
		return milepost.E(op, milepost.KindConflict, "its model has another shape, tokenizer or chat template than the run's (SHA-256 %.12s, the run's %.12s)", o.Model, j.want.Model)
	}
	client, err := vllm.New(vllm.Config{URL: o.URL, Model: j.pool.Config().Model})
	if err != nil {
		return err
	}
	defer client.CloseIdle()
	if err := client.Health(ctx); err != nil {
		return milepost.E(op, milepost.KindUnavailable, "the run does not reach it: %w", err)
	}
	if err := j.model.Fits(ctx, client); err != nil {
		return err
	}
	j.mu.Lock()
	r, err := j.place(name, client.URL())
	j.mu.Unlock()
	if err != nil {
		return err
	}
	j.say(fmt.Sprintf("%s joins, at %s", j.label(r), r.url))
	j.ready(r)
	return nil
}

// place is the replica that a joiner becomes. One at its address that was started here is another server; one that joined and is
// up may be the joiner itself, started anew under another name, so it is asked again once the old one's lease is over. mu is held.
func (j *joined) place(name, url string) (own *replica, err error) {
	const op = "join run"
	for _, r := range j.replicas {
		switch {
		case r.started && r.name == name:
			return nil, milepost.E(op, milepost.KindConflict, "%s is the name of a server that the run started itself; give another --name", name)
		case r.started && r.url == url:
			return nil, milepost.E(op, milepost.KindConflict, "%s is the address of %s, which the run started itself", url, r.name)
		case r.name == name:
			own = r
		case r.url == url && (r.up || r.lost == nil): // also while it drains
			return nil, milepost.E(op, milepost.KindUnavailable, "%s is the address of %s until that one leaves or its lease is over", url, r.name)
		}
	}
	if own == nil {
		own = &replica{name: name}
		j.replicas = append(j.replicas, own)
	}
	own.url = url
	return own, nil
}

// Gone implements servers.Members.
func (j *joined) Gone(name, why string) {
	if r := j.named(name); r != nil {
		j.say(fmt.Sprintf("%s is gone: %s", j.label(r), why))
		j.down(r)
		j.lose(r, milepost.E("serve", milepost.KindUnavailable, "%s is gone: %s", j.label(r), why))
	}
}

// Drain implements servers.Members.
func (j *joined) Drain(ctx context.Context, name string) {
	r := j.named(name)
	if r == nil {
		return
	}
	j.say(fmt.Sprintf("%s leaves; its requests end first", j.label(r)))
	j.mu.Lock()
	r.forget()
	r.up = false // no push any more
	j.mu.Unlock()
	j.pool.Drain(ctx, r.url)
	j.lose(r, errors.New("it left"))
}

func (j *joined) named(name string) *replica {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.replicas {
		if r.name == name && !r.started {
			return r
		}
	}
	return nil
}

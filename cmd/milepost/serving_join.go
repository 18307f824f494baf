package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	i := slices.IndexFunc(j.replicas, func(r *replica) bool { return r.name == name })
	if slices.ContainsFunc(j.replicas, func(r *replica) bool { return r.url == client.URL() && r.name != name }) {
		j.mu.Unlock()
		return milepost.E(op, milepost.KindConflict, "%s is another replica's address", client.URL())
	}
	if i < 0 {
		i = len(j.replicas)
		j.replicas = append(j.replicas, &replica{name: name})
	}
	r := j.replicas[i]
	r.url = client.URL()
	j.mu.Unlock()
	j.say(fmt.Sprintf("%s joins, at %s", j.label(r), r.url))
	j.ready(r)
	return nil
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

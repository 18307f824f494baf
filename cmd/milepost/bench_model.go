package main

import (
	"context"
	"math/rand/v2"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// slowModel gives a scripted model the time that an endpoint takes: before each turn it sleeps between .75 and 1.25 times
// turn, drawn by the conversation's seed, so that the same episode is as slow in every batch and the episodes of a batch
// do not march in step.
type slowModel struct {
	rollout.Model
	turn time.Duration
}

// Open opens the scripted model's conversation.
func (m slowModel) Open(ctx context.Context, o rollout.Opening) (rollout.Conversation, error) {
	c, err := m.Model.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return slowConversation{c, m.turn, rand.New(rand.NewPCG(uint64(o.Seed), 0x736c6f77))}, nil
}

type slowConversation struct {
	rollout.Conversation
	turn time.Duration
	rng  *rand.Rand
}

// Next sleeps, then takes the script's next turn.
func (c slowConversation) Next(ctx context.Context) (rollout.Turn, error) {
	timer := time.NewTimer(time.Duration((.75 + .5*c.rng.Float64()) * float64(c.turn)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return c.Conversation.Next(ctx)
	case <-ctx.Done():
		return rollout.Turn{}, milepost.Wrap("bench: turn", milepost.KindCanceled, ctx.Err())
	}
}

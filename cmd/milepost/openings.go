package main

import (
	"context"
	"sync"

	"github.com/milepost-rl/milepost/rollout"
)

// openings is a model that remembers how conversations opened, by episode, for writing them down as they were.
type openings struct {
	rollout.Model
	mu  sync.Mutex
	all map[string][]rollout.Message
}

// Open opens a conversation of the model beneath.
func (o *openings) Open(ctx context.Context, opening rollout.Opening) (rollout.Conversation, error) {
	o.mu.Lock()
	if o.all == nil {
		o.all = map[string][]rollout.Message{}
	}
	o.all[opening.Session] = opening.Messages
	o.mu.Unlock()
	return o.Model.Open(ctx, opening)
}

// of returns how an episode opened; nil where it never did.
func (o *openings) of(episode string) []rollout.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[episode]
}

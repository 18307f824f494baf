package policy

import (
	"context"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/rollout"
)

// conversation is one token-exact conversation; used by one goroutine.
type conversation struct {
	model *TokenModel
	o     rollout.Opening
	room  int // most tokens of prompt and sample together

	seq      sequence
	turns    int
	sampled  int
	endpoint string
}

var _ rollout.Endpointer = (*conversation)(nil)

// Next samples one turn after everything so far.
func (c *conversation) Next(ctx context.Context) (rollout.Turn, error) {
	const op = "policy: next"
	prompt := c.seq.s.Tokens
	most := min(c.o.Sampling.MaxTurnTokens, c.room-len(prompt))
	if most < 1 {
		return rollout.Turn{}, milepost.E(op, milepost.KindLimit, "the history has %d tokens, the context %d", len(prompt), c.room)
	}
	if c.o.MaxTokens > 0 {
		if most = min(most, c.o.MaxTokens-c.sampled); most < 1 {
			return rollout.Turn{}, milepost.E(op, milepost.KindLimit, "the episode's budget of %d sampled tokens is spent", c.o.MaxTokens)
		}
	}
	p := vllm.Params{
		Temperature: c.o.Sampling.Temperature, TopP: c.o.Sampling.TopP, MaxTokens: most,
		Stop: []int32{c.model.template.end},
	}
	if c.model.cfg.Seeds {
		seed := turnSeed(c.o.Seed, c.turns)
		p.Seed = &seed
	}
	var g *vllm.Generation
	endpoint, err := c.model.pool.Do(ctx, c.o.Session, func(ctx context.Context, v *vllm.Client) (err error) {
		if c.model.cfg.API == APIGenerate {
			g, err = v.Generate(ctx, c.o.Session, prompt, p)
		} else {
			g, err = v.Complete(ctx, c.o.Session, prompt, p)
		}
		if err == nil && (len(g.IDs) == 0 || len(g.IDs) > most) {
			err = milepost.E(op, milepost.KindCorrupt, "%s sampled %d tokens, asked for 1 to %d", v.URL(), len(g.IDs), most)
		}
		return scaleOut(c.model.cfg.API, err)
	})
	if err != nil {
		return rollout.Turn{}, err
	}
	c.endpoint = endpoint
	turn := rollout.Turn{Text: g.Text, Finish: rollout.FinishStop, Tokens: len(g.IDs)}
	if g.Finish == "length" {
		turn.Finish = rollout.FinishLength
	}
	turn.TokenStart, turn.TokenEnd = c.seq.sampled(g, c.turns)
	c.turns++
	c.sampled += len(g.IDs)
	return turn, nil
}

// Observe appends the tool message as the chat template writes it. A turn that did not end with the end-of-turn token
// (cut by length, or ended by another stop token) gets it first, as a token nobody sampled.
func (c *conversation) Observe(ctx context.Context, r rollout.ToolResult) error {
	t := c.model.template
	ids, err := t.segment(ctx, pooled{c.model, c.o.Session}, r.Tool, r.Text)
	if err != nil {
		return err
	}
	if c.seq.last() != t.end {
		c.seq.context(t.end)
	}
	c.seq.context(ids...)
	return nil
}

// Samples returns the one training sequence.
func (c *conversation) Samples() []milepost.Sample { return []milepost.Sample{c.seq.clone()} }

// Endpoint is the address of the server that answered last.
func (c *conversation) Endpoint() string { return c.endpoint }

// Close gives up the conversation's affinity to its endpoint.
func (c *conversation) Close() error {
	c.model.pool.Forget(c.o.Session)
	return nil
}

// turnSeed derives the seed of turn n (splitmix64), within 53 bits so that it survives any JSON reader.
func turnSeed(seed int64, n int) int64 {
	z := uint64(seed) + (uint64(n)+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64((z ^ z>>31) >> 11)
}

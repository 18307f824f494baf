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

	opening []int32
	marks   map[int32]int // control tokens of a segment
	history []tokenTurn
	fates   []rollout.Fate // of the history in seq; turns behind its end are kept

	done     []milepost.Sample // sequences that the condenser ended
	seq      sequence          // the one that goes on
	turns    int
	sampled  int
	endpoint string
}

var _ rollout.Endpointer = (*conversation)(nil)

// tokenTurn is one turn of the history: ids that were sampled, and what answered them.
type tokenTurn struct {
	sampled  []int32
	segment  []int32 // the end-of-turn token where it was not sampled, then the observation as the template writes it
	observed rollout.ToolResult
	masked   []int32 // segment with the observation masked; nil before it was needed
}

// Next samples one turn after what the condenser leaves of the history.
func (c *conversation) Next(ctx context.Context) (rollout.Turn, error) {
	const op = "policy: next"
	seq, fates, err := c.condensed(ctx)
	if err != nil {
		return rollout.Turn{}, err
	}
	prompt := seq.s.Tokens
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
		Stop: []int32{c.model.template.end}, Routes: c.model.cfg.Routes, RoutesFrom: seq.s.Routes.Tokens(),
	}
	if c.model.cfg.Seeds {
		seed := turnSeed(c.o.Seed, c.turns)
		p.Seed = &seed
	}
	g, endpoint, err := c.model.pool.Sample(ctx, c.o.Session, func(ctx context.Context, v *vllm.Client, salt string) (g *vllm.Generation, err error) {
		p := p
		if c.model.cfg.PrefixCache == PrefixSalt {
			p.Salt = salt
		}
		if c.model.cfg.API == APIGenerate {
			g, err = v.Generate(ctx, c.o.Session, prompt, p)
		} else {
			g, err = v.Complete(ctx, c.o.Session, prompt, p)
		}
		if err == nil && (len(g.IDs) == 0 || len(g.IDs) > most) {
			err = milepost.E(op, milepost.KindCorrupt, "%s sampled %d tokens, asked for 1 to %d", v.URL(), len(g.IDs), most)
		}
		if err == nil {
			err = seq.fits(g)
		}
		return g, scaleOut(c.model.cfg.API, err)
	})
	if err != nil {
		return rollout.Turn{}, err
	}
	c.endpoint = endpoint
	c.goOn(seq, fates)
	turn := rollout.Turn{Text: g.Text, Finish: rollout.FinishStop, Tokens: len(g.IDs)}
	if g.Finish == "length" {
		turn.Finish = rollout.FinishLength
	}
	turn.Sample = len(c.done)
	turn.TokenStart, turn.TokenEnd = c.seq.sampled(g, c.turns)
	c.history = append(c.history, tokenTurn{sampled: g.IDs})
	c.turns++
	c.sampled += len(g.IDs)
	return turn, nil
}

// Observe appends the observation's message as the chat template writes it. A turn that did not end with the end-of-turn
// token (cut by length, or ended by another stop token) gets it first, as a token nobody sampled.
func (c *conversation) Observe(ctx context.Context, r rollout.ToolResult) error {
	last := &c.history[len(c.history)-1]
	last.observed = r
	var err error
	if last.segment, err = c.segment(ctx, last, r.Text); err != nil {
		return err
	}
	c.seq.context(last.segment...)
	return nil
}

// segment is what stands between a turn and the next one.
func (c *conversation) segment(ctx context.Context, turn *tokenTurn, text string) ([]int32, error) {
	t := c.model.template
	ids, err := t.segment(ctx, pooled{c.model, c.o.Session}, c.o.Answers, c.marks, turn.observed.Tool, text)
	if err == nil && turn.sampled[len(turn.sampled)-1] != t.end {
		ids = append([]int32{t.end}, ids...)
	}
	return ids, err
}

// condensed is the sequence that the next turn is sampled behind: the one under way, or a new one where the condenser takes
// something more out of the history. In a new one earlier samples are context: they were trained where they were sampled.
func (c *conversation) condensed(ctx context.Context) (*sequence, []rollout.Fate, error) {
	fates := c.o.Condenser.Fates(len(c.history))
	if !c.breaks(fates) {
		return &c.seq, c.fates, nil
	}
	seq := &sequence{}
	seq.context(c.opening...)
	for i := range c.history {
		turn := &c.history[i]
		segment := turn.segment
		switch fates[i] {
		case rollout.FateDropped:
			continue
		case rollout.FateMasked:
			if turn.masked == nil {
				var err error
				if turn.masked, err = c.segment(ctx, turn, rollout.Masked(turn.observed.Text)); err != nil {
					return nil, nil, err
				}
			}
			segment = turn.masked
		}
		seq.context(turn.sampled...)
		seq.context(segment...)
	}
	return seq, fates, nil
}

// breaks reports whether the fates change what is in the sequence under way.
func (c *conversation) breaks(fates []rollout.Fate) bool {
	for i, f := range fates {
		was := rollout.FateKept
		if i < len(c.fates) {
			was = c.fates[i]
		}
		if f != was {
			return true
		}
	}
	return false
}

// goOn makes seq the sequence under way. What stood behind the last sample of the one before trains nothing and is cut off.
func (c *conversation) goOn(seq *sequence, fates []rollout.Fate) {
	if seq == &c.seq {
		return
	}
	c.seq.trim()
	c.done = append(c.done, c.seq.s)
	c.seq, c.fates = *seq, fates
}

// Samples returns the training sequences in the order in which they were sampled: one, and one more for each time the
// condenser broke the prefix. Each sampled token is in one of them, behind the prompt it was sampled from.
func (c *conversation) Samples() []milepost.Sample {
	out := make([]milepost.Sample, 0, len(c.done)+1)
	for _, s := range c.done {
		out = append(out, (&sequence{s}).clone())
	}
	return append(out, c.seq.clone())
}

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

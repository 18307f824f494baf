package expert

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// script plays one conversation: it makes calls with p.do and returns when it wants to submit.
type script func(p *player) error

// Model is a scripted model. It is immutable and safe for concurrent use.
type Model struct {
	write func(o rollout.Opening) (script, error)
}

// player is the script's side of one conversation.
type player struct {
	rng      *rand.Rand
	yield    func(call) bool
	observed string
	closed   bool
}

// call is one tool call before it is rendered: arguments marshal to a JSON object whose keys keep their order.
type call struct {
	tool string
	args any
}

// do makes one call and returns its observation. After the conversation was closed it makes none and returns "".
func (p *player) do(tool string, args any) string {
	if p.closed || !p.yield(call{tool, args}) {
		p.closed = true
		return ""
	}
	return p.observed
}

// chance is true with the given probability.
func (p *player) chance(prob float64) bool { return p.rng.Float64() < prob }

// Open starts a conversation; the script's randomness comes from Opening.Seed alone. KindInvalid where the opening is
// not one the script can play.
func (m *Model) Open(_ context.Context, o rollout.Opening) (rollout.Conversation, error) {
	format, err := toolcall.New(o.Format, o.Tools)
	if err != nil {
		return nil, err
	}
	s, err := m.write(o)
	if err != nil {
		return nil, err
	}
	c := &conversation{format: format, player: &player{rng: rand.New(rand.NewPCG(uint64(o.Seed), 0x6d696c65))}}
	c.next, c.stop = iter.Pull(func(yield func(call) bool) {
		c.player.yield = yield
		c.err = s(c.player)
	})
	return c, nil
}

// conversation runs a script as a coroutine: one Next resumes it until its next call.
type conversation struct {
	format toolcall.Format
	player *player
	next   func() (call, bool)
	stop   func()
	err    error // of the script
}

// Next renders the script's next call; when the script is over, submit.
func (c *conversation) Next(ctx context.Context) (rollout.Turn, error) {
	const op = "expert: next"
	if err := ctx.Err(); err != nil {
		return rollout.Turn{}, milepost.Wrap(op, milepost.KindCanceled, err)
	}
	do, ok := c.next()
	if c.err != nil {
		return rollout.Turn{}, milepost.Wrap(op, milepost.KindInternal, c.err)
	}
	if !ok {
		do = call{"submit", struct{}{}}
	}
	args, err := json.Marshal(do.args)
	if err != nil {
		return rollout.Turn{}, milepost.Wrap(op, milepost.KindInternal, fmt.Errorf("arguments of %s: %w", do.tool, err))
	}
	text, err := c.format.Render(toolcall.Call{Name: do.tool, Arguments: args})
	if err != nil {
		return rollout.Turn{}, err
	}
	return rollout.Turn{Text: text, Finish: rollout.FinishStop}, nil
}

// Observe hands the script the observation of its call.
func (c *conversation) Observe(_ context.Context, r rollout.ToolResult) error {
	c.player.observed = r.Text
	return nil
}

// Samples is nil: a script samples no tokens.
func (c *conversation) Samples() []milepost.Sample { return nil }

// Close ends the script.
func (c *conversation) Close() error {
	c.stop()
	return nil
}

// The arguments of the tools, in the order in which they are written.
type (
	searchArgs struct {
		Kind  string `json:"kind,omitempty"`
		Query string `json:"query"`
	}
	readArgs struct {
		Path  string `json:"path"`
		Start int    `json:"start,omitempty"`
		End   int    `json:"end,omitempty"`
	}
	replaceArgs struct {
		Command string `json:"command"`
		Path    string `json:"path"`
		Old     string `json:"old"`
		New     string `json:"new"`
	}
	createArgs struct {
		Command string `json:"command"`
		Path    string `json:"path"`
		Text    string `json:"text"`
	}
	insertArgs struct {
		Command string `json:"command"`
		Path    string `json:"path"`
		Line    int    `json:"line"`
		Text    string `json:"text"`
	}
	patchArgs struct {
		Command string `json:"command"`
		Patch   string `json:"patch"`
	}
	commandArgs struct {
		Command string `json:"command"`
	}
)

func (p *player) read(path string) string { return p.do("read_file", readArgs{Path: path}) }

func (p *player) replace(path, old, new string) string {
	return p.do("edit_file", replaceArgs{"replace", path, old, new})
}

func (p *player) undo() string { return p.do("edit_file", commandArgs{"undo"}) }

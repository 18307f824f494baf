package rollout

import (
	"context"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// ToolCall is one tool call of a turn; ToolSpec describes one tool to a model. Both live in toolcall because formats
// and tools need them too.
type (
	ToolCall = toolcall.Call
	ToolSpec = toolcall.Spec
)

// Role is who speaks a [Message].
type Role string

// The roles of messages that a policy did not sample.
const (
	RoleSystem Role = "system"
	RoleUser   Role = "user"
	RoleTool   Role = "tool" // answers to a turn
)

// Message is one message of an opening prompt.
type Message struct {
	Role    Role
	Content string
}

// Sampling says how turns are sampled. Zero values are not defaults: the loop fills every field from its Config, and
// a model uses them as they are.
type Sampling struct {
	Temperature   float64 // 0 is greedy
	TopP          float64 // 1 is off, which training needs
	MaxTurnTokens int     // most tokens sampled in one turn; a turn that reaches it ends with FinishLength
}

// Opening is what a conversation starts from. A model may keep the slices; the loop does not change them afterwards.
type Opening struct {
	Messages []Message // system (if any), then user with the problem statement
	Tools    []ToolSpec
	Format   string // tool-call format the loop will parse Turn.Text with, one of toolcall.Names
	Sampling Sampling
	// Condenser says what of the history the model samples from; the zero value is all of it.
	Condenser Condenser
	// Answers is the role of the messages that answer a turn where no endpoint asks for another: RoleTool or, for scaffolds
	// that converse in plain text, RoleUser. "" is RoleTool.
	Answers Role

	// Seed makes the conversation repeatable where the model can; turn n uses a seed derived from Seed and n.
	Seed int64
	// Session is the episode id: the key for sticky routing and for prefix-cache salts.
	Session string
	// MaxContext is the most tokens prompt and sample may have together in one turn, 0 = whatever the model can. When
	// the history leaves no room for another turn Next fails with KindLimit, which ends the episode with StopContext.
	MaxContext int
	// MaxTokens is the episode's budget of sampled tokens, 0 = none. A model clips each turn to what is left of it; a
	// turn clipped by it ends with FinishLength, and the loop then stops with StopTokens.
	MaxTokens int

	// Task is there for scripted models, which act from the reference patch. A model that samples must not read it:
	// everything a policy may know is in Messages.
	Task *milepost.Task
}

// Model opens conversations. It is safe for concurrent use: one model serves all episodes of a run.
type Model interface {
	// Open starts one conversation and may already reserve an endpoint for it. It fails with KindInvalid where the
	// opening cannot be rendered, with KindLimit where the prompt alone exceeds MaxContext, and with an
	// infrastructure kind (KindUnavailable, KindCorrupt, KindInternal) where no endpoint can serve it.
	Open(ctx context.Context, o Opening) (Conversation, error)
}

// Conversation is one episode's exchange with a model. The loop calls, from one goroutine, Next and Observe in turn
// (Next, Observe, Next, Observe, …; the last Next of an episode may have no Observe), then Samples once, then Close
// once, on every exit path. Samples is also valid after a failed or cancelled Next and then holds the turns before it.
type Conversation interface {
	// Next samples one turn. The n-th successful Next (from 0) is step n of the episode: sampled tokens carry n in
	// Sample.Steps. Retries against other endpoints happen inside. Kinds: KindLimit where the context leaves no room
	// for a turn (the episode ends as a limit, not as a failure), KindCanceled or KindTimeout where ctx ended, an
	// infrastructure kind where no endpoint could answer (the episode becomes infra_error).
	Next(ctx context.Context) (Turn, error)

	// Observe appends the answer to the last turn. It need not contact the endpoint; if it does, kinds are as in Next.
	Observe(ctx context.Context, r ToolResult) error

	// Samples returns the exact token sequences so far, more than one where context management broke the prefix; nil
	// for chat models and scripts. The caller owns the result.
	Samples() []milepost.Sample

	// Close gives up what the conversation holds (its place at an endpoint). It may be called once, at any time
	// after Open, and must not block on the network.
	Close() error
}

// Endpointer is an optional method of a [Conversation]: the name of the endpoint that served it last, recorded as
// Episode.Endpoint.
type Endpointer interface{ Endpoint() string }

// Finish says why the sampler ended a turn.
type Finish string

// The ends of a turn. An endpoint's other words for a natural end ("tool_calls", "eos") are mapped to FinishStop.
const (
	FinishStop   Finish = "stop"   // an end-of-turn token or a stop string
	FinishLength Finish = "length" // MaxTurnTokens, MaxTokens or MaxContext cut it off
)

// Turn is one sampled turn.
type Turn struct {
	// Text is the whole sampled text, tool-call markup included, without the end-of-turn token. Where sampled bytes are
	// no valid UTF-8 it holds U+FFFD; the exact tokens are in Samples.
	Text string
	// Calls are the calls of the turn where the endpoint parsed them (chat endpoints), with Arguments exactly as the
	// endpoint gave them, valid JSON or not; the loop checks them. Nil makes the loop parse Text with Opening.Format;
	// an empty, non-nil slice means that the endpoint found none.
	Calls  []ToolCall
	Finish Finish
	// Sample is the index into Samples() of the sequence that holds the turn; its sampled tokens are
	// [TokenStart, TokenEnd) of that sequence. All zero for models that give no tokens.
	Sample, TokenStart, TokenEnd int
	// Tokens is the number of tokens sampled, as far as known; it is counted against the episode's budget.
	Tokens int
}

// ToolResult is the loop's answer to a turn.
type ToolResult struct {
	// CallID is the ID of the call that is answered. "" where the turn's calls carry none, or where the answer is to
	// the turn as a whole because it held no call, more than one, or one that did not parse: a chat model then answers
	// every call the turn left open with Text, or sends a user message where there is none.
	CallID string
	Tool   string // name of the tool as the policy wrote it; "" where no call was found
	Text   string // the observation; never empty
}

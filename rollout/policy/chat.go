package policy

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	openai "github.com/sashabaranov/go-openai"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// The fields a chat endpoint may want its token limit in.
const (
	FieldMaxTokens           = "max_tokens"
	FieldMaxCompletionTokens = "max_completion_tokens"
)

// ChatConfig says which OpenAI-compatible chat endpoint to use, for evaluation and demonstrations. It gives no tokens,
// so nothing can be trained on its episodes but text.
type ChatConfig struct {
	BaseURL     string         `yaml:"base_url"`     // for example http://127.0.0.1:8000/v1; "" = none
	Model       string         `yaml:"model"`        // the endpoint's name of the model
	APIKey      string         `yaml:"-"`            // read from the environment by the caller, never from a file
	NativeTools bool           `yaml:"native_tools"` // tools and calls as API fields; false: described in the system message and parsed from text
	TokenField  string         `yaml:"token_field"`  // max_tokens or max_completion_tokens
	Extra       map[string]any `yaml:"extra"`        // further fields of the request body, for example chat_template_kwargs
	Timeout     time.Duration  `yaml:"timeout"`      // of one attempt
	Retries     int            `yaml:"retries"`      // attempts after the first
	Backoff     Backoff        `yaml:"backoff"`      // wait before a repeated attempt
}

// DefaultChatConfig is every default; BaseURL and Model must be set.
func DefaultChatConfig() ChatConfig {
	return ChatConfig{
		NativeTools: true, TokenField: FieldMaxTokens, Timeout: 5 * time.Minute, Retries: 5,
		Backoff: Backoff{Base: 500 * time.Millisecond, Max: 30 * time.Second},
	}
}

// Validate checks every field.
func (c ChatConfig) Validate() error {
	const op = "policy: chat model configuration"
	u, err := url.Parse(c.BaseURL)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return milepost.E(op, milepost.KindInvalid, "base_url %q is not of the form http://host:port/v1", c.BaseURL)
	case c.Model == "":
		return milepost.E(op, milepost.KindInvalid, "model is empty; the endpoint's name of the model is needed")
	case c.TokenField != FieldMaxTokens && c.TokenField != FieldMaxCompletionTokens:
		return milepost.E(op, milepost.KindInvalid, "token_field %q is not one of: %s, %s", c.TokenField, FieldMaxTokens, FieldMaxCompletionTokens)
	case c.Timeout <= 0 || c.Retries < 0:
		return milepost.E(op, milepost.KindInvalid, "timeout is %v and retries %d; they must be above 0 and at least 0", c.Timeout, c.Retries)
	case c.Backoff.Base <= 0 || c.Backoff.Max < c.Backoff.Base:
		return milepost.E(op, milepost.KindInvalid, "backoff is %v to %v; base must be above 0 and max at least base", c.Backoff.Base, c.Backoff.Max)
	}
	return nil
}

// ChatModel is any OpenAI-compatible chat endpoint.
type ChatModel struct {
	cfg    ChatConfig
	client *openai.Client
	clock  Clock
	rand   func() float64
}

var _ rollout.Model = (*ChatModel)(nil)

// NewChatModel checks the configuration; it contacts nothing.
func NewChatModel(cfg ChatConfig, deps PoolDeps) (*ChatModel, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &ChatModel{cfg: cfg, clock: deps.Clock, rand: deps.Rand}
	if m.clock == nil {
		m.clock = SystemClock{}
	}
	if m.rand == nil {
		m.rand = uniform
	}
	next := deps.HTTP
	if next == nil {
		next = &http.Client{}
	}
	oc := openai.DefaultConfig(cfg.APIKey)
	oc.BaseURL = strings.TrimRight(cfg.BaseURL, "/")
	oc.HTTPClient = extraDoer{next}
	m.client = openai.NewClientWithConfig(oc)
	return m, nil
}

// Open starts a conversation; it contacts nothing.
func (m *ChatModel) Open(_ context.Context, o rollout.Opening) (rollout.Conversation, error) {
	if o.Sampling.MaxTurnTokens < 1 {
		return nil, milepost.E("policy: open", milepost.KindInvalid, "sampling.MaxTurnTokens is %d; it must be at least 1", o.Sampling.MaxTurnTokens)
	}
	messages := o.Messages
	c := &chatConversation{model: m, o: o, native: m.cfg.NativeTools && len(o.Tools) > 0}
	if c.native {
		for _, t := range o.Tools {
			c.tools = append(c.tools, openai.Tool{Type: openai.ToolTypeFunction,
				Function: &openai.FunctionDefinition{Name: t.Name, Description: t.Description, Parameters: t.Parameters}})
		}
	} else {
		var err error
		if messages, err = withTools(messages, o.Tools); err != nil {
			return nil, err
		}
	}
	for _, msg := range messages {
		c.opening = append(c.opening, openai.ChatCompletionMessage{Role: string(msg.Role), Content: msg.Content})
	}
	return c, nil
}

// chatConversation is one conversation with a chat endpoint; used by one goroutine.
type chatConversation struct {
	model   *ChatModel
	o       rollout.Opening
	native  bool // tools and calls are API fields
	tools   []openai.Tool
	opening []openai.ChatCompletionMessage
	history []chatTurn
	turns   int
	sampled int
	usage   rollout.Usage
	untold  bool // some answer stated no usage
}

var (
	_ rollout.Endpointer = (*chatConversation)(nil)
	_ rollout.Metered    = (*chatConversation)(nil)
)

// chatTurn is one answer of the endpoint and the messages that answered it in turn.
type chatTurn struct {
	said    openai.ChatCompletionMessage
	answers []openai.ChatCompletionMessage
}

// Next asks for one turn, with retries.
func (c *chatConversation) Next(ctx context.Context) (rollout.Turn, error) {
	most := c.o.Sampling.MaxTurnTokens
	if c.o.MaxTokens > 0 {
		if most = min(most, c.o.MaxTokens-c.sampled); most < 1 {
			return rollout.Turn{}, milepost.E("policy: next", milepost.KindLimit, "the episode's budget of %d sampled tokens is spent", c.o.MaxTokens)
		}
	}
	resp, err := c.ask(ctx, most)
	if err != nil {
		return rollout.Turn{}, err
	}
	if len(resp.Choices) == 0 {
		return rollout.Turn{}, milepost.E("policy: next", milepost.KindCorrupt, "%s answered without a choice", c.model.cfg.BaseURL)
	}
	choice := resp.Choices[0]
	msg := choice.Message
	turn := rollout.Turn{Text: msg.Content, Finish: rollout.FinishStop, Tokens: max(resp.Usage.CompletionTokens, 0)}
	if choice.FinishReason == openai.FinishReasonLength {
		turn.Finish = rollout.FinishLength
	}
	if c.native {
		turn.Calls = []rollout.ToolCall{}
		for _, call := range msg.ToolCalls {
			turn.Calls = append(turn.Calls, rollout.ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: json.RawMessage(call.Function.Arguments)})
		}
	}
	c.history = append(c.history, chatTurn{said: openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, Content: msg.Content, ToolCalls: msg.ToolCalls}})
	c.turns++
	c.sampled += turn.Tokens
	c.meter(resp.Usage)
	return turn, nil
}

// meter adds what the endpoint said of one turn.
func (c *chatConversation) meter(u openai.Usage) {
	c.untold = c.untold || u.PromptTokens <= 0 || u.CompletionTokens < 0 // no prompt is empty, no answer less than that: it said nothing
	c.usage.Prompt += int64(max(u.PromptTokens, 0))
	c.usage.Completion += int64(max(u.CompletionTokens, 0))
	if d := u.PromptTokensDetails; d != nil {
		c.usage.Cached += int64(max(d.CachedTokens, 0))
	}
}

// Usage is what the endpoint said that the turns so far cost.
func (c *chatConversation) Usage() rollout.Usage {
	u := c.usage
	u.Told = c.turns > 0 && !c.untold
	return u
}

func (c *chatConversation) ask(ctx context.Context, most int) (openai.ChatCompletionResponse, error) {
	m := c.model
	fields := map[string]any{"temperature": c.o.Sampling.Temperature, "top_p": c.o.Sampling.TopP, "seed": turnSeed(c.o.Seed, c.turns), m.cfg.TokenField: most}
	for k, v := range m.cfg.Extra {
		fields[k] = v
	}
	req := openai.ChatCompletionRequest{Model: m.cfg.Model, Messages: c.messages(), Tools: c.tools}
	for attempt := 0; ; attempt++ {
		bounded, cancel := context.WithTimeout(withExtra(ctx, fields), m.cfg.Timeout)
		resp, err := m.client.CreateChatCompletion(bounded, req)
		cancel()
		if err == nil {
			return resp, nil
		}
		if ctx.Err() != nil {
			return resp, ended("policy: chat", ctx.Err())
		}
		err = chatError(m.cfg.BaseURL, err)
		if !retriable(err) || attempt == m.cfg.Retries {
			return resp, err
		}
		if err := m.clock.Sleep(ctx, m.cfg.Backoff.Wait(attempt, m.rand())); err != nil {
			return resp, ended("policy: chat", err)
		}
	}
}

// chatError gives go-openai's errors a kind.
func chatError(where string, err error) error {
	const op = "policy: chat"
	code := 0
	var api *openai.APIError
	var plain *openai.RequestError
	switch {
	case errors.As(err, &api):
		code = api.HTTPStatusCode
		if s, _ := api.Code.(string); s == "context_length_exceeded" || strings.Contains(api.Message, "maximum context length") {
			return milepost.E(op, milepost.KindLimit, "%s: %w", where, err)
		}
	case errors.As(err, &plain):
		code = plain.HTTPStatusCode
	}
	kind := milepost.KindUnavailable
	switch {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		kind = milepost.KindDenied
	case code == http.StatusNotFound:
		kind = milepost.KindNotFound
	case code >= 400 && code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout:
		kind = milepost.KindInvalid
	}
	return milepost.E(op, kind, "%s: %w", where, err)
}

// messages is what the condenser leaves of the conversation.
func (c *chatConversation) messages() []openai.ChatCompletionMessage {
	out := slices.Clone(c.opening)
	for i, fate := range c.o.Condenser.Fates(len(c.history)) {
		turn := c.history[i]
		if fate == rollout.FateDropped {
			continue
		}
		out = append(out, turn.said)
		for _, m := range turn.answers {
			if fate == rollout.FateMasked {
				m.Content = rollout.Masked(m.Content)
			}
			out = append(out, m)
		}
	}
	return out
}

// Observe appends the answer: a tool message for the call it names, and, as endpoints want an answer to every call,
// the same text for the others of the turn. A turn without calls is answered by a user message.
func (c *chatConversation) Observe(_ context.Context, r rollout.ToolResult) error {
	turn := &c.history[len(c.history)-1]
	open := turn.said.ToolCalls
	if len(open) == 0 {
		text := r.Text
		if !c.native && c.o.Answers != rollout.RoleUser {
			text = "<tool_response>\n" + text + "\n</tool_response>"
		}
		turn.answers = append(turn.answers, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleUser, Content: text})
		return nil
	}
	found := r.CallID == ""
	for _, call := range open {
		text := r.Text
		if r.CallID != "" && call.ID != r.CallID {
			text = "Not carried out: one tool call a turn."
		}
		found = found || call.ID == r.CallID
		turn.answers = append(turn.answers, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleTool, Content: text, ToolCallID: call.ID})
	}
	if !found {
		return milepost.E("policy: observe", milepost.KindInternal, "the turn has no call %q", r.CallID)
	}
	return nil
}

// Samples is nil: a chat endpoint gives no exact tokens.
func (c *chatConversation) Samples() []milepost.Sample { return nil }

// Endpoint is the endpoint's address.
func (c *chatConversation) Endpoint() string { return c.model.cfg.BaseURL }

// Close does nothing: the endpoint holds nothing for us.
func (c *chatConversation) Close() error { return nil }

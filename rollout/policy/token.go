package policy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/rollout"
)

// The routes a token model can sample by, the places where tools are described, and what a push makes of cached prefixes.
const (
	APIGenerate    = "generate"    // /inference/v1/generate and /v1/chat/completions/render (server flag --enable-scale-out)
	APICompletions = "completions" // /v1/completions and /tokenize

	ToolsTemplate = "template" // the chat template renders them
	ToolsSystem   = "system"   // they are written into the system message
	ToolsNone     = "none"     // nowhere: the policy learned them by fine-tuning

	PrefixRecompute = "recompute" // a push resets the prefix cache
	PrefixSalt      = "salt"      // prefixes are salted by version
)

// TokenConfig says how the token-exact model speaks to its servers.
type TokenConfig struct {
	API            string         `yaml:"api"`             // route of vLLM that samples: generate (/inference/v1/generate) or completions
	Tools          string         `yaml:"tools"`           // how the policy is told of its tools: template (rendered by its chat template), system (in the system message) or none
	TemplateKwargs map[string]any `yaml:"template_kwargs"` // extra arguments of the chat template

	// Seeds sends a seed with every turn, derived from episode and turn, so that a server which computes the same for any
	// batch samples the same again. Off by default: vLLM's CPU build (0.32) dies of a seeded request whose prefill is
	// split ("CPU Generator does not use offset").
	Seeds bool `yaml:"seeds"`

	// PrefixCache is what a push of weights makes of cached keys and values. recompute: they are forgotten, and requests under
	// way compute theirs anew, so that each token is the policy's of its version to the last bit. salt: requests carry the
	// version they began under, so that what older weights left matches no later one and goes when room is needed; nothing is
	// computed twice and the pause is shorter, but what a request under way samples after the push sees keys and values of
	// earlier tokens from the weights before it, though it bears the new version.
	PrefixCache string `yaml:"prefix_cache"`

	// Routes asks for the experts of every token, which the samples then carry; set by trainer.routing_replay.
	Routes bool `yaml:"-"`
}

// DefaultTokenConfig is every default.
func DefaultTokenConfig() TokenConfig {
	return TokenConfig{API: APIGenerate, Tools: ToolsTemplate, PrefixCache: PrefixRecompute}
}

// Validate checks every field.
func (c TokenConfig) Validate() error {
	const op = "policy: token model configuration"
	if c.API != APIGenerate && c.API != APICompletions {
		return milepost.E(op, milepost.KindInvalid, "api %q is not one of: %s, %s", c.API, APIGenerate, APICompletions)
	}
	if c.Tools != ToolsTemplate && c.Tools != ToolsSystem && c.Tools != ToolsNone {
		return milepost.E(op, milepost.KindInvalid, "tools %q is not one of: %s, %s, %s", c.Tools, ToolsTemplate, ToolsSystem, ToolsNone)
	}
	if c.PrefixCache != PrefixRecompute && c.PrefixCache != PrefixSalt {
		return milepost.E(op, milepost.KindInvalid, "prefix_cache %q is not one of: %s, %s", c.PrefixCache, PrefixRecompute, PrefixSalt)
	}
	return nil
}

// TokenModel is the model that training uses: token ids in, token ids out, over a pool of vLLM servers that serve the
// same model and tokenizer.
//
// Invariant of every conversation: the prompt of turn t+1 starts with the prompt and the sample of turn t, id for id, unless
// the condenser took something out of it; then a new training sample begins with exactly the prompt that was sent, in which
// earlier samples stand id for id as context that is not trained.
// History is never rendered again; text is only ever decoded to be parsed. Every sampled token keeps the logprob of the
// distribution it was sampled from and the weight version it was sampled under; where the temperature is not 1 that is
// the distribution after temperature (server flag --logprobs-mode processed_logprobs), so a trainer must divide its
// logits by the same temperature.
type TokenModel struct {
	pool *Pool
	cfg  TokenConfig

	mu       sync.Mutex // held while the template is derived: conversations that open meanwhile need it too
	template *template
	maxLen   int // the server's longest context
	toolsOK  map[string]bool
}

var _ rollout.Model = (*TokenModel)(nil)

// NewTokenModel checks the configuration; it contacts no server. Ready does, or the first Open.
func NewTokenModel(pool *Pool, cfg TokenConfig) (*TokenModel, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &TokenModel{pool: pool, cfg: cfg, toolsOK: map[string]bool{}}, nil
}

// Ready derives the chat template's way from the server, once, and refuses with KindInvalid, saying what differs, one
// that does not keep histories as they were.
func (m *TokenModel) Ready(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.template != nil {
		return nil
	}
	r := pooled{m, ""}
	t, err := deriveTemplate(ctx, r, m.cfg.TemplateKwargs)
	if err != nil {
		return milepost.Wrap("policy: derive chat template", milepost.KindUnavailable, err)
	}
	_, err = m.pool.Do(ctx, "", func(ctx context.Context, c *vllm.Client) (err error) {
		_, m.maxLen, err = c.Tokenize(ctx, dummyText)
		return err
	})
	if err != nil {
		return err
	}
	m.template = t
	return nil
}

// Open renders the opening on the server and starts a conversation.
func (m *TokenModel) Open(ctx context.Context, o rollout.Opening) (rollout.Conversation, error) {
	const op = "policy: open"
	if o.Sampling.MaxTurnTokens < 1 {
		return nil, milepost.E(op, milepost.KindInvalid, "sampling.MaxTurnTokens is %d; it must be at least 1", o.Sampling.MaxTurnTokens)
	}
	if o.Answers == "" {
		o.Answers = rollout.RoleTool
	}
	if err := m.Ready(ctx); err != nil {
		return nil, err
	}
	c := &conversation{model: m, o: o, room: m.maxLen}
	var err error
	if c.marks, err = m.learnRole(ctx, o.Answers); err != nil {
		return nil, err
	}
	if o.MaxContext > 0 {
		c.room = min(c.room, o.MaxContext)
	}
	ids, err := m.openingTokens(ctx, o)
	if err != nil {
		return nil, err
	}
	if len(ids) >= c.room {
		return nil, milepost.E(op, milepost.KindLimit, "the prompt has %d tokens, the context %d", len(ids), c.room)
	}
	c.opening = ids
	c.seq.context(ids...)
	return c, nil
}

// learnRole readies the template for observations of the role and returns the control tokens of their segments.
func (m *TokenModel) learnRole(ctx context.Context, role rollout.Role) (map[int32]int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.template.learnRole(ctx, pooled{m, ""}, role)
}

func (m *TokenModel) openingTokens(ctx context.Context, o rollout.Opening) ([]int32, error) {
	r := pooled{m, o.Session}
	messages, tools := o.Messages, o.Tools
	switch m.cfg.Tools {
	case ToolsSystem:
		var err error
		if messages, err = withTools(messages, tools); err != nil {
			return nil, err
		}
		tools = nil
	case ToolsNone:
		tools = nil
	}
	p := vllm.Prompt{Tools: specs(tools), Generation: true, Kwargs: m.cfg.TemplateKwargs}
	for _, msg := range messages {
		p.Messages = append(p.Messages, vllm.Message{Role: string(msg.Role), Content: m.template.neutral(msg.Content)})
	}
	ids, err := r.render(ctx, p)
	if err != nil {
		return nil, err
	}
	return ids, m.checkTools(ctx, r, p, ids, o.Format)
}

// checkTools makes sure, once per list of tools, that the template shows them: one that ignores them gives a policy
// that was never told what it can do.
func (m *TokenModel) checkTools(ctx context.Context, r pooled, p vllm.Prompt, with []int32, format string) error {
	if len(p.Tools) == 0 {
		return nil
	}
	key := format + "\x00"
	for _, t := range p.Tools {
		key += t.Name + "\x00"
	}
	m.mu.Lock()
	known := m.toolsOK[key]
	m.mu.Unlock()
	if known {
		return nil
	}
	tools := p.Tools
	p.Tools = nil
	without, err := r.render(ctx, p)
	if err != nil {
		return err
	}
	if slices.Equal(with, without) {
		return milepost.E("policy: open", milepost.KindInvalid,
			"the server's chat template does not render tools; set the token model's tools to %q, or to %q for a policy that knows them", ToolsSystem, ToolsNone)
	}
	if err := checkCalls(ctx, r, m.template, tools, format); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.toolsOK[key] = true
	return nil
}

// pooled is a renderer over the model's pool, for one session.
type pooled struct {
	m       *TokenModel
	session string
}

func (r pooled) render(ctx context.Context, p vllm.Prompt) (ids []int32, err error) {
	_, err = r.m.pool.Do(ctx, r.session, func(ctx context.Context, c *vllm.Client) (err error) {
		if r.m.cfg.API == APIGenerate {
			ids, err = c.Render(ctx, p)
		} else {
			ids, err = c.RenderTokenize(ctx, p)
		}
		return scaleOut(r.m.cfg.API, err)
	})
	return ids, err
}

func (r pooled) tokenize(ctx context.Context, text string) (ids []int32, err error) {
	_, err = r.m.pool.Do(ctx, r.session, func(ctx context.Context, c *vllm.Client) (err error) {
		ids, _, err = c.Tokenize(ctx, text)
		return err
	})
	return ids, err
}

func (r pooled) detokenize(ctx context.Context, ids []int32) (text string, err error) {
	_, err = r.m.pool.Do(ctx, r.session, func(ctx context.Context, c *vllm.Client) (err error) {
		text, err = c.Detokenize(ctx, ids)
		return err
	})
	return text, err
}

// scaleOut adds what to do about a missing route; a missing model, which is a 404 too, keeps the server's own words.
func scaleOut(api string, err error) error {
	var status *vllm.StatusError
	if api == APIGenerate && errors.As(err, &status) && status.Code == http.StatusNotFound && status.Message == "Not Found" {
		return milepost.E("policy: request", milepost.KindInvalid, "%w; start the server with --enable-scale-out, or set the token model's api to %q", err, APICompletions)
	}
	return err
}

package vllm

import (
	"context"
	"math"
	"net/http"
	"slices"

	"github.com/milepost-rl/milepost"
)

// Params says how to sample one turn. The server must run with --generation-config vllm, or the model's own defaults
// leak into what is not named here, and with --logprobs-mode processed_logprobs, or logprobs are those before
// temperature and not of what was sampled from.
type Params struct {
	Temperature float64 // 0 is greedy
	TopP        float64 // 1 is off; anything else biases the importance ratio
	MaxTokens   int
	Seed        *int64  // nil = the server's own randomness; see the trap at policy.TokenConfig.Seeds
	Stop        []int32 // token ids that end the turn; they are part of the sample
	Salt        string  // requests of other salts share no cached keys and values with this one; "" = with all that have none
	IgnoreEOS   bool    // do not stop at the model's end-of-sequence token; masks nothing, so logprobs stay the policy's
	Routes      bool    // ask for the experts of each token (server flag --enable-return-routed-experts)
	RoutesFrom  int     // leave out those of the first so many prompt tokens, which are known
}

// Generation is one sampled turn. IDs are the truth; Text is the server's decoding of them.
type Generation struct {
	IDs      []int32
	Logprobs []float32 // of IDs[i] under the distribution it was sampled from
	Versions []int32   // weight version IDs[i] was sampled under
	Newest   int32     // newest version that any of them may have been sampled under
	// Text leaves out the stop token where one ended the turn, and shows special tokens. Where bytes are no valid UTF-8
	// it holds U+FFFD or, at the very end, nothing.
	Text   string
	Finish string // stop, length or abort
	// Routes are the experts that served the tokens from RoutesFrom to the last but one sampled: each with which the server
	// computed the token behind it. Nil where they were not asked for.
	Routes *milepost.Routes
}

// conform checks that the per-token streams are aligned: same length, finite logprobs.
func (g *Generation) conform(op, server string) error {
	if len(g.Logprobs) != len(g.IDs) || len(g.Versions) != len(g.IDs) {
		return milepost.E(op, milepost.KindCorrupt, "%s: %d token ids, %d logprobs, %d versions in one answer",
			server, len(g.IDs), len(g.Logprobs), len(g.Versions))
	}
	for i, lp := range g.Logprobs {
		if f := float64(lp); math.IsNaN(f) || math.IsInf(f, 0) || f <= -9999 {
			return milepost.E(op, milepost.KindCorrupt, "%s: logprob of sampled token %d is %v", server, i, lp)
		}
	}
	return nil
}

// span is a run of output tokens [Start, End) sampled under one weight version.
type span struct {
	Version string `json:"version"`
	Start   int    `json:"start"`
	End     int    `json:"end"`
}

// spread turns spans into one version per token; the spans must cover [0, n) in order without holes.
func spread(op, server string, spans []span, n int) ([]int32, error) {
	out := make([]int32, 0, n)
	for _, s := range spans {
		v, err := ParseVersion(s.Version)
		if err != nil {
			return nil, milepost.E(op, milepost.KindCorrupt, "%s: %w", server, err)
		}
		if s.Start != len(out) || s.End < s.Start || s.End > n {
			return nil, milepost.E(op, milepost.KindCorrupt, "%s: weight versions %v do not cover %d tokens in order", server, spans, n)
		}
		for range s.End - s.Start {
			out = append(out, v)
		}
	}
	if len(out) != n {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s: weight versions %v do not cover %d tokens", server, spans, n)
	}
	return out, nil
}

type sampling struct {
	Temperature       float64 `json:"temperature"`
	TopP              float64 `json:"top_p"`
	TopK              int     `json:"top_k"`
	MinP              float64 `json:"min_p"`
	MaxTokens         int     `json:"max_tokens"`
	IgnoreEOS         bool    `json:"ignore_eos"`
	Seed              *int64  `json:"seed,omitempty"`
	StopTokenIDs      []int32 `json:"stop_token_ids,omitempty"`
	Logprobs          int     `json:"logprobs"`
	SkipSpecialTokens bool    `json:"skip_special_tokens"`
	SpacesBetween     bool    `json:"spaces_between_special_tokens"`
	RoutesFrom        int     `json:"routed_experts_prompt_start,omitempty"`
}

func (p Params) sampling() sampling {
	return sampling{
		Temperature: p.Temperature, TopP: p.TopP, MaxTokens: p.MaxTokens, IgnoreEOS: p.IgnoreEOS, Seed: p.Seed,
		StopTokenIDs: p.Stop, RoutesFrom: p.RoutesFrom,
	}
}

// routes reads the experts of an answer into g, where they were asked for.
func (p Params) routes(op, server, text string, prompt int, g *Generation) (err error) {
	if p.Routes && len(g.IDs) > 0 {
		g.Routes, err = decodeRoutes(op, server, text, prompt+len(g.IDs)-1-p.RoutesFrom)
	}
	return err
}

// Generate samples one turn after prompt with /inference/v1/generate (server flag --enable-scale-out). Session goes out
// as X-Session-ID. An aborted generation is KindUnavailable.
func (c *Client) Generate(ctx context.Context, session string, prompt []int32, p Params) (*Generation, error) {
	const op = "vllm: generate"
	in := struct {
		Model    string   `json:"model,omitempty"`
		TokenIDs []int32  `json:"token_ids"`
		Sampling sampling `json:"sampling_params"`
		Output   string   `json:"output_mode"`
		Salt     string   `json:"cache_salt,omitempty"`
	}{c.model, prompt, p.sampling(), "text", p.Salt}
	var out struct {
		Choices []struct {
			Finish   string  `json:"finish_reason"`
			TokenIDs []int32 `json:"token_ids"`
			Text     string  `json:"text"`
			Logprobs struct {
				Content []struct {
					Logprob float32 `json:"logprob"`
				} `json:"content"`
			} `json:"logprobs"`
			Versions []span `json:"weight_versions"`
			Routes   string `json:"routed_experts"`
		} `json:"choices"`
	}
	if err := c.do(ctx, request{op: op, method: http.MethodPost, path: "/inference/v1/generate", session: session, in: in, out: &out}); err != nil {
		return nil, c.missing(op, err)
	}
	if len(out.Choices) != 1 {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s: %d choices in the answer, want 1", c.url, len(out.Choices))
	}
	choice := out.Choices[0]
	if choice.Finish == "abort" {
		return nil, milepost.E(op, milepost.KindUnavailable, "%s: the server aborted the request", c.url)
	}
	g := &Generation{IDs: choice.TokenIDs, Text: choice.Text, Finish: choice.Finish}
	for _, t := range choice.Logprobs.Content {
		g.Logprobs = append(g.Logprobs, t.Logprob)
	}
	if !c.own(g) {
		var err error
		if g.Versions, err = spread(op, c.url, choice.Versions, len(g.IDs)); err != nil {
			return nil, err
		}
		g.Newest = slices.Max(append(g.Versions, 0))
	}
	if err := p.routes(op, c.url, choice.Routes, len(prompt), g); err != nil {
		return nil, err
	}
	return g, g.conform(op, c.url)
}

// Complete samples one turn after prompt with /v1/completions, token ids in and out, for servers without
// --enable-scale-out. That route names no weight version: the server's version is read before and after, and where they
// differ every token of the turn takes the older one, which overstates staleness and never understates it.
func (c *Client) Complete(ctx context.Context, session string, prompt []int32, p Params) (*Generation, error) {
	const op = "vllm: complete"
	before, err := c.Version(ctx)
	if err != nil {
		return nil, err
	}
	in := struct {
		Model  string  `json:"model,omitempty"`
		Prompt []int32 `json:"prompt"`
		sampling
		ReturnIDs bool   `json:"return_token_ids"`
		Salt      string `json:"cache_salt,omitempty"`
	}{c.model, prompt, p.sampling(), true, p.Salt}
	var out struct {
		Choices []struct {
			Finish   string  `json:"finish_reason"`
			TokenIDs []int32 `json:"token_ids"`
			Text     string  `json:"text"`
			Logprobs struct {
				TokenLogprobs []float32 `json:"token_logprobs"`
			} `json:"logprobs"`
			Routes string `json:"routed_experts"`
		} `json:"choices"`
	}
	if err := c.do(ctx, request{op: op, method: http.MethodPost, path: "/v1/completions", session: session, in: in, out: &out}); err != nil {
		return nil, c.missing(op, err)
	}
	after, err := c.Version(ctx)
	if err != nil {
		return nil, err
	}
	if len(out.Choices) != 1 {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s: %d choices in the answer, want 1", c.url, len(out.Choices))
	}
	choice := out.Choices[0]
	if choice.Finish == "abort" {
		return nil, milepost.E(op, milepost.KindUnavailable, "%s: the server aborted the request", c.url)
	}
	g := &Generation{IDs: choice.TokenIDs, Text: choice.Text, Finish: choice.Finish, Logprobs: choice.Logprobs.TokenLogprobs, Newest: max(before, after)}
	if !c.own(g) {
		g.Versions = make([]int32, len(g.IDs))
		for i := range g.Versions {
			g.Versions[i] = min(before, after)
		}
	}
	if err := p.routes(op, c.url, choice.Routes, len(prompt), g); err != nil {
		return nil, err
	}
	return g, g.conform(op, c.url)
}

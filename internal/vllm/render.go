package vllm

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/milepost-rl/milepost"
)

// Message is one chat message as the server's chat template sees it.
type Message struct {
	Role       string `json:"role"`
	Content    string `json:"content"`
	Name       string `json:"name,omitempty"`
	ToolCallID string `json:"tool_call_id,omitempty"`
	ToolCalls  []Call `json:"tool_calls,omitempty"`
}

// Call is a tool call of an assistant's message; a server hands its arguments to the template as the object that they are.
type Call struct {
	Name      string
	Arguments string // a JSON object
}

// MarshalJSON writes the OpenAI form {"type":"function","function":{…}}.
func (c Call) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"id": "call_0", "type": "function", "function": map[string]string{"name": c.Name, "arguments": c.Arguments}})
}

// UnmarshalJSON reads it.
func (c *Call) UnmarshalJSON(data []byte) error {
	var in struct {
		Function struct{ Name, Arguments string } `json:"function"`
	}
	err := json.Unmarshal(data, &in)
	c.Name, c.Arguments = in.Function.Name, in.Function.Arguments
	return err
}

// Tool is one tool as the server's chat template sees it.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // JSON schema
}

// MarshalJSON writes the OpenAI form {"type":"function","function":{…}}.
func (t Tool) MarshalJSON() ([]byte, error) {
	type plain Tool
	return json.Marshal(struct {
		Type     string `json:"type"`
		Function plain  `json:"function"`
	}{"function", plain(t)})
}

// Prompt is what a chat template renders.
type Prompt struct {
	Messages   []Message
	Tools      []Tool
	Generation bool           // add the opening of an assistant turn at the end
	Kwargs     map[string]any // extra arguments of the template
}

type rendering struct {
	Model      string         `json:"model,omitempty"`
	Messages   []Message      `json:"messages"`
	Tools      []Tool         `json:"tools,omitempty"`
	ToolChoice string         `json:"tool_choice,omitempty"`
	Generation bool           `json:"add_generation_prompt"`
	Kwargs     map[string]any `json:"chat_template_kwargs,omitempty"`
}

// Render turns messages and tools into token ids with /v1/chat/completions/render (server flag --enable-scale-out).
func (c *Client) Render(ctx context.Context, p Prompt) ([]int32, error) {
	in := rendering{Model: c.model, Messages: p.Messages, Tools: p.Tools, Generation: p.Generation, Kwargs: p.Kwargs}
	if len(p.Tools) > 0 {
		// "auto", the default, needs a tool-call parser on the server; parsers live in Go. The template sees the tools
		// all the same.
		in.ToolChoice = "none"
	}
	var out struct {
		TokenIDs []int32 `json:"token_ids"`
	}
	err := c.do(ctx, request{op: "vllm: render", method: http.MethodPost, path: "/v1/chat/completions/render", in: in, out: &out})
	return out.TokenIDs, err
}

// RenderTokenize does the same as Render with /tokenize, for servers without --enable-scale-out.
func (c *Client) RenderTokenize(ctx context.Context, p Prompt) ([]int32, error) {
	in := rendering{Model: c.model, Messages: p.Messages, Tools: p.Tools, Generation: p.Generation, Kwargs: p.Kwargs}
	var out struct {
		Tokens []int32 `json:"tokens"`
	}
	err := c.do(ctx, request{op: "vllm: render by tokenize", method: http.MethodPost, path: "/tokenize", in: in, out: &out})
	return out.Tokens, err
}

// Tokenize turns text into token ids without adding any special token; special tokens spelled out in the text become
// their ids. The second result is the server's max model length.
func (c *Client) Tokenize(ctx context.Context, text string) ([]int32, int, error) {
	in := struct {
		Model   string `json:"model,omitempty"`
		Prompt  string `json:"prompt"`
		Special bool   `json:"add_special_tokens"`
	}{c.model, text, false}
	var out struct {
		Tokens []int32 `json:"tokens"`
		Max    int     `json:"max_model_len"`
	}
	err := c.do(ctx, request{op: "vllm: tokenize", method: http.MethodPost, path: "/tokenize", in: in, out: &out})
	return out.Tokens, out.Max, err
}

// Detokenize turns token ids into text, special tokens spelled out, U+FFFD where bytes are no valid UTF-8.
func (c *Client) Detokenize(ctx context.Context, ids []int32) (string, error) {
	in := struct {
		Model  string  `json:"model,omitempty"`
		Tokens []int32 `json:"tokens"`
	}{c.model, ids}
	var out struct {
		Prompt *string `json:"prompt"`
	}
	if err := c.do(ctx, request{op: "vllm: detokenize", method: http.MethodPost, path: "/detokenize", in: in, out: &out}); err != nil {
		return "", err
	}
	if out.Prompt == nil {
		return "", milepost.E("vllm: detokenize", milepost.KindCorrupt, "%s: the answer has no text", c.url)
	}
	return *out.Prompt, nil
}

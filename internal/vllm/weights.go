package vllm

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost"
)

// FormatVersion is the server's name for a weight version: "v12".
func FormatVersion(v int32) string { return fmt.Sprintf("v%d", v) }

// ParseVersion reads a server's weight version: "v12" or "12", and "default", a server's first one, as 0.
func ParseVersion(s string) (int32, error) {
	if s == "default" {
		return 0, nil
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(s, "v"), 10, 32)
	if err != nil || n < 0 {
		return 0, milepost.E("vllm: parse version", milepost.KindCorrupt, `weight version %q is not "v" and a number, a number or "default"`, s)
	}
	return int32(n), nil
}

// Pause stops the server's scheduler. Requests under way stay and go on after Resume (mode keep); new ones queue. With clear
// cached prefixes that no request uses are forgotten.
func (c *Client) Pause(ctx context.Context, clear bool) error {
	path := "/pause?" + url.Values{"mode": {"keep"}, "clear_cache": {strconv.FormatBool(clear)}}.Encode()
	return c.do(ctx, request{op: "vllm: pause", method: http.MethodPost, path: path})
}

// Resume lets the scheduler go on; harmless where it never paused.
func (c *Client) Resume(ctx context.Context) error {
	return c.do(ctx, request{op: "vllm: resume", method: http.MethodPost, path: "/resume"})
}

// Paused reports whether the scheduler is paused.
func (c *Client) Paused(ctx context.Context) (bool, error) {
	var out struct {
		Paused *bool `json:"is_paused"`
	}
	if err := c.do(ctx, request{op: "vllm: is paused", method: http.MethodGet, path: "/is_paused", out: &out}); err != nil {
		return false, err
	}
	if out.Paused == nil {
		return false, milepost.E("vllm: is paused", milepost.KindCorrupt, "%s: the answer has no is_paused", c.url)
	}
	return *out.Paused, nil
}

// Reload makes every worker of the server load its weights from dir (HF safetensors), which the server must see under
// the same path. Success means that the call ended, not that every weight took (tied embeddings leave the head stale):
// that is the canary's to prove.
func (c *Client) Reload(ctx context.Context, dir string) error {
	in := struct {
		Method string            `json:"method"`
		Kwargs map[string]string `json:"kwargs"`
	}{"reload_weights", map[string]string{"weights_path": dir}}
	return c.do(ctx, request{op: "vllm: reload weights", method: http.MethodPost, path: "/collective_rpc", in: in})
}

// ResetPrefixCache forgets all cached prefixes. With preempt, requests under way give up their blocks and recompute
// their keys and values under the present weights when they go on; without it the reset fails (KindConflict) while any
// request holds blocks, for stale blocks would serve later requests of the same prefix.
func (c *Client) ResetPrefixCache(ctx context.Context, preempt bool) error {
	const op = "vllm: reset prefix cache"
	var out struct {
		Success bool `json:"success"`
	}
	path := "/reset_prefix_cache?" + url.Values{"reset_running_requests": {strconv.FormatBool(preempt)}}.Encode()
	if err := c.do(ctx, request{op: op, method: http.MethodPost, path: path, out: &out}); err != nil {
		return err
	}
	if !out.Success {
		return milepost.E(op, milepost.KindConflict, "%s: the server did not reset its prefix cache: requests hold blocks", c.url)
	}
	return nil
}

// SetVersion names the weights now in the server; tokens sampled from here on carry it.
func (c *Client) SetVersion(ctx context.Context, v int32) error {
	in := struct {
		New string `json:"new_version"`
	}{FormatVersion(v)}
	return c.do(ctx, request{op: "vllm: set weight version", method: http.MethodPost, path: "/update_weight_version", in: in})
}

// Version returns the server's weight version, 0 for one that was never given any.
func (c *Client) Version(ctx context.Context) (int32, error) {
	const op = "vllm: weight version"
	var out struct {
		Version string `json:"weight_version"`
	}
	if err := c.do(ctx, request{op: op, method: http.MethodGet, path: "/weight_info", out: &out}); err != nil {
		return 0, err
	}
	return ParseVersion(out.Version)
}

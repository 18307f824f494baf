package vllm

import (
	"bufio"
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost"
)

// Health is nil where the server answers and its engine lives.
func (c *Client) Health(ctx context.Context) error {
	return c.do(ctx, request{op: "vllm: health", method: http.MethodGet, path: "/health"})
}

// Models returns the names the server serves.
func (c *Client) Models(ctx context.Context) ([]string, error) {
	var out struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := c.do(ctx, request{op: "vllm: models", method: http.MethodGet, path: "/v1/models", out: &out}); err != nil {
		return nil, err
	}
	names := make([]string, len(out.Data))
	for i, m := range out.Data {
		names[i] = m.ID
	}
	return names, nil
}

// Metrics are the load figures of one server, summed over its engines.
type Metrics struct {
	Running      float64 // requests being computed
	Waiting      float64 // requests queued in the server
	KVCacheUsage float64 // share of the KV cache in use, 0 to 1; the mean over engines
	PrefixHits   float64 // tokens found in the prefix cache, since start
	PrefixAsked  float64 // tokens looked up in the prefix cache, since start
	Generated    float64 // tokens sampled, since start
	Prompted     float64 // prompt tokens, since start
}

// Metrics reads /metrics.
func (c *Client) Metrics(ctx context.Context) (Metrics, error) {
	const op = "vllm: metrics"
	body, err := c.exchange(ctx, request{op: op, method: http.MethodGet, path: "/metrics"})
	if err != nil {
		return Metrics{}, wrap(ctx, op, c.url, err)
	}
	return parseMetrics(op, c.url, body)
}

func parseMetrics(op, server string, body []byte) (Metrics, error) {
	var m Metrics
	var usages int
	fields := map[string]func(float64){
		"vllm:num_requests_running":       func(x float64) { m.Running += x },
		"vllm:num_requests_waiting":       func(x float64) { m.Waiting += x },
		"vllm:kv_cache_usage_perc":        func(x float64) { m.KVCacheUsage += x; usages++ },
		"vllm:prefix_cache_hits_total":    func(x float64) { m.PrefixHits += x },
		"vllm:prefix_cache_queries_total": func(x float64) { m.PrefixAsked += x },
		"vllm:generation_tokens_total":    func(x float64) { m.Generated += x },
		"vllm:prompt_tokens_total":        func(x float64) { m.Prompted += x },
	}
	seen := 0
	for sc := bufio.NewScanner(bytes.NewReader(body)); sc.Scan(); {
		line := sc.Text()
		name, _, _ := strings.Cut(line, " ")
		name, _, _ = strings.Cut(name, "{")
		add, ok := fields[name]
		if !ok {
			continue
		}
		value := line[strings.LastIndexByte(line, ' ')+1:]
		x, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return Metrics{}, milepost.E(op, milepost.KindCorrupt, "%s: metric line %q has no number", server, line)
		}
		add(x)
		seen++
	}
	if seen == 0 {
		return Metrics{}, milepost.E(op, milepost.KindCorrupt, "%s: /metrics names none of vLLM's figures", server)
	}
	if usages > 0 {
		m.KVCacheUsage /= float64(usages)
	}
	return m, nil
}

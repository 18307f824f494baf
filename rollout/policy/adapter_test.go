package policy

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost/internal/vllm"
)

// adapterServer answers one token for the adapter that a request names, after what gate lets through; it knows names only.
// Like vLLM it calls all tokens those of the newest version it was told of.
type adapterServer struct {
	mu    sync.Mutex
	known []string
	asked []string
	gate  chan struct{}
}

func (s *adapterServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model string `json:"model"`
	}
	_ = json.NewDecoder(r.Body).Decode(&in)
	s.mu.Lock()
	s.asked = append(s.asked, in.Model)
	known := slices.Contains(s.known, in.Model)
	s.mu.Unlock()
	if !known {
		http.Error(w, `{"error":{"message":"The model does not exist"}}`, http.StatusNotFound)
		return
	}
	<-s.gate
	_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{
		"finish_reason": "stop", "token_ids": []int{7}, "text": "x",
		"logprobs": map[string]any{"content": []any{map[string]any{"logprob": -1}}}, "weight_versions": []any{map[string]any{"version": "v99", "start": 0, "end": 1}},
	}}})
}

// TestARequestKeepsItsAdapter: a request under way over an approval ends under the version it began with, and the next one
// names the new adapter; a server that lost an adapter is tried again.
func TestARequestKeepsItsAdapter(t *testing.T) {
	s := &adapterServer{known: []string{"policy", "policy-v1", "policy-v2"}, gate: make(chan struct{})}
	server := httptest.NewServer(s)
	defer server.Close()
	cfg := DefaultPoolConfig()
	cfg.URLs, cfg.Model, cfg.Adapters = []string{server.URL}, "policy", true
	cfg.Retries, cfg.Backoff, cfg.OpenFor = 1000, Backoff{Base: time.Millisecond, Max: time.Millisecond}, time.Millisecond
	p, err := NewPool(cfg, PoolDeps{})
	if err != nil {
		t.Fatal(err)
	}
	sample := func() *vllm.Generation {
		g, _, err := p.Sample(t.Context(), "s", func(ctx context.Context, c *vllm.Client, _ string) (*vllm.Generation, error) {
			return c.Generate(ctx, "s", []int32{1}, vllm.Params{MaxTokens: 1})
		})
		if err != nil {
			t.Error(err)
			return &vllm.Generation{}
		}
		return g
	}
	want := func(g *vllm.Generation, version int32) {
		t.Helper()
		if !slices.Equal(g.Versions, []int32{version}) || g.Newest != version {
			t.Errorf("versions %v (newest %d), want %d", g.Versions, g.Newest, version)
		}
	}
	p.Approve(server.URL, 1)
	old := make(chan *vllm.Generation)
	go func() { old <- sample() }()
	waitFor(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.asked) == 1 })
	p.Approve(server.URL, 2)
	s.gate <- struct{}{} // the old one's, or nobody else could get it
	want(<-old, 1)
	close(s.gate)
	want(sample(), 2)
	if _, err := p.Do(t.Context(), "s", func(ctx context.Context, c *vllm.Client) error {
		_, err := c.Generate(ctx, "", []int32{1}, vllm.Params{MaxTokens: 1})
		return err
	}); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	s.known = []string{"policy", "policy-v3"} // started anew: version 2 is gone, version 3 is pushed
	s.mu.Unlock()
	go func() {
		waitFor(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.asked) > 3 })
		p.Approve(server.URL, 3)
	}()
	want(sample(), 3)
	s.mu.Lock()
	defer s.mu.Unlock()
	if first, last := s.asked[:3], s.asked[len(s.asked)-1]; !slices.Equal(first, []string{"policy-v1", "policy-v2", "policy"}) || last != "policy-v3" {
		t.Errorf("models asked for: %q", s.asked)
	}
}

func waitFor(t *testing.T, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Error("nothing happened in 10 s")
			return
		}
	}
}

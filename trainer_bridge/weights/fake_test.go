package weights

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// logprob is that of a token of the fakes' policy, whose weights are one number.
func logprob(weight float64, at int, id int32) float32 {
	return float32(-1 - float64(id%7)/8 - float64(at)/256 - weight)
}

// exported writes a directory with the given weight.
func exported(t *testing.T, weight float64, tied bool) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"model.safetensors": fmt.Sprint(weight), "config.json": fmt.Sprintf(`{"vocab_size": 340, "tie_word_embeddings": %v}`, tied),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// trainer is the scorer with the weights it holds.
type trainer struct {
	weight float64
	err    error
}

func (s *trainer) Score(_ context.Context, sequences [][]int32) ([][]float32, error) {
	out := make([][]float32, len(sequences))
	for i, ids := range sequences {
		out[i] = make([]float32, len(ids))
		for at := 1; at < len(ids); at++ {
			out[i][at] = logprob(s.weight, at, ids[at])
		}
	}
	return out, s.err
}

// server is a fake vLLM that loads the number in a directory, with the ways in which a real one goes wrong.
type server struct {
	*httptest.Server

	skipReload  int    // so many reloads succeed and leave the weights
	staleCache  bool   // a reset of the prefix cache is acknowledged and not done
	busy        bool   // requests hold blocks: a reset without preemption fails
	keepVersion bool   // a new version is acknowledged and not taken
	fail        string // path that answers 500
	hang        string // path that does not answer

	transfer *receiver // nil = no weight-transfer API

	mu      sync.Mutex
	weight  float64
	version string
	cached  map[string]float64 // weight under which a prompt's prefix was computed
	calls   []string
	most    atomic.Int32 // most servers that this one saw paused at once, itself included
}

// paused counts the servers that are; tests of this package run one after the other.
var paused atomic.Int32

func newServer(t *testing.T) *server {
	s := &server{version: "default", cached: map[string]float64{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// heal ends every wrong.
func (s *server) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipReload, s.staleCache, s.fail = 0, false, ""
	s.cached = map[string]float64{}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // before anything: a server sees its client leave only once the body is read
	if r.URL.Path == s.hang {
		<-r.Context().Done()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path != "/inference/v1/generate" {
		s.calls = append(s.calls, r.URL.RequestURI())
	}
	switch r.URL.Path {
	case "/pause":
		paused.Add(1)
		s.most.Store(max(s.most.Load(), paused.Load()))
	case "/resume":
		paused.Add(-1)
	}
	if r.URL.Path == s.fail {
		http.Error(w, `{"error":{"message":"made to fail"}}`, http.StatusInternalServerError)
		return
	}
	if s.transfer != nil && s.route(w, r, body) {
		return
	}
	var in struct {
		Kwargs   map[string]string `json:"kwargs"`
		New      string            `json:"new_version"`
		TokenIDs []int32           `json:"token_ids"`
		Salt     string            `json:"cache_salt"`
		Sampling struct {
			MaxTokens int `json:"max_tokens"`
		} `json:"sampling_params"`
	}
	_ = json.Unmarshal(body, &in)
	out := map[string]any{}
	switch r.URL.Path {
	case "/collective_rpc":
		data, err := os.ReadFile(filepath.Join(in.Kwargs["weights_path"], "model.safetensors"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if s.skipReload > 0 {
			s.skipReload--
			break
		}
		_, _ = fmt.Sscan(string(data), &s.weight)
	case "/reset_prefix_cache":
		ok := !s.busy || r.URL.Query().Get("reset_running_requests") == "true"
		if ok && !s.staleCache {
			s.cached = map[string]float64{}
		}
		out["success"] = ok
	case "/update_weight_version":
		if !s.keepVersion {
			s.version = in.New
		}
	case "/inference/v1/generate":
		out["choices"] = []any{s.sample(in.Salt, in.TokenIDs, in.Sampling.MaxTokens)}
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (s *server) sample(salt string, prompt []int32, n int) map[string]any {
	key := fmt.Sprint(salt, prompt)
	weight, ok := s.cached[key]
	if !ok {
		weight = s.weight
		s.cached[key] = weight
	}
	var ids []int32
	var content []any
	for i := range n {
		ids = append(ids, int32(i*31%340))
		content = append(content, map[string]any{"logprob": logprob(weight, len(prompt)+i, ids[i])})
	}
	return map[string]any{
		"finish_reason": "length", "token_ids": ids, "text": "", "logprobs": map[string]any{"content": content},
		"weight_versions": []any{map[string]any{"version": s.version, "start": 0, "end": n}},
	}
}

// gate notes what a pool would be told.
type gate struct {
	mu   sync.Mutex
	told []string
}

func (g *gate) note(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = append(g.told, fmt.Sprintf(format, args...))
}

func (g *gate) Shut(url string)                           { g.note("shut %s", url) }
func (g *gate) Approve(url string, v int32)               { g.note("approve %s v%d", url, v) }
func (g *gate) Quarantine(url string, v int32, why error) { g.note("quarantine %s v%d", url, v) }

// of is what was told of one replica since the last call, without its address.
func (g *gate) of(s *server) (out []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.told {
		if before, after, ok := strings.Cut(t, " "+s.URL); ok {
			out = append(out, before+after)
		}
	}
	g.told = slices.DeleteFunc(g.told, func(t string) bool { return strings.Contains(t, " "+s.URL) })
	return out
}

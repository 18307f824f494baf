package weights

import (
	"bytes"
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
	"testing"

	"github.com/milepost-rl/milepost"
)

// adapterServer puts a fake server's adapters before it: each name has a weight of its own, and prefixes are cached by name
// and path, as vLLM does it.
type adapterServer struct {
	*server
	mu      sync.Mutex
	loaded  map[string]string // path by name
	corrupt int               // so many loads read another weight
	calls   []string
	base    *server
	own     map[string]*server // a fake policy for each name and path
}

func newAdapterServer(t *testing.T) *adapterServer {
	s := &adapterServer{loaded: map[string]string{}, own: map[string]*server{}, base: &server{version: "default", cached: map[string]float64{}}}
	s.server = &server{Server: httptest.NewServer(s)}
	t.Cleanup(s.Close)
	return s
}

func (s *adapterServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var in struct {
		Model string `json:"model"`
		Name  string `json:"lora_name"`
		Path  string `json:"lora_path"`
	}
	_ = json.Unmarshal(body, &in)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.URL.Path {
	case "/v1/models":
		data := []any{map[string]string{"id": "policy"}}
		for name := range s.loaded {
			data = append(data, map[string]string{"id": name})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
	case "/v1/load_lora_adapter":
		s.load(w, in.Name, in.Path)
	case "/v1/unload_lora_adapter":
		s.calls = append(s.calls, "unload "+in.Name)
		delete(s.loaded, in.Name)
	case "/inference/v1/generate":
		policy := s.base
		if in.Model != "policy" {
			if policy = s.own[in.Model+s.loaded[in.Model]]; s.loaded[in.Model] == "" {
				http.Error(w, `{"error":{"message":"no such model"}}`, http.StatusNotFound)
				return
			}
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		policy.ServeHTTP(w, r)
	case "/reset_prefix_cache":
		s.calls = append(s.calls, "reset")
		for _, p := range s.own {
			p.cached = map[string]float64{}
		}
		fmt.Fprint(w, `{"success": true}`)
	default:
		s.calls = append(s.calls, r.URL.Path)
	}
}

func (s *adapterServer) load(w http.ResponseWriter, name, path string) {
	s.calls = append(s.calls, "load "+name)
	if s.loaded[name] != "" {
		http.Error(w, `{"error":{"message":"already loaded"}}`, http.StatusBadRequest)
		return
	}
	data, err := os.ReadFile(filepath.Join(path, "adapter_model.safetensors"))
	if err != nil {
		http.Error(w, `{"error":{"message":"no adapter"}}`, http.StatusNotFound)
		return
	}
	s.loaded[name] = path
	policy := s.own[name+path]
	if policy == nil {
		policy = &server{version: "default", cached: map[string]float64{}}
		s.own[name+path] = policy
	}
	_, _ = fmt.Sscan(string(data), &policy.weight)
	if s.corrupt > 0 {
		s.corrupt--
		policy.weight += 1
	}
}

// told are the calls since the last time.
func (s *adapterServer) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// adapter writes a directory with an adapter of the given weight.
func adapter(t *testing.T, weight float64) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"adapter_model.safetensors": fmt.Sprint(weight), "adapter_config.json": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAdapters(t *testing.T) {
	s, g, holds := newAdapterServer(t), &gate{}, &trainer{}
	cfg := DefaultConfig()
	cfg.Method, cfg.Canary.Vocab = MethodLora, 340
	p, err := New(Lora{}, cfg, Deps{Scorer: holds, Gate: g, Model: "policy"})
	if err != nil {
		t.Fatal(err)
	}
	push := func(version int32, dir string, weight float64) (Report, error) {
		t.Helper()
		holds.weight = weight
		return p.Push(t.Context(), version, dir, []string{s.URL})
	}
	base := exported(t, 0, false)
	steps := []struct {
		version int32
		dir     string
		weight  float64
		corrupt int
		calls   []string
		gate    []string
	}{
		{0, base, 0, 0, nil, []string{"approve v0"}},
		{1, adapter(t, 1), 1, 0, []string{"load policy-v1"}, []string{"approve v1"}},
		{2, adapter(t, 2), 2, 0, []string{"load policy-v2"}, []string{"approve v2"}},
		{3, adapter(t, 3), 3, 1, []string{"unload policy-v1", "load policy-v3", "unload policy-v3", "load policy-v3", "reset"}, []string{"approve v3"}},
		{1, adapter(t, 1), 1, 0, []string{"unload policy-v2", "unload policy-v3", "load policy-v1"}, []string{"approve v1"}},
	}
	for _, step := range steps {
		s.corrupt = step.corrupt
		r, err := push(step.version, step.dir, step.weight)
		if err != nil {
			t.Fatalf("v%d: %v", step.version, err)
		}
		calls := s.told()
		if step.version == 1 {
			slices.Sort(calls[:len(calls)-1]) // models are listed in no order
		}
		if !slices.Equal(calls, step.calls) {
			t.Errorf("v%d: calls %q, want %q", step.version, calls, step.calls)
		}
		if told := g.of(s.server); !slices.Equal(told, step.gate) {
			t.Errorf("v%d: the gate was told %q, want %q", step.version, told, step.gate)
		}
		if e := r.Endpoints[0]; e.Attempts != 1+step.corrupt || e.Pause != e.Load || e.Cold.Max > 1e-6 || e.Warm.Max > 1e-6 {
			t.Errorf("v%d: %+v", step.version, e)
		}
	}

	s.corrupt = 2
	if _, err := push(2, adapter(t, 2), 2); milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), "version 1 was put back") {
		t.Errorf("a corrupted adapter: %v", err)
	}
	if told := g.of(s.server); !slices.Equal(told, []string{"quarantine v2"}) {
		t.Errorf("the gate was told %q", told)
	}
	if _, err := push(2, base, 2); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "holds no adapter") {
		t.Errorf("a whole model as version 2: %v", err)
	}
}

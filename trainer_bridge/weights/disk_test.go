package weights

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	calls  int
}

func (s *trainer) Score(_ context.Context, sequences [][]int32) ([][]float32, error) {
	s.calls++
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

	skipReload bool   // the call succeeds, the weights stay
	staleCache bool   // a reset of the prefix cache is acknowledged and not done
	busy       bool   // requests hold blocks: a reset without preemption fails
	fail       string // path that answers 500
	hang       string // path that does not answer

	mu      sync.Mutex
	weight  float64
	version string
	cached  map[string]float64 // weight under which a prompt's prefix was computed
	calls   []string
}

func newServer(t *testing.T) *server {
	s := &server{version: "default", cached: map[string]float64{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
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
	if r.URL.Path == s.fail {
		http.Error(w, `{"error":{"message":"made to fail"}}`, http.StatusInternalServerError)
		return
	}
	var in struct {
		Kwargs   map[string]string `json:"kwargs"`
		New      string            `json:"new_version"`
		TokenIDs []int32           `json:"token_ids"`
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
		if !s.skipReload {
			_, _ = fmt.Sscan(string(data), &s.weight)
		}
	case "/reset_prefix_cache":
		ok := !s.busy || r.URL.Query().Get("reset_running_requests") == "true"
		if ok && !s.staleCache {
			s.cached = map[string]float64{}
		}
		out["success"] = ok
	case "/update_weight_version":
		s.version = in.New
	case "/inference/v1/generate":
		out["choices"] = []any{s.sample(in.TokenIDs, in.Sampling.MaxTokens)}
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (s *server) sample(prompt []int32, n int) map[string]any {
	key := fmt.Sprint(prompt)
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

type gate struct{ states []string }

func (g *gate) Pause()  { g.states = append(g.states, "shut") }
func (g *gate) Resume() { g.states = append(g.states, "open") }

type rig struct {
	disk    *Disk
	trainer *trainer
	gate    *gate
	servers []*server
}

func newRig(t *testing.T, servers int, change func(*DiskConfig)) *rig {
	t.Helper()
	r := &rig{trainer: &trainer{}, gate: &gate{}}
	var urls []string
	for range servers {
		s := newServer(t)
		r.servers = append(r.servers, s)
		urls = append(urls, s.URL)
	}
	cfg := DefaultDiskConfig()
	cfg.Canary.Vocab = 340
	if change != nil {
		change(&cfg)
	}
	client := &http.Client{}
	t.Cleanup(client.CloseIdleConnections)
	var err error
	if r.disk, err = NewDisk(urls, cfg, Deps{Scorer: r.trainer, Gate: r.gate, HTTP: client}); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPush(t *testing.T) {
	r := newRig(t, 2, nil)
	dir := exported(t, 0.5, false)
	r.trainer.weight = 0.5
	report, err := r.disk.Push(t.Context(), 12, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/pause?mode=keep&clear_cache=true", "/collective_rpc", "/reset_prefix_cache?reset_running_requests=true", "/update_weight_version", "/resume"}
	for i, s := range r.servers {
		if !slices.Equal(s.calls, want) || s.weight != 0.5 || s.version != "v12" {
			t.Errorf("server %d: calls %v, weight %v, version %s", i, s.calls, s.weight, s.version)
		}
		e := report.Endpoints[i]
		if e.URL != s.URL || e.Pause <= 0 || e.Reload > e.Pause || e.Cold.Tokens != 64 || e.Warm.Tokens != 64 || e.Error != "" {
			t.Errorf("report of server %d: %+v", i, e)
		}
	}
	if report.Gap.Tokens != 256 || report.Gap.Mean > 1e-6 || report.Total < report.Pause || r.trainer.calls != 1 {
		t.Errorf("report %+v after %d calls of the trainer", report, r.trainer.calls)
	}
	if got := strings.Join(r.gate.states, " "); got != "shut open" {
		t.Errorf("gate %s", got)
	}
	if m := report.Metrics(); m["push_version"] != 12 || m["canary_tokens"] != 256 {
		t.Errorf("metrics %v", m)
	}
}

// TestCanaryCatches shows the canary every way in which a push that answered 200 did not take.
func TestCanaryCatches(t *testing.T) {
	cases := map[string]struct {
		wrong func(*rig)
		tied  bool
		want  string
	}{
		"a skipped reload":         {func(r *rig) { r.servers[1].skipReload = true }, false, "does not serve the trainer's weights: mean logprob gap 0.002"},
		"tied embeddings":          {func(r *rig) { r.servers[1].skipReload = true }, true, "export an untied lm_head.weight"},
		"a stale prefix cache":     {func(r *rig) { r.servers[1].staleCache = true }, false, "does not serve the trainer's weights"},
		"other weights in trainer": {func(r *rig) { r.trainer.weight = 0.1 }, false, "cold prefix cache"},
		"no numbers":               {func(r *rig) { r.trainer.weight = math.NaN() }, false, "mean logprob gap +Inf"},
		"a version not taken":      {func(r *rig) { r.servers[1].fail = "/update_weight_version" }, false, "made to fail"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, nil)
			if _, err := r.disk.Push(t.Context(), 1, exported(t, 0, c.tied)); err != nil {
				t.Fatal(err)
			}
			r.trainer.weight = 0.002 // one small update
			c.wrong(r)
			report, err := r.disk.Push(t.Context(), 2, exported(t, 0.002, c.tied))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
			if !strings.Contains(err.Error(), r.servers[1].URL) || report.Endpoints[1].Error == "" {
				t.Errorf("the error names no endpoint: %v", err)
			}
			if got := strings.Join(r.gate.states, " "); got != "shut open shut" {
				t.Errorf("gate %s; nothing may sample after a failed push", got)
			}
		})
	}
}

func TestVersionOfTheCanaryIsChecked(t *testing.T) {
	r := newRig(t, 1, nil)
	if _, err := r.disk.Push(t.Context(), 3, exported(t, 0, false)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.disk.Verify(t.Context(), 3, "dir"); err != nil {
		t.Errorf("verify of what was pushed: %v", err)
	}
	if _, err := r.disk.Verify(t.Context(), 4, "dir"); milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), "under version 3, pushed was 4") {
		t.Errorf("verify of another version: %v", err)
	}
}

func TestServerIsResumedWhateverFails(t *testing.T) {
	for _, path := range []string{"/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version"} {
		r := newRig(t, 1, nil)
		r.servers[0].fail = path
		_, err := r.disk.Push(t.Context(), 1, exported(t, 0, false))
		calls := r.servers[0].calls
		if milepost.KindOf(err) != milepost.KindUnavailable || calls[len(calls)-1] != "/resume" || r.trainer.calls != 0 {
			t.Errorf("%s fails: %v, calls %v", path, err, calls)
		}
	}
	r := newRig(t, 1, func(c *DiskConfig) { c.ReloadTimeout = 20 * time.Millisecond })
	r.servers[0].hang = "/collective_rpc"
	_, err := r.disk.Push(t.Context(), 1, exported(t, 0, false))
	if milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "no answer within 20ms") || !slices.Contains(r.servers[0].calls, "/resume") {
		t.Errorf("a reload that hangs: %v, calls %v", err, r.servers[0].calls)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r = newRig(t, 1, nil)
	r.servers[0].hang = "/collective_rpc"
	if _, err := r.disk.Push(ctx, 1, exported(t, 0, false)); err == nil || !slices.Contains(r.servers[0].calls, "/resume") {
		t.Errorf("the caller gave up: %v, calls %v", err, r.servers[0].calls)
	}
}

func TestRequestsInFlight(t *testing.T) {
	for mode, want := range map[string]milepost.Kind{InFlightRecompute: "", InFlightRefuse: milepost.KindConflict} {
		r := newRig(t, 1, func(c *DiskConfig) { c.InFlight = mode })
		r.servers[0].busy = true
		if _, err := r.disk.Push(t.Context(), 1, exported(t, 0, false)); milepost.KindOf(err) != want {
			t.Errorf("%s: %v, want kind %q", mode, err, want)
		}
	}
}

func TestPushRefusesBadInput(t *testing.T) {
	r := newRig(t, 1, nil)
	for _, c := range []struct {
		version int32
		dir     string
		kind    milepost.Kind
	}{
		{-1, exported(t, 0, false), milepost.KindInvalid},
		{1, "relative", milepost.KindInvalid},
		{1, t.TempDir(), milepost.KindNotFound},
	} {
		if _, err := r.disk.Push(t.Context(), c.version, c.dir); milepost.KindOf(err) != c.kind {
			t.Errorf("version %d of %s: %v, want %s", c.version, c.dir, err, c.kind)
		}
	}
	if len(r.servers[0].calls)+len(r.gate.states) != 0 {
		t.Errorf("a refused push touched the server or the gate: %v, %v", r.servers[0].calls, r.gate.states)
	}
	r.trainer.err = errors.New("trainer is gone")
	if _, err := r.disk.Push(t.Context(), 1, exported(t, 0, false)); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("trainer gone: %v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*DiskConfig){
		"in_flight":      func(c *DiskConfig) { c.InFlight = "keep" },
		"reload_timeout": func(c *DiskConfig) { c.ReloadTimeout = 0 },
		"prompts is 0":   func(c *DiskConfig) { c.Canary.Prompts = 0 },
		"vocabulary":     func(c *DiskConfig) { c.Canary.Vocab = 0 },
		`dtype "int4"`:   func(c *DiskConfig) { c.Canary.DType = "int4" },
		"bound is -1":    func(c *DiskConfig) { c.Canary.Bound = -1 },
	} {
		cfg := DefaultDiskConfig()
		cfg.Canary.Vocab = 340
		change(&cfg)
		if _, err := NewDisk([]string{"http://a"}, cfg, Deps{Scorer: &trainer{}}); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want KindInvalid with %q", err, want)
		}
	}
	if n, err := Vocab(exported(t, 0, false)); n != 340 || err != nil {
		t.Errorf("vocabulary %d, %v", n, err)
	}
	if _, err := Vocab(t.TempDir()); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no config.json: %v", err)
	}
}

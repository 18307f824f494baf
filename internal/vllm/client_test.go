package vllm

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

func serve(t *testing.T, answer func(w http.ResponseWriter, path, body string)) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		answer(w, r.URL.RequestURI(), string(data))
	}))
	t.Cleanup(server.Close)
	c, err := New(Config{URL: server.URL + "/", Model: "policy", APIKey: "key", HTTP: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// real is an answer of vLLM 0.32, shortened.
const real = `{"request_id":"generate-tokens-1","model":"policy","output_mode":"text","choices":[{"index":0,"finish_reason":"stop","stop_reason":2,
"token_ids":[386,217,2],"weight_versions":[{"version":"default","start":0,"end":1},{"version":"v7","start":1,"end":3}],"text":" add�",
"logprobs":{"content":[{"token":" add","logprob":-4.729455471038818},{"token":"","logprob":-3.5},{"token":"<|im_end|>","logprob":0.0}]}}]}`

func TestGenerate(t *testing.T) {
	var path, body string
	c := serve(t, func(w http.ResponseWriter, p, b string) { path, body = p, b; _, _ = io.WriteString(w, real) })
	g, err := c.Generate(t.Context(), "s", []int32{1, 88}, Params{Temperature: 0.7, TopP: 1, MaxTokens: 12, Seed: new(int64(1<<53 - 1)), Stop: []int32{2}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.IDs, []int32{386, 217, 2}) || !slices.Equal(g.Versions, []int32{0, 7, 7}) || g.Logprobs[0] != -4.7294555 || g.Finish != "stop" || g.Text != " add�" {
		t.Errorf("generation %+v", g)
	}
	want := `{"model":"policy","token_ids":[1,88],"sampling_params":{"temperature":0.7,"top_p":1,"top_k":0,"min_p":0,"max_tokens":12,"ignore_eos":false,"seed":9007199254740991,` +
		`"stop_token_ids":[2],"logprobs":0,"skip_special_tokens":false,"spaces_between_special_tokens":false},"output_mode":"text"}`
	if path != "/inference/v1/generate" || body != want {
		t.Errorf("asked %s\n%s\nwant\n%s", path, body, want)
	}
}

func TestGenerateRefusesWhatIsNotAligned(t *testing.T) {
	for name, change := range map[string][2]string{
		"a logprob is missing":        {`,{"token":"<|im_end|>","logprob":0.0}`, ``},
		"a version gap":               {`"start":1,"end":3`, `"start":2,"end":3`},
		"versions end early":          {`"start":1,"end":3`, `"start":1,"end":2`},
		"versions run over":           {`"start":1,"end":3`, `"start":1,"end":4`},
		"no versions":                 {`"weight_versions":[{"version":"default","start":0,"end":1},{"version":"v7","start":1,"end":3}]`, `"weight_versions":null`},
		"an unknown version":          {`"v7"`, `"latest"`},
		"a logprob of minus infinity": {`-3.5`, `-9999.0`},
		"no choice":                   {`"choices":[{`, `"choices":[],"x":[{`},
		"no JSON":                     {`{"request_id"`, `<html>`},
	} {
		answer := strings.Replace(real, change[0], change[1], 1)
		if answer == real {
			t.Fatalf("%s: nothing was replaced", name)
		}
		c := serve(t, func(w http.ResponseWriter, _, _ string) { _, _ = io.WriteString(w, answer) })
		if _, err := c.Generate(t.Context(), "", []int32{1}, Params{MaxTokens: 3}); milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), c.URL()) {
			t.Errorf("%s: %v, want KindCorrupt that names the server", name, err)
		}
	}
	c := serve(t, func(w http.ResponseWriter, _, _ string) {
		_, _ = io.WriteString(w, strings.Replace(real, `"finish_reason":"stop"`, `"finish_reason":"abort"`, 1))
	})
	if _, err := c.Generate(t.Context(), "", []int32{1}, Params{MaxTokens: 3}); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("aborted: %v, want KindUnavailable", err)
	}
}

func TestCompleteTakesTheOlderVersion(t *testing.T) {
	versions := []string{"v4", "v5"}
	c := serve(t, func(w http.ResponseWriter, path, _ string) {
		if path == "/weight_info" {
			fmt.Fprintf(w, `{"weight_version":%q}`, versions[0])
			versions = versions[1:]
			return
		}
		_, _ = io.WriteString(w, `{"choices":[{"finish_reason":"length","text":"x","token_ids":[5,6],"logprobs":{"token_logprobs":[-1,-2]}}]}`)
	})
	g, err := c.Complete(t.Context(), "", []int32{1}, Params{MaxTokens: 2})
	if err != nil || !slices.Equal(g.Versions, []int32{4, 4}) || !slices.Equal(g.Logprobs, []float32{-1, -2}) {
		t.Errorf("generation %+v, %v", g, err)
	}
}

func TestErrorKinds(t *testing.T) {
	for _, c := range []struct {
		code int
		body string
		kind milepost.Kind
		want string
	}{
		{400, `{"error":{"message":"Token id 100000 is out of vocabulary","code":400}}`, milepost.KindInvalid, "Token id 100000 is out of vocabulary"},
		{401, `{"error":"Unauthorized"}`, milepost.KindDenied, "Unauthorized"},
		{404, `{"detail":"Not Found"}`, milepost.KindNotFound, "HTTP 404: Not Found"},
		{422, `{"detail":[{"msg":"Field required"}]}`, milepost.KindInvalid, "Field required"},
		{429, ``, milepost.KindUnavailable, "no message"},
		{500, `boom`, milepost.KindUnavailable, "boom"},
		{503, strings.Repeat("x", 5000), milepost.KindUnavailable, "x …"},
	} {
		client := serve(t, func(w http.ResponseWriter, _, _ string) { w.WriteHeader(c.code); _, _ = io.WriteString(w, c.body) })
		if err := client.Health(t.Context()); milepost.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("HTTP %d: %v, want %s with %q", c.code, err, c.kind, c.want)
		}
	}
	slow := serve(t, func(http.ResponseWriter, string, string) { time.Sleep(50 * time.Millisecond) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := slow.Health(ctx); milepost.KindOf(err) != milepost.KindTimeout {
		t.Errorf("deadline: %v, want KindTimeout", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := slow.Health(ctx); milepost.KindOf(err) != milepost.KindCanceled {
		t.Errorf("cancelled: %v, want KindCanceled", err)
	}
	gone, err := New(Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Health(t.Context()); milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "http://127.0.0.1:1") {
		t.Errorf("nobody listens: %v, want KindUnavailable", err)
	}
	for _, bad := range []string{"", "host:1", "ftp://h", "http://"} {
		if _, err := New(Config{URL: bad}); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("address %q: %v", bad, err)
		}
	}
}

func TestVersions(t *testing.T) {
	for s, want := range map[string]int32{"default": 0, "v0": 0, "v12": 12, "12": 12} {
		if got, err := ParseVersion(s); got != want || err != nil {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "v", "v-1", "latest", "v1.5", "9999999999"} {
		if _, err := ParseVersion(s); milepost.KindOf(err) != milepost.KindCorrupt {
			t.Errorf("%q was accepted: %v", s, err)
		}
	}
	if v, err := ParseVersion(FormatVersion(31)); v != 31 || err != nil {
		t.Errorf("round trip: %d, %v", v, err)
	}
}

func TestMetrics(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _, _ string) {
		_, _ = io.WriteString(w, `# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="policy"} 3.0
vllm:num_requests_running{engine="1",model_name="policy"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:prefix_cache_queries_created{engine="0"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0"} 128.0
`)
	})
	m, err := c.Metrics(t.Context())
	if want := (Metrics{Running: 5, Waiting: 1, KVCacheUsage: 0.5, PrefixHits: 128}); err != nil || m != want {
		t.Errorf("metrics %+v, %v", m, err)
	}
	for _, bad := range []string{"", "vllm:num_requests_running many"} {
		c := serve(t, func(w http.ResponseWriter, _, _ string) { _, _ = io.WriteString(w, bad) })
		if _, err := c.Metrics(t.Context()); milepost.KindOf(err) != milepost.KindCorrupt {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestServerCommand(t *testing.T) {
	cfg := DefaultServerConfig()
	cfg.Model, cfg.Port, cfg.Args, cfg.Env = "/m", 8000, []string{"--seed=1"}, map[string]string{"HF_HUB_OFFLINE": "0"}
	got := strings.Join(cfg.Argv("/env"), " ")
	want := "/env/bin/python -m vllm.entrypoints.openai.api_server --model /m --served-model-name policy --host 127.0.0.1 --port 8000" +
		" --dtype float32 --max-model-len 4096 --generation-config vllm --logprobs-mode processed_logprobs --enable-scale-out" +
		" --disable-uvicorn-access-log --enforce-eager --seed=1"
	if got != want {
		t.Errorf("command\n%s\nwant\n%s", got, want)
	}
	cfg.Command, cfg.TensorParallel = []string{"vllm", "serve"}, 4
	if got := strings.Join(cfg.Argv(""), " "); !strings.Contains(got, " --tensor-parallel-size 4 ") {
		t.Errorf("command %s", got)
	}
	if got := strings.Join(cfg.Argv(""), " "); !strings.HasPrefix(got, "vllm serve /m --served-model-name") {
		t.Errorf("command %s", got)
	}
	if env := cfg.Environ(); env["VLLM_SERVER_DEV_MODE"] != "1" || env["VLLM_CPU_KVCACHE_SPACE"] != "1" || env["HF_HUB_OFFLINE"] != "0" {
		t.Errorf("environment %v", env)
	}
	cfg.Port = 0
	free, err := cfg.WithPort()
	if err != nil || free.Port == 0 || free.Addresses()[0] != fmt.Sprintf("http://127.0.0.1:%d", free.Port) {
		t.Errorf("port %d, addresses %v, %v", free.Port, free.Addresses(), err)
	}
	for want, change := range map[string]func(*ServerConfig){
		`dtype "auto"`:        func(c *ServerConfig) { c.DType = "auto" },
		"replicas is -1":      func(c *ServerConfig) { c.Replicas = -1 },
		"above 65535":         func(c *ServerConfig) { c.Replicas, c.Port = 2, 65535 },
		"port is 70000":       func(c *ServerConfig) { c.Port = 70000 },
		"max_model_len is 1;": func(c *ServerConfig) { c.MaxModelLen = 1 },
		"urls[0]":             func(c *ServerConfig) { c.URLs = []string{"x"} },
		"name is empty":       func(c *ServerConfig) { c.Name = "" },
		`host "here"`:         func(c *ServerConfig) { c.Host = "here" },
		"set by dtype":        func(c *ServerConfig) { c.Args = []string{"--dtype=half"} },
		"kv_cache_gb -1":      func(c *ServerConfig) { c.KVCacheGB = -1 },
	} {
		c := DefaultServerConfig()
		change(&c)
		if err := c.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want KindInvalid with %q", err, want)
		}
	}
}

func TestReplica(t *testing.T) {
	cpu := DefaultServerConfig()
	cpu.Replicas, cpu.Port, cpu.Env = 2, 8000, map[string]string{"X": "1"}
	gpu := cpu
	gpu.Command, gpu.TensorParallel = []string{"vllm", "serve"}, 2
	own := gpu
	own.Env = map[string]string{"CUDA_VISIBLE_DEVICES": "6,7"}
	one := cpu
	one.Replicas = 1
	for _, c := range []struct {
		cfg     ServerConfig
		cores   int
		visible string
		want    map[string]string
	}{
		{cpu, 8, "", map[string]string{"OMP_NUM_THREADS": "4", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "X": "1"}},
		{cpu, 1, "", map[string]string{"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "X": "1"}},
		{gpu, 8, "", map[string]string{"CUDA_VISIBLE_DEVICES": "2,3", "X": "1"}},
		{gpu, 8, "7,5,3,1", map[string]string{"CUDA_VISIBLE_DEVICES": "3,1", "X": "1"}},
		{own, 8, "0", own.Env},
		{one, 8, "0", map[string]string{"X": "1"}},
	} {
		got, err := c.cfg.Replica(1, c.cores, c.visible)
		if err != nil || got.Port != 8001 || got.Replicas != 1 || !maps.Equal(got.Env, c.want) {
			t.Errorf("replica 1 of %+v: port %d, environment %v, %v; want %v", c, got.Port, got.Env, err, c.want)
		}
	}
	if _, err := gpu.Replica(0, 8, "0,1"); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "2 replicas of tensor_parallel 2 need 4") {
		t.Errorf("too few devices: %v", err)
	}
}

func TestCheckModel(t *testing.T) {
	cfg := DefaultServerConfig()
	check := func(kind milepost.Kind, want string) {
		t.Helper()
		if err := cfg.CheckModel(); milepost.KindOf(err) != kind || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("error %v, want %q with %q", err, kind, want)
		}
	}
	check(milepost.KindInvalid, "server.model is empty")
	dir := t.TempDir()
	cfg.Model = filepath.Join(dir, "none")
	check(milepost.KindNotFound, "does not exist")
	cfg.Model = dir
	for _, name := range []string{"config.json", "tokenizer_config.json", "model.safetensors"} {
		check(milepost.KindNotFound, "has no "+strings.Replace(name, "model.", "*.", 1))
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check("", "")
}

package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/milepost-rl/milepost/internal/vllm"
)

// The fake's vocabulary: the 256 bytes, special tokens, and a few merged pieces, among them halves of characters.
const (
	tokStart = 256 + iota
	tokEnd
	tokText // <|endoftext|>: stops a turn too, but is not the template's end of turn
	tokPieces
)

var (
	specials = []string{"<|im_start|>", "<|im_end|>", "<|endoftext|>"}
	pieces   = []string{"\n\n", "  ", "tool", "tool_call", "\xf0\x9f", "\x99\x82", "\xe6\xbc", "é", "<|", "|>", "im", "assistant\n", ">\n"}
)

func decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		switch {
		case id < 256:
			b.WriteByte(byte(id))
		case id < tokPieces:
			b.WriteString(specials[id-256])
		default:
			b.WriteString(pieces[id-tokPieces])
		}
	}
	return b.String()
}

// encode finds special tokens first, then the longest piece at each place, as a BPE of these merges would.
func encode(text string) []int32 {
	ids := []int32{}
next:
	for text != "" {
		for i, s := range specials {
			if strings.HasPrefix(text, s) {
				ids, text = append(ids, int32(256+i)), text[len(s):]
				continue next
			}
		}
		best, id := 1, int32(text[0])
		for i, p := range pieces {
			if len(p) > best && strings.HasPrefix(text, p) {
				best, id = len(p), int32(tokPieces+i)
			}
		}
		ids, text = append(ids, id), text[best:]
	}
	return ids
}

type fakePrompt struct {
	Messages   []vllm.Message    `json:"messages"`
	Tools      []json.RawMessage `json:"tools"`
	ToolChoice string            `json:"tool_choice"`
	Generation *bool             `json:"add_generation_prompt"`
}

// chatML is the template of the fake; a test may change how it writes a message, given the number of messages.
func chatML(p fakePrompt, write func(i, n int, m vllm.Message) string) string {
	var b strings.Builder
	for i, m := range p.Messages {
		if i == 0 && len(p.Tools) > 0 {
			m.Content += "\n\n# Tools"
			for _, t := range p.Tools {
				m.Content += "\n" + string(t)
			}
		}
		b.WriteString(write(i, len(p.Messages), m))
	}
	if p.Generation == nil || *p.Generation {
		b.WriteString("<|im_start|>assistant\n")
	}
	return b.String()
}

func plain(_, _ int, m vllm.Message) string {
	if m.Role == "tool" {
		m.Role, m.Content = "user", "<tool_response>\n"+m.Content+"\n</tool_response>"
	}
	return "<|im_start|>" + m.Role + "\n" + m.Content + "<|im_end|>\n"
}

type fakeTurn struct {
	prompt, ids []int32
	versions    []int32
	text        string
	finish      string
}

// fakeServer answers like vLLM. What it samples is random by the request's seed: well-formed calls, text with Unicode,
// broken bytes; ended by the end token, by another stop token, or cut by length.
type fakeServer struct {
	render  func(fakePrompt) string
	version int32
	fail    func(path string) int // HTTP status to fail with, 0 = none

	mu       sync.Mutex
	turns    map[string][]fakeTurn // by session
	requests map[string]int        // by path
	salts    []string              // of the samplings
}

func newFake() *fakeServer {
	return &fakeServer{
		render: func(p fakePrompt) string { return chatML(p, plain) },
		turns:  map[string][]fakeTurn{}, requests: map[string]int{},
	}
}

// RoundTrip makes the fake an HTTP transport, so that thousands of conversations need no socket.
func (f *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w.Result(), nil
}

type fakeRequest struct {
	fakePrompt
	Prompt   json.RawMessage `json:"prompt"`
	Tokens   []int32         `json:"tokens"`
	TokenIDs []int32         `json:"token_ids"`
	Special  *bool           `json:"add_special_tokens"`
	Output   string          `json:"output_mode"`
	Salt     string          `json:"cache_salt"`
	Sampling fakeSampling    `json:"sampling_params"`
	fakeSampling
}

type fakeSampling struct {
	Seed        int64   `json:"seed"`
	MaxTokens   int     `json:"max_tokens"`
	Stop        []int32 `json:"stop_token_ids"`
	Temperature float64 `json:"temperature"`
	TopP        float64 `json:"top_p"`
	TopK        int     `json:"top_k"`
	Skip        *bool   `json:"skip_special_tokens"`
	RoutesFrom  int     `json:"routed_experts_prompt_start"`
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests[r.URL.Path]++
	if f.fail != nil {
		if code := f.fail(r.URL.Path); code != 0 {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"error":{"message":"made to fail"}}`)
			return
		}
	}
	var in fakeRequest
	if r.Body != nil && r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	out := map[string]any{}
	switch r.URL.Path {
	case "/health":
	case "/weight_info":
		out["weight_version"] = vllm.FormatVersion(f.version)
	case "/tokenize":
		if in.Messages != nil {
			out["tokens"] = encode(f.render(in.fakePrompt))
			break
		}
		var text string
		if json.Unmarshal(in.Prompt, &text) != nil || in.Special == nil || *in.Special {
			http.Error(w, "prompt must be text, add_special_tokens false", http.StatusBadRequest)
			return
		}
		out["tokens"], out["max_model_len"] = encode(text), 1<<20
	case "/detokenize":
		out["prompt"] = strings.ToValidUTF8(decode(in.Tokens), "\uFFFD")
	case "/v1/chat/completions/render":
		if len(in.Tools) > 0 && in.ToolChoice != "none" {
			http.Error(w, `{"error":{"message":"\"auto\" tool choice requires --enable-auto-tool-choice"}}`, http.StatusBadRequest)
			return
		}
		out["token_ids"] = encode(f.render(in.fakePrompt))
	case "/inference/v1/generate":
		if in.Output != "text" || in.Sampling.Skip == nil || *in.Sampling.Skip || in.Sampling.TopP != 1 || in.Sampling.TopK != 0 {
			http.Error(w, "unexpected sampling parameters", http.StatusBadRequest)
			return
		}
		f.salts = append(f.salts, in.Salt)
		out["choices"] = []any{f.generate(r.Header.Get("X-Session-ID"), in.TokenIDs, in.Sampling, true)}
	case "/v1/completions":
		var ids []int32
		if json.Unmarshal(in.Prompt, &ids) != nil {
			http.Error(w, "prompt must be token ids", http.StatusBadRequest)
			return
		}
		f.salts = append(f.salts, in.Salt)
		out["choices"] = []any{f.generate(r.Header.Get("X-Session-ID"), ids, in.fakeSampling, false)}
	default:
		http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(out)
}

// logprobOf is the fake's logprob of a token at a place of the whole sequence.
func logprobOf(id int32, at int) float32 { return -float32(id%17)/8 - float32(at%29)/16 - 0.25 }

func (f *fakeServer) generate(session string, prompt []int32, p fakeSampling, spans bool) map[string]any {
	rng := rand.New(rand.NewPCG(uint64(p.Seed), 1))
	ids := sampleTurn(rng)
	finish := "stop"
	if len(ids) > p.MaxTokens {
		ids, finish = ids[:p.MaxTokens], "length"
	}
	turn := fakeTurn{prompt: prompt, ids: ids, finish: finish}
	shown := ids
	if finish == "stop" {
		shown = ids[:len(ids)-1]
	}
	turn.text = strings.ToValidUTF8(decode(shown), "\uFFFD")
	var content, plain []any
	for i, id := range ids {
		content = append(content, map[string]any{"token": "?", "logprob": logprobOf(id, len(prompt)+i)})
		plain = append(plain, logprobOf(id, len(prompt)+i))
	}
	choice := map[string]any{"finish_reason": finish, "token_ids": ids, "text": turn.text, "routed_experts": fakeRoutes(slices.Concat(prompt, ids), p.RoutesFrom)}
	if spans {
		cut := rng.IntN(len(ids) + 1) // the weights may change in the middle of a turn
		var list []any
		if cut > 0 {
			list = append(list, map[string]any{"version": vllm.FormatVersion(f.version), "start": 0, "end": cut})
		}
		if cut < len(ids) {
			f.version++
			list = append(list, map[string]any{"version": fmt.Sprint(f.version), "start": cut, "end": len(ids)})
		}
		for i := range ids {
			v := f.version
			if i < cut && cut < len(ids) {
				v--
			}
			turn.versions = append(turn.versions, v)
		}
		choice["logprobs"], choice["weight_versions"] = map[string]any{"content": content}, list
	} else {
		for range ids {
			turn.versions = append(turn.versions, f.version)
		}
		f.version += int32(rng.IntN(2)) // the second reading is newer: tokens take the older
		choice["logprobs"] = map[string]any{"token_logprobs": plain}
	}
	f.turns[session] = append(f.turns[session], turn)
	return choice
}

var said = []string{
	"<tool_call>\n{\"name\": \"read_file\", \"arguments\": {\"path\": \"naïve/漢字 🙂.py\"}}\n</tool_call>",
	"I look first.\n\n<tool_call>\n<function=search>\n<parameter=query>\n  🙂\n\n</parameter>\n</function>\n</tool_call>",
	"", "é\n\n", "no call at all  ",
}

// sampleTurn makes one turn with its stop token: mostly text in the tokenizer's own form, else any tokens.
func sampleTurn(rng *rand.Rand) []int32 {
	var ids []int32
	if rng.IntN(3) > 0 {
		ids = encode(said[rng.IntN(len(said))])
	} else {
		for range rng.IntN(40) {
			id := int32(rng.IntN(tokPieces + len(pieces)))
			if id == tokEnd || id == tokText {
				id = 0xf0 // the first byte of a character that never ends
			}
			ids = append(ids, id)
		}
	}
	if rng.IntN(8) == 0 {
		return append(ids, tokText)
	}
	return append(ids, tokEnd)
}

func newTestPool(t *testing.T, transport http.RoundTripper, urls ...string) *Pool {
	t.Helper()
	cfg := DefaultPoolConfig()
	cfg.URLs = urls
	p, err := NewPool(cfg, PoolDeps{HTTP: &http.Client{Transport: transport}, Clock: newFakeClock(), Rand: func() float64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range urls {
		p.Trust(u)
	}
	return p
}

func TestFakeTokenizer(t *testing.T) {
	for _, text := range append(slices.Clone(said), "<|im_start|>x<|im_end|>\n", "\xf0\x9f\x99\x82 tool_call<|im") {
		if got := decode(encode(text)); got != text {
			t.Errorf("decode(encode(%q)) = %q", text, got)
		}
	}
}

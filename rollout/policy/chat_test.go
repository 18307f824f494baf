package policy

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// chatServer answers each request with the next of its answers and keeps the bodies.
type chatServer struct {
	answers []string // JSON, or a status code and JSON: "429 {…}"
	bodies  []map[string]any
}

func (s *chatServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, _ := io.ReadAll(r.Body)
	var body map[string]any
	_ = json.Unmarshal(data, &body)
	body["authorization"] = r.Header.Get("Authorization")
	s.bodies = append(s.bodies, body)
	answer := s.answers[0]
	s.answers = s.answers[1:]
	if code, rest, ok := strings.Cut(answer, " {"); ok && len(code) == 3 {
		w.WriteHeader(int(code[0]-'0')*100 + int(code[1]-'0')*10 + int(code[2]-'0'))
		answer = "{" + rest
	}
	_, _ = io.WriteString(w, answer)
}

func newChat(t *testing.T, s *chatServer, change func(*ChatConfig)) rollout.Conversation {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	cfg := DefaultChatConfig()
	cfg.BaseURL, cfg.Model, cfg.APIKey = server.URL+"/v1", "m", "key"
	if change != nil {
		change(&cfg)
	}
	m, err := NewChatModel(cfg, PoolDeps{Clock: newFakeClock(), HTTP: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	o := testOpening(3)
	o.Sampling = rollout.Sampling{Temperature: 0, TopP: 1, MaxTurnTokens: 100}
	o.MaxTokens = 120
	c, err := m.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	twoCalls = `{"choices":[{"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":[` +
		`{"id":"c1","type":"function","function":{"name":"search","arguments":"{\"query\": \"x\"}"}},` +
		`{"id":"c2","type":"function","function":{"name":"submit","arguments":"{"}}]}}],"usage":{"completion_tokens":30}}`
	noCall = `{"choices":[{"finish_reason":"length","message":{"role":"assistant","content":"hm"}}],"usage":{"completion_tokens":90}}`
)

func TestChatNativeTools(t *testing.T) {
	s := &chatServer{answers: []string{`429 {"error":{"message":"slow down"}}`, twoCalls, noCall}}
	c := newChat(t, s, func(c *ChatConfig) { c.Extra = map[string]any{"chat_template_kwargs": map[string]any{"x": true}} })
	turn, err := c.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(turn.Calls) != 2 || turn.Calls[0].Name != "search" || string(turn.Calls[1].Arguments) != "{" || turn.Finish != rollout.FinishStop || turn.Tokens != 30 {
		t.Errorf("turn %+v", turn)
	}
	first := s.bodies[1]
	if first["temperature"] != 0.0 || first["max_tokens"] != 100.0 || first["chat_template_kwargs"] == nil || first["seed"] == nil || first["authorization"] != "Bearer key" {
		t.Errorf("request %v lacks a field go-openai leaves out", first)
	}
	if err := c.Observe(t.Context(), rollout.ToolResult{CallID: "c1", Tool: "search", Text: "found"}); err != nil {
		t.Fatal(err)
	}
	turn, err = c.Next(t.Context())
	if err != nil || turn.Finish != rollout.FinishLength || turn.Calls == nil || turn.Text != "hm" {
		t.Errorf("turn %+v, %v", turn, err)
	}
	if got := s.bodies[2]["max_tokens"]; got != 90.0 {
		t.Errorf("max_tokens of the second turn is %v, want what is left of the budget, 90", got)
	}
	messages := s.bodies[2]["messages"].([]any)
	for i, want := range []string{"system", "user", "assistant", "tool", "tool"} {
		m := messages[i].(map[string]any)
		if m["role"] != want || m["content"] == nil {
			t.Errorf("message %d is %v, want role %s and a content", i, m, want)
		}
	}
	if m := messages[3].(map[string]any); m["content"] != "found" || m["tool_call_id"] != "c1" {
		t.Errorf("answer to the call: %v", m)
	}
	if _, err = c.Next(t.Context()); milepost.KindOf(err) != milepost.KindLimit {
		t.Errorf("budget spent: %v, want KindLimit", err)
	}
	if c.Samples() != nil {
		t.Error("a chat model has no samples")
	}
}

// TestChatUsageThatCannotBe: numbers below zero are none, so that no budget grows and no cost is made up of them.
func TestChatUsageThatCannotBe(t *testing.T) {
	for usage, told := range map[string]bool{
		`{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}`:    true,
		`{"prompt_tokens":7,"completion_tokens":-3,"prompt_tokens_details":{"cached_tokens":-2}}`:  false,
		`{"prompt_tokens":-7,"completion_tokens":-3,"prompt_tokens_details":{"cached_tokens":-2}}`: false, `null`: false,
	} {
		c := newChat(t, &chatServer{answers: []string{`{"choices":[{"finish_reason":"stop","message":{"role":"assistant","content":"hm"}}],"usage":` + usage + `}`}}, nil)
		turn, err := c.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		u := c.(*chatConversation).Usage()
		if turn.Tokens < 0 || u.Prompt < 0 || u.Completion < 0 || u.Cached < 0 || u.Told != told || told && (u.Prompt != 7 || u.Completion != 3 || u.Cached != 2) {
			t.Errorf("%s: turn of %d tokens, usage %+v", usage, turn.Tokens, u)
		}
	}
}

func TestChatTextTools(t *testing.T) {
	s := &chatServer{answers: []string{noCall, `400 {"error":{"message":"This model's maximum context length is 10 tokens"}}`}}
	c := newChat(t, s, func(c *ChatConfig) { c.NativeTools = false; c.TokenField = FieldMaxCompletionTokens })
	turn, err := c.Next(t.Context())
	if err != nil || turn.Calls != nil {
		t.Fatalf("turn %+v, %v; want nil calls, so that the loop parses", turn, err)
	}
	if err := c.Observe(t.Context(), rollout.ToolResult{Text: "no call found"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(t.Context()); milepost.KindOf(err) != milepost.KindLimit {
		t.Errorf("context exceeded: %v, want KindLimit", err)
	}
	body := s.bodies[1]
	messages := body["messages"].([]any)
	system, last := messages[0].(map[string]any), messages[len(messages)-1].(map[string]any)
	if body["tools"] != nil || !strings.Contains(system["content"].(string), `"name":"search"`) || body["max_completion_tokens"] == nil {
		t.Errorf("request %v: tools belong into the system message", body)
	}
	if last["role"] != "user" || last["content"] != "<tool_response>\nno call found\n</tool_response>" {
		t.Errorf("observation %v", last)
	}
}

func TestChatErrors(t *testing.T) {
	for answer, want := range map[string]milepost.Kind{
		`401 {"error":{"message":"bad key"}}`:  milepost.KindDenied,
		`404 {"error":{"message":"no model"}}`: milepost.KindNotFound,
		`422 {"error":{"message":"bad"}}`:      milepost.KindInvalid,
		`{"choices":[]}`:                       milepost.KindCorrupt,
	} {
		c := newChat(t, &chatServer{answers: []string{answer}}, nil)
		if _, err := c.Next(t.Context()); milepost.KindOf(err) != want {
			t.Errorf("%s: %v, want %s", answer, err, want)
		}
	}
	s := &chatServer{answers: []string{`500 {"e":1}`, `500 {"e":1}`, `500 {"e":1}`, `500 {"e":1}`, `500 {"e":1}`, `500 {"e":1}`}}
	if _, err := newChat(t, s, nil).Next(t.Context()); milepost.KindOf(err) != milepost.KindUnavailable || len(s.bodies) != 6 {
		t.Errorf("%d attempts, %v; want 6 and KindUnavailable", len(s.bodies), err)
	}
	if _, err := NewChatModel(ChatConfig{BaseURL: "nowhere"}, PoolDeps{}); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("bad configuration: %v", err)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// newBenchStubCommand is the endpoint of the loop's bench, in a process of its own so that its time is not the loop's.
func newBenchStubCommand() *cobra.Command {
	s := &loopStub{free: make(chan struct{})}
	var script string
	c := &cobra.Command{
		Use: "stub", Hidden: true, Args: cobra.NoArgs,
		Short: "Serve scripted turns as vLLM's token routes and as an OpenAI chat endpoint, until killed",
		RunE: func(c *cobra.Command, _ []string) error {
			const op = "bench: stub"
			b, err := os.ReadFile(script)
			if err == nil {
				err = json.Unmarshal(b, &s.script)
			}
			if err != nil {
				return milepost.Wrap(op, milepost.KindInvalid, err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return milepost.Wrap(op, milepost.KindUnavailable, err)
			}
			fmt.Fprintf(c.OutOrStdout(), "http://%s\n", l.Addr())
			server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: time.Minute}
			go func() { <-c.Context().Done(); _ = server.Close() }()
			if err := server.Serve(l); c.Context().Err() == nil {
				return milepost.Wrap(op, milepost.KindUnavailable, err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&script, "script", "", "file with the turns (loopScript)")
	c.Flags().DurationVar(&s.latency, "latency", 500*time.Millisecond, "how long a turn takes")
	c.Flags().IntVar(&s.holdTurn, "hold-turn", -1, "turn that is held until so many episodes wait for it; -1 = none")
	c.Flags().IntVar(&s.holdCount, "hold-count", 0, "how many")
	c.Flags().DurationVar(&s.holdFor, "hold-for", 5*time.Second, "how long they are held then")
	return c
}

// loopScript is what every episode of the bench does, as each of the two loops is told it.
type loopScript struct {
	Texts    []string `json:"texts"`    // sampled text of each turn, with its call, for Milepost
	Thoughts []string `json:"thoughts"` // the same without the call, for chat
	Commands []string `json:"commands"` // the bash command of each turn, for chat
	Observed string   `json:"observed"` // what each command prints, the last one excepted
}

// loopStub answers turn n of an episode with line n of the script, after the latency. It keeps nothing of an episode: a prompt
// says by itself which turn it asks for.
type loopStub struct {
	script    loopScript
	latency   time.Duration
	holdTurn  int
	holdCount int
	holdFor   time.Duration

	mu   sync.Mutex
	held int
	free chan struct{} // closed when nobody is held any more
}

func (s *loopStub) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /held", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = fmt.Fprint(w, s.held) // the client may be gone, here and below
	})
	handle(mux, "/tokenize", func(in struct{ Prompt string }) any {
		return map[string]any{"tokens": stubEncode(in.Prompt), "max_model_len": 1 << 20}
	})
	handle(mux, "/detokenize", func(in struct{ Tokens []int32 }) any { return map[string]any{"prompt": stubDecode(in.Tokens)} })
	handle(mux, "/v1/chat/completions/render", func(in stubPrompt) any { return map[string]any{"token_ids": in.tokens()} })
	handle(mux, "/inference/v1/generate", s.generate)
	handle(mux, "/v1/chat/completions", s.chat)
	return mux
}

// handle serves one JSON call.
func handle[In any](mux *http.ServeMux, path string, answer func(In) any) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(answer(in))
	})
}

// wait lets a turn's time pass, and holds the turn of that number until all wait for it.
func (s *loopStub) wait(turn int) {
	time.Sleep(s.latency)
	if turn != s.holdTurn {
		return
	}
	s.mu.Lock()
	if s.held++; s.held == s.holdCount {
		time.AfterFunc(s.holdFor, func() { close(s.free) })
	}
	s.mu.Unlock()
	<-s.free
}

// generate is vLLM's token route. A turn ends with the end token, which every message has one of: system, user, and then
// two a turn.
func (s *loopStub) generate(in struct {
	TokenIDs []int32 `json:"token_ids"`
}) any {
	ends := 0
	for _, id := range in.TokenIDs {
		if id == stubEnd {
			ends++
		}
	}
	turn := (ends - 2) / 2
	s.wait(turn)
	ids := append(stubEncode(s.script.Texts[turn]), stubEnd)
	type content struct {
		Logprob float32 `json:"logprob"`
	}
	probs := make([]content, len(ids))
	for i := range probs {
		probs[i].Logprob = -.125
	}
	return map[string]any{"choices": []any{map[string]any{
		"token_ids": ids, "text": s.script.Texts[turn], "finish_reason": "stop", "logprobs": map[string]any{"content": probs},
		"weight_versions": []any{map[string]any{"version": vllm.FormatVersion(0), "start": 0, "end": len(ids)}},
	}}}
}

// chat is the OpenAI route with one tool call a turn.
func (s *loopStub) chat(in struct{ Messages []struct{ Role string } }) any {
	turn := 0
	for _, m := range in.Messages {
		if m.Role == "assistant" {
			turn++
		}
	}
	s.wait(turn)
	arguments, err := json.Marshal(map[string]string{"command": s.script.Commands[turn]})
	if err != nil {
		panic(err) // of strings
	}
	return map[string]any{
		"id": "chatcmpl-" + strconv.Itoa(turn), "object": "chat.completion", "created": 1700000000, "model": "stub",
		"choices": []any{map[string]any{"index": 0, "finish_reason": "tool_calls", "message": map[string]any{
			"role": "assistant", "content": s.script.Thoughts[turn],
			"tool_calls": []any{map[string]any{"id": "call_" + strconv.Itoa(turn), "type": "function", "function": map[string]any{"name": "bash", "arguments": string(arguments)}}},
		}}},
		"usage": map[string]any{"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
	}
}

// The stub's tokens: two special ones, and pieces of up to three bytes that end at a line's end, which is about what a real
// tokenizer makes of code. A piece is its length and its bytes.
const (
	stubStart int32 = 1
	stubEnd   int32 = 2
)

var stubSpecials = []string{"<|im_start|>", "<|im_end|>"}

func stubEncode(text string) []int32 {
	ids := make([]int32, 0, len(text)/3+8)
next:
	for text != "" {
		for i, s := range stubSpecials {
			if strings.HasPrefix(text, s) {
				ids, text = append(ids, stubStart+int32(i)), text[len(s):]
				continue next
			}
		}
		id, n := int32(0), 0
		for n < min(3, len(text)) && !(n > 0 && (text[n] == '<' || text[n-1] == '\n')) {
			id = id<<8 | int32(text[n])
			n++
		}
		ids, text = append(ids, int32(n)<<24|id), text[n:]
	}
	return ids
}

func stubDecode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		if id == stubStart || id == stubEnd {
			b.WriteString(stubSpecials[id-stubStart])
			continue
		}
		for n := id >> 24; n > 0; n-- {
			b.WriteByte(byte(id >> (8 * (n - 1))))
		}
	}
	return b.String()
}

// stubPrompt is a conversation as the stub's chat template renders it.
type stubPrompt struct {
	Messages []struct{ Role, Content string }
	Add      bool `json:"add_generation_prompt"`
}

func (p stubPrompt) tokens() []int32 {
	var b strings.Builder
	for _, m := range p.Messages {
		b.WriteString(stubSpecials[0] + m.Role + "\n" + m.Content + stubSpecials[1])
	}
	if p.Add {
		b.WriteString(stubSpecials[0] + "assistant\n")
	}
	return stubEncode(b.String())
}

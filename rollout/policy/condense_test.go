package policy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout"
)

// plainResults hold no control token, so that a segment's text can be written down without the code under test.
var plainResults = []string{"ok", "\n\nstarts with newlines", "one\ntwo\nthree\n", "  ", "🙂漢字é", "tool", ">\n>"}

// segmentText is what the fake's template writes between a turn that ended by its end token and the next one.
func segmentText(role rollout.Role, text string) string {
	if role == rollout.RoleTool {
		text = "<tool_response>\n" + text + "\n</tool_response>"
	}
	return "\n<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n"
}

// expectedPrompt writes the prompt of a turn down from the definition of the condenser: how many observations stay, which
// ones, and what stands for the others.
func expectedPrompt(c rollout.Condenser, role rollout.Role, opening []int32, served []fakeTurn, told []string) []int32 {
	out := slices.Clone(opening)
	n := len(served)
	for i, turn := range served {
		old := i >= c.First && i < n-n%c.Every-c.Keep
		if old && c.Kind == rollout.CondenseWindow {
			continue
		}
		out = append(out, turn.ids...)
		if turn.ids[len(turn.ids)-1] != tokEnd {
			out = append(out, tokEnd)
		}
		text := told[i]
		if old && c.Kind == rollout.CondenseObservations {
			text = fmt.Sprintf("Old environment output: (%d lines omitted)", len(strings.Split(strings.TrimSuffix(text, "\n"), "\n")))
		}
		out = append(out, encode(segmentText(role, text))...)
	}
	return out
}

// TestCondensedConversationsAreTokenExact runs random conversations under every condenser. Whatever was taken out of the
// history, the samples together hold each sampled token exactly once, behind exactly the ids it was sampled from.
func TestCondensedConversationsAreTokenExact(t *testing.T) {
	broken := 0
	for seed := range int64(600) {
		f := newFake()
		m := newTestModel(t, f, APIGenerate)
		rng := rand.New(rand.NewPCG(uint64(seed), 11))
		o := testOpening(seed)
		o.Condenser = rollout.Condenser{Kind: rollout.Condensers()[rng.IntN(3)], Keep: 1 + rng.IntN(3), First: rng.IntN(2), Every: 1 + rng.IntN(3)}
		o.Answers = []rollout.Role{rollout.RoleTool, rollout.RoleUser}[rng.IntN(2)]
		c, err := m.Open(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		var turns []rollout.Turn
		var told []string
		for range 1 + rng.IntN(9) {
			turn, err := c.Next(context.Background())
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			turns, told = append(turns, turn), append(told, plainResults[rng.IntN(len(plainResults))])
			if err := c.Observe(context.Background(), rollout.ToolResult{Tool: "search", Text: told[len(told)-1]}); err != nil {
				t.Fatal(err)
			}
		}
		served := f.turns[o.Session]
		for i := range served {
			if want := expectedPrompt(o.Condenser, o.Answers, served[0].prompt, served[:i], told); !slices.Equal(served[i].prompt, want) {
				t.Fatalf("seed %d, %+v, turn %d was sampled from\n%q\nwant\n%q", seed, o.Condenser, i, decode(served[i].prompt), decode(want))
			}
		}
		samples := c.Samples()
		if err := checkCondensed(served, turns, samples); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, o.Condenser, err)
		}
		if o.Condenser.Kind == rollout.CondenseNone && len(samples) != 1 {
			t.Fatalf("seed %d: %d samples without a condenser", seed, len(samples))
		}
		broken += len(samples) - 1
	}
	if broken < 300 {
		t.Errorf("only %d broken prefixes; the test sees too few", broken)
	}
}

func checkCondensed(served []fakeTurn, turns []rollout.Turn, samples []milepost.Sample) error {
	seen := map[[2]int]int{} // sample and place: the step that sampled it
	for i, s := range samples {
		if err := checkRoutes(s); err != nil {
			return fmt.Errorf("sample %d: %w", i, err)
		}
	}
	for i, got := range served {
		turn := turns[i]
		if turn.Sample < 0 || turn.Sample >= len(samples) {
			return fmt.Errorf("turn %d is in sample %d of %d", i, turn.Sample, len(samples))
		}
		s := samples[turn.Sample]
		if !slices.Equal(s.Tokens[:turn.TokenStart], got.prompt) || !slices.Equal(s.Tokens[turn.TokenStart:turn.TokenEnd], got.ids) {
			return fmt.Errorf("turn %d does not stand in sample %d behind what it was sampled from", i, turn.Sample)
		}
		for k := range got.ids {
			at := turn.TokenStart + k
			seen[[2]int{turn.Sample, at}] = i
			if s.Steps[at] != int32(i) || s.Versions[at] != got.versions[k] || s.Logprobs[at] != logprobOf(s.Tokens[at], at) {
				return fmt.Errorf("token %d of turn %d: step %d, version %d, logprob %v", k, i, s.Steps[at], s.Versions[at], s.Logprobs[at])
			}
		}
	}
	last := int32(-1)
	for j, s := range samples {
		trained := 0
		for at, step := range s.Steps {
			if _, sampled := seen[[2]int{j, at}]; sampled != (step >= 0) || (!sampled && (s.Versions[at] != -1 || s.Logprobs[at] != 0)) {
				return fmt.Errorf("sample %d, token %d: step %d, version %d, logprob %v", j, at, step, s.Versions[at], s.Logprobs[at])
			}
			if step >= 0 {
				if trained++; step < last {
					return fmt.Errorf("sample %d: step %d behind step %d", j, step, last)
				}
				last = step
			}
		}
		if trained == 0 || (j+1 < len(samples) && s.Steps[len(s.Steps)-1] < 0) {
			return fmt.Errorf("sample %d of %d trains %d tokens and ends with step %d", j, len(samples), trained, s.Steps[len(s.Steps)-1])
		}
	}
	return nil
}

// A turn that fails leaves the samples as they were: no sequence without a sampled token begins.
func TestCondensedTurnThatFails(t *testing.T) {
	f := newFake()
	m := newTestModel(t, f, APIGenerate)
	o := testOpening(3)
	o.Condenser = rollout.Condenser{Kind: rollout.CondenseObservations, Keep: 1, Every: 1}
	c, err := m.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := c.Next(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := c.Observe(context.Background(), rollout.ToolResult{Tool: "search", Text: "a\nb\n"}); err != nil {
			t.Fatal(err)
		}
	}
	f.fail = func(path string) int {
		if path == "/inference/v1/generate" {
			return 400
		}
		return 0
	}
	if _, err := c.Next(context.Background()); milepost.KindOf(err) != milepost.KindInvalid {
		t.Fatalf("error %v", err)
	}
	if n := len(c.Samples()); n != 1 {
		t.Errorf("%d samples after the failed turn, want 1", n)
	}
	f.fail = nil
	turn, err := c.Next(context.Background())
	if err != nil || turn.Sample != 1 || len(c.Samples()) != 2 {
		t.Errorf("turn in sample %d of %d, %v", turn.Sample, len(c.Samples()), err)
	}
}

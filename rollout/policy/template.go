package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/rollout"
)

// renderer is what a template is derived from: the server's own chat template and tokenizer.
type renderer interface {
	render(ctx context.Context, p vllm.Prompt) ([]int32, error)
	tokenize(ctx context.Context, text string) ([]int32, error)
	detokenize(ctx context.Context, ids []int32) (string, error)
}

// template is what a chat template puts between two turns, learned from the server by rendering a short made-up
// conversation:
//
//	head = render(system, user; generation prompt) + tokens(dummy) + end
//	segment(text) = render(system, user, assistant: dummy, tool or user: text; generation prompt) without head
//
// and proven at derivation:
//
//  1. render(system, user; generation prompt) is a prefix of render(system, user, assistant: dummy), and that one of
//     the rendering with a tool message behind it: later messages do not change earlier ones;
//  2. the token after the dummy, end, is one that text on neither side can merge with, so
//     tokens(a + end + b) = tokens(a) end tokens(b).
//
// So a history is prompt, sample, segment, sample, segment, …, each part tokenized alone; by 2 this is what tokenizing
// the whole would give wherever the sample itself is in the tokenizer's own form. The samples are ids and are never
// tokenized at all.
type template struct {
	kwargs     map[string]any
	head       []int32
	end        int32    // end-of-turn token
	control    []string // spelled-out control tokens that text of others must not bring in
	controlIDs []int32
	marks      map[rollout.Role]map[int32]int // control tokens of a segment, by the role of the observation's message; guarded by the model's mutex
}

const (
	dummyText = "DUMMY"
	dummyTool = "tool"
)

func dummyBase() []vllm.Message {
	return []vllm.Message{{Role: "system", Content: "s"}, {Role: "user", Content: "u"}}
}

// deriveTemplate learns the template from the server; it fails with KindInvalid and says what differs where the
// template does not keep the history as it was.
func deriveTemplate(ctx context.Context, r renderer, kwargs map[string]any) (*template, error) {
	t := &template{kwargs: kwargs, marks: map[rollout.Role]map[int32]int{}}
	opening, err := r.render(ctx, t.prompt(true))
	if err != nil {
		return nil, err
	}
	answered, err := r.render(ctx, t.prompt(false, vllm.Message{Role: "assistant", Content: dummyText}))
	if err != nil {
		return nil, err
	}
	if err := mustExtend(ctx, r, "the generation prompt", opening, "the same with the assistant's turn", answered); err != nil {
		return nil, err
	}
	if _, err := t.continued(ctx, r, rollout.RoleTool, answered); err != nil {
		return nil, err
	}
	dummy, err := r.tokenize(ctx, dummyText)
	if err != nil {
		return nil, err
	}
	want := slices.Concat(opening, dummy)
	if err := mustExtend(ctx, r, "the generation prompt and the assistant's text", want, "the template's own rendering of them", answered); err != nil {
		return nil, err
	}
	if len(answered) == len(want) {
		return nil, refuse("it puts no end-of-turn token behind the assistant's turn")
	}
	t.end = answered[len(want)]
	t.head = answered[:len(want)+1]
	if err := t.learnControl(ctx, r, opening); err != nil {
		return nil, err
	}
	_, err = t.learnRole(ctx, r, rollout.RoleTool)
	return t, err
}

// learnRole proves that a template can answer with messages of the role, and counts the control tokens of their segments. What
// is known already is not asked again.
func (t *template) learnRole(ctx context.Context, r renderer, role rollout.Role) (map[int32]int, error) {
	if marks := t.marks[role]; marks != nil {
		return marks, nil
	}
	answered, err := r.render(ctx, t.prompt(false, vllm.Message{Role: "assistant", Content: dummyText}))
	if err != nil {
		return nil, err
	}
	followed, err := t.continued(ctx, r, role, answered)
	if err != nil {
		return nil, err
	}
	marks := map[int32]int{}
	for _, id := range t.controlIDs {
		marks[id] = count(followed[len(t.head):], id)
	}
	t.marks[role] = marks
	return marks, nil
}

// continued renders a message of the role behind the assistant's turn and proves that it leaves that turn as it was.
func (t *template) continued(ctx context.Context, r renderer, role rollout.Role, answered []int32) ([]int32, error) {
	followed, err := r.render(ctx, t.followed(role, "x"))
	if err != nil {
		return nil, err
	}
	return followed, mustExtend(ctx, r, "a history that ends with the assistant's turn", answered,
		"the same with a "+string(role)+" message behind it", followed)
}

func refuse(format string, args ...any) error {
	return milepost.E("policy: derive chat template", milepost.KindInvalid,
		"the server's chat template cannot train token-exactly: "+format+
			"; serve a template that keeps earlier turns as they were (templates that strip or add thinking do not)", args...)
}

func (t *template) prompt(generation bool, more ...vllm.Message) vllm.Prompt {
	return vllm.Prompt{Messages: append(dummyBase(), more...), Generation: generation, Kwargs: t.kwargs}
}

func (t *template) followed(role rollout.Role, text string) vllm.Prompt {
	return t.prompt(true, vllm.Message{Role: "assistant", Content: dummyText}, vllm.Message{Role: string(role), Content: text})
}

// mustExtend checks that whole starts with prefix and else shows both around the first difference.
func mustExtend(ctx context.Context, r renderer, prefixName string, prefix []int32, wholeName string, whole []int32) error {
	n := 0
	for n < len(prefix) && n < len(whole) && prefix[n] == whole[n] {
		n++
	}
	if n == len(prefix) {
		return nil
	}
	around := func(ids []int32) string {
		text, err := r.detokenize(ctx, ids[min(max(0, n-8), len(ids)):min(n+8, len(ids))])
		if err != nil {
			return fmt.Sprintf("tokens %v", ids[min(n, len(ids)):min(n+8, len(ids))])
		}
		return fmt.Sprintf("%q", text)
	}
	return refuse("%s is no prefix of %s; they differ at token %d: %s against %s", prefixName, wholeName, n, around(prefix), around(whole))
}

// learnControl proves that nothing merges with the end token and spells out the control tokens.
func (t *template) learnControl(ctx context.Context, r renderer, opening []int32) error {
	closing, err := r.render(ctx, t.prompt(false))
	if err != nil {
		return err
	}
	ids := []int32{t.end}
	if len(opening) > len(closing) && !slices.Contains(ids, opening[len(closing)]) {
		ids = append(ids, opening[len(closing)])
	}
	for _, id := range ids {
		spelled, err := r.detokenize(ctx, []int32{id})
		if err != nil {
			return err
		}
		alone, err := t.standsAlone(ctx, r, id, spelled)
		if err != nil {
			return err
		}
		switch {
		case alone:
			t.control = append(t.control, spelled)
			t.controlIDs = append(t.controlIDs, id)
		case id == t.end:
			return refuse("text merges with its end-of-turn token %q, so turns cannot be tokenized apart", spelled)
		}
	}
	return nil
}

// standsAlone reports whether the token is found in text whatever stands around it.
func (t *template) standsAlone(ctx context.Context, r renderer, id int32, spelled string) (bool, error) {
	if len([]rune(spelled)) < 2 {
		return false, nil // a single character is ordinary text
	}
	for _, around := range [][2]string{{"", ""}, {"a", "b"}, {" ", " "}, {"\n", "\n"}, {"é", "漢"}, {spelled, spelled}} {
		whole, err := r.tokenize(ctx, around[0]+spelled+around[1])
		if err != nil {
			return false, err
		}
		var parts []int32
		for i, text := range around {
			if i == 1 {
				parts = append(parts, id)
			}
			if text == "" {
				continue
			}
			ids, err := r.tokenize(ctx, text)
			if err != nil {
				return false, err
			}
			parts = append(parts, ids...)
		}
		if !slices.Equal(whole, parts) {
			return false, nil
		}
	}
	return true, nil
}

// segment renders the tokens between the end token of a turn and the first token of the next sample, for a tool
// result. Control tokens spelled out in the result are broken with a zero-width space, so that what a repository holds
// cannot forge a turn. marks are those of the role.
func (t *template) segment(ctx context.Context, r renderer, role rollout.Role, marks map[int32]int, tool, text string) ([]int32, error) {
	p := t.followed(role, t.neutral(text))
	if role == rollout.RoleTool {
		p.Messages[len(p.Messages)-1].Name = tool
	}
	ids, err := r.render(ctx, p)
	if err != nil {
		return nil, err
	}
	if len(ids) <= len(t.head) || !slices.Equal(ids[:len(t.head)], t.head) {
		return nil, milepost.E("policy: render observation", milepost.KindCorrupt, "the server's chat template is not the one the run started with")
	}
	ids = slices.Clone(ids[len(t.head):])
	for id, n := range marks {
		if got := count(ids, id); got != n {
			return nil, milepost.E("policy: render observation", milepost.KindInvalid, "the observation of %s renders with %d control tokens %d, want %d", tool, got, id, n)
		}
	}
	return ids, nil
}

// neutral breaks every spelled-out control token in text.
func (t *template) neutral(text string) string {
	for _, c := range t.control {
		if strings.Contains(text, c) {
			first := []rune(c)[0]
			text = strings.ReplaceAll(text, c, string(first)+"\u200b"+strings.TrimPrefix(c, string(first)))
		}
	}
	return text
}

func count(ids []int32, id int32) int {
	n := 0
	for _, x := range ids {
		if x == id {
			n++
		}
	}
	return n
}

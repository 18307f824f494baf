package policy

import (
	"context"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// checkCalls refuses a chat template that writes a call in another way than the loop reads it: the model was trained on the
// template's way, and every call of it would be invalid. A template that shows no calls, or cannot render one, says nothing.
func checkCalls(ctx context.Context, r renderer, t *template, tools []vllm.Tool, format string) error {
	if format != toolcall.Hermes && format != toolcall.Qwen3Coder {
		return nil
	}
	reads, err := toolcall.New(format, nil)
	if err != nil {
		return err
	}
	name := tools[0].Name
	p := t.prompt(true)
	p.Tools = tools
	before, err := r.render(ctx, p)
	if err != nil {
		return err
	}
	p.Generation = false
	p.Messages = append(p.Messages, vllm.Message{Role: "assistant", ToolCalls: []vllm.Call{{Name: name, Arguments: `{"x": "` + dummyText + `"}`}}})
	with, err := r.render(ctx, p)
	if err != nil || len(with) < len(before) || !slices.Equal(with[:len(before)], before) {
		return ctx.Err()
	}
	text, err := r.detokenize(ctx, with[len(before):])
	if err != nil || !strings.Contains(text, name) {
		return err
	}
	if calls, err := reads.Parse(text); err != nil || len(calls) != 1 || calls[0].Name != name {
		return milepost.E("policy: open", milepost.KindInvalid,
			"the server's chat template writes a call as %q, which rollout.tool_format %s does not read; allowed: the format of the template, or another template", text, format)
	}
	return nil
}

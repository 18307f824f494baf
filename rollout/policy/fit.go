package policy

import (
	"context"
	"slices"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// fitText is what tokenizers of different vocabularies cut differently: words, code, digits, scripts and emoji.
const fitText = "def naïve_sum(xs: list[int]) -> int:\n\treturn 12345 + sum(xs)  # 漢字, Ελληνικά, 🙂\r\n"

// Fits says why a server cannot serve the conversations of this model beside the members of its pool: it cuts text into other
// tokens, renders a chat in another way, or takes shorter contexts. It compares what servers answer, not what they say they
// are; where the pool has no member yet there is nothing to compare with, and the canary of the first push judges alone.
// Errors: KindConflict for a server that does not fit, and the server's own.
func (m *TokenModel) Fits(ctx context.Context, c *vllm.Client) error {
	const op = "policy: compare servers"
	if len(m.pool.Snapshot()) == 0 {
		return nil
	}
	have, err := m.fit(ctx, c)
	if err != nil {
		return err
	}
	var want fit
	if _, err := m.pool.Do(ctx, "", func(ctx context.Context, c *vllm.Client) (err error) {
		want, err = m.fit(ctx, c)
		return err
	}); err != nil {
		return err
	}
	switch {
	case !slices.Equal(have.text, want.text):
		return milepost.E(op, milepost.KindConflict, "%s has another tokenizer than the run's servers: it cuts a text into %d tokens %v, they into %d tokens %v", c.URL(), len(have.text), head(have.text), len(want.text), head(want.text))
	case !slices.Equal(have.chat, want.chat):
		return milepost.E(op, milepost.KindConflict, "%s has another chat template than the run's servers: a chat becomes %d tokens, theirs %d", c.URL(), len(have.chat), len(want.chat))
	case have.longest < want.longest:
		return milepost.E(op, milepost.KindConflict, "%s takes contexts of %d tokens, the run's servers of %d (server.max_model_len)", c.URL(), have.longest, want.longest)
	}
	return nil
}

func head(ids []int32) []int32 { return ids[:min(len(ids), 8)] }

// fit is what a server makes of the same text and chat.
type fit struct {
	text, chat []int32
	longest    int // context in tokens
}

func (m *TokenModel) fit(ctx context.Context, c *vllm.Client) (f fit, err error) {
	if f.text, f.longest, err = c.Tokenize(ctx, fitText); err != nil {
		return f, err
	}
	p := vllm.Prompt{Generation: true, Kwargs: m.cfg.TemplateKwargs, Messages: []vllm.Message{{Role: "system", Content: "Mend it."}, {Role: "user", Content: fitText}}}
	if m.cfg.API == APIGenerate {
		f.chat, err = c.Render(ctx, p)
	} else {
		f.chat, err = c.RenderTokenize(ctx, p)
	}
	return f, scaleOut(m.cfg.API, err)
}

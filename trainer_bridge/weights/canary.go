package weights

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// Scorer gives the trainer's logprobs: for every sequence the natural logarithm of each token's probability given the
// ones before it, at temperature 1; as long as the sequence, element 0 is 0. trainer_bridge.Client is one.
type Scorer interface {
	Score(ctx context.Context, sequences [][]int32) ([][]float32, error)
}

// CanaryConfig says what the canary samples and how far the server may be off.
type CanaryConfig struct {
	Prompts   int     `yaml:"prompts"`    // number of fixed prompts
	Length    int     `yaml:"length"`     // tokens in each; longer than a block of the KV cache (16, on CPU 128), or nothing is cached
	MaxTokens int     `yaml:"max_tokens"` // tokens sampled after each
	DType     string  `yaml:"dtype"`      // must equal server.dtype: float32, bfloat16 or float16
	Bound     float64 `yaml:"bound"`      // largest mean |logprob(vLLM) - logprob(trainer)|; 0 = that of the dtype
	Seed      int64   `yaml:"seed"`       // of the prompts
	Vocab     int     `yaml:"-"`          // prompt tokens are drawn from [0, Vocab)
}

// DefaultCanaryConfig is every default; Vocab must be set.
func DefaultCanaryConfig() CanaryConfig {
	return CanaryConfig{Prompts: 4, Length: 160, MaxTokens: 16, DType: "float32", Seed: 20240229}
}

// Bounds of the mean gap per dtype. In float32 vLLM and a transformers forward pass differ by 1e-7 on average, so 1e-5
// leaves two orders of magnitude and still catches a single update that did not take. The half precisions round
// differently in different kernels, by about a hundredth of a nat; there a small update can hide below the bound, and
// only a gross mistake is caught.
var Bounds = map[string]float64{"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}

// Validate checks every field.
func (c CanaryConfig) Validate() error {
	const op = "weights: canary configuration"
	switch {
	case c.Prompts < 1 || c.Length < 1 || c.MaxTokens < 1:
		return milepost.E(op, milepost.KindInvalid, "prompts is %d, length %d, max_tokens %d; each must be at least 1", c.Prompts, c.Length, c.MaxTokens)
	case c.Vocab < 1:
		return milepost.E(op, milepost.KindInvalid, "the size of the vocabulary is %d; it must be at least 1", c.Vocab)
	case c.Bound < 0 || math.IsNaN(c.Bound):
		return milepost.E(op, milepost.KindInvalid, "bound is %v; it must be at least 0", c.Bound)
	case c.Bound == 0 && Bounds[c.DType] == 0:
		return milepost.E(op, milepost.KindInvalid, "dtype %q has no bound (known: float32, float16, bfloat16); set bound", c.DType)
	}
	return nil
}

func (c CanaryConfig) bound() float64 {
	if c.Bound > 0 {
		return c.Bound
	}
	return Bounds[c.DType]
}

// Vocab reads the vocabulary size of the model in dir.
func Vocab(dir string) (int, error) {
	config, err := readConfig(dir)
	if err != nil {
		return 0, milepost.E("weights: read vocabulary size", milepost.KindNotFound, "%w", err)
	}
	if config.VocabSize < 1 {
		return 0, milepost.E("weights: read vocabulary size", milepost.KindInvalid, "%s/config.json has no vocab_size", dir)
	}
	return config.VocabSize, nil
}

type modelConfig struct {
	VocabSize int   `json:"vocab_size"`
	Tied      *bool `json:"tie_word_embeddings"`
}

func readConfig(dir string) (modelConfig, error) {
	var c modelConfig
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("%s/config.json: %w", dir, err)
	}
	return c, nil
}

// canary compares what servers sample with what the trainer says of it.
type canary struct {
	cfg     CanaryConfig
	scorer  Scorer
	prompts [][]int32
}

func newCanary(cfg CanaryConfig, scorer Scorer) (*canary, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if scorer == nil {
		return nil, milepost.E("weights: new canary", milepost.KindInvalid, "the canary needs a scorer")
	}
	rng := rand.New(rand.NewPCG(uint64(cfg.Seed), 0))
	c := &canary{cfg: cfg, scorer: scorer, prompts: make([][]int32, cfg.Prompts)}
	for i := range c.prompts {
		for range cfg.Length {
			c.prompts[i] = append(c.prompts[i], rng.Int32N(int32(cfg.Vocab)))
		}
	}
	return c, nil
}

// sung is what one server sampled after each prompt, cold or warm.
type sung []*vllm.Generation

// sing lets a server sample after every prompt. A token of another version than the pushed one is KindCorrupt.
func (c *canary) sing(ctx context.Context, server *vllm.Client, version int32, salt string) (sung, error) {
	out := make(sung, len(c.prompts))
	errs := make([]error, len(c.prompts))
	var wg sync.WaitGroup
	for i, prompt := range c.prompts {
		wg.Go(func() {
			out[i], errs[i] = server.Generate(ctx, "canary", prompt, vllm.Params{
				Temperature: 1, TopP: 1, MaxTokens: c.cfg.MaxTokens, IgnoreEOS: true, Salt: salt,
			})
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, err
		}
		if len(out[i].IDs) == 0 {
			return nil, milepost.E("weights: canary", milepost.KindCorrupt, "%s sampled nothing", server.URL())
		}
		for _, v := range out[i].Versions {
			if v != version {
				return nil, milepost.E("weights: canary", milepost.KindCorrupt, "%s says that it sampled under version %d, pushed was %d", server.URL(), v, version)
			}
		}
	}
	return out, nil
}

// judge scores everything that was sung in one call of the trainer and returns the gap of each.
func (c *canary) judge(ctx context.Context, all []sung) ([]Gap, error) {
	var sequences [][]int32
	for _, s := range all {
		for i, g := range s {
			sequences = append(sequences, slices.Concat(c.prompts[i], g.IDs))
		}
	}
	scores, err := c.scorer.Score(ctx, sequences)
	if err != nil {
		return nil, milepost.Wrap("weights: canary", milepost.KindUnavailable, err)
	}
	if len(scores) != len(sequences) {
		return nil, milepost.E("weights: canary", milepost.KindCorrupt, "the trainer scored %d sequences, asked for %d", len(scores), len(sequences))
	}
	gaps := make([]Gap, len(all))
	for j, s := range all {
		for i, g := range s {
			k := j*len(c.prompts) + i
			if len(scores[k]) != len(sequences[k]) {
				return nil, milepost.E("weights: canary", milepost.KindCorrupt, "the trainer gave %d logprobs for %d tokens", len(scores[k]), len(sequences[k]))
			}
			gaps[j] = gaps[j].join(gapOf(g.Logprobs, scores[k][len(c.prompts[i]):]))
		}
	}
	return gaps, nil
}

// gapOf compares logprobs of the same tokens; a NaN on either side makes the gap infinite.
func gapOf(a, b []float32) Gap {
	g := Gap{Tokens: len(a)}
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if math.IsNaN(d) {
			d = math.Inf(1)
		}
		g.Mean += d / float64(len(a))
		g.Max = max(g.Max, d)
	}
	return g
}

// verdict fails where the mean gap is beyond the bound.
func (c *canary) verdict(url, state, dir string, g Gap) error {
	if g.Mean <= c.cfg.bound() {
		return nil
	}
	hint := ""
	if config, err := readConfig(dir); err == nil && config.Tied != nil && *config.Tied {
		hint = "; its embeddings are tied, and reloading leaves the head of vLLM's CPU build stale: export an untied lm_head.weight"
	}
	return milepost.E("weights: canary", milepost.KindCorrupt,
		"%s does not serve the trainer's weights: mean logprob gap %.3g (max %.3g, %d tokens, %s prefix cache), bound %.3g for %s; pushed was %s%s",
		url, g.Mean, g.Max, g.Tokens, state, c.cfg.bound(), c.cfg.DType, dir, hint)
}

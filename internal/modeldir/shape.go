package modeldir

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// Shape is what the numbers of a causal model follow from. The names of the fields in config.json stand behind them.
type Shape struct {
	Family     string // model_type
	Layers     int    // num_hidden_layers
	Width      int    // hidden_size
	Vocab      int    // vocab_size
	Heads      int    // num_attention_heads
	KVHeads    int    // num_key_value_heads
	HeadDim    int    // head_dim, else hidden_size / num_attention_heads
	MLP        int    // intermediate_size, of a dense layer
	MaxContext int    // max_position_embeddings, in tokens
	Tied       bool   // tie_word_embeddings: one matrix is embedding and head
	Bias       bool   // the projections of queries, keys and values have a bias (qwen2)
	OutputBias bool   // the projection of the attention's output has one too (attention_bias)
	QKNorm     bool   // queries and keys are normalised by head (qwen3)
	Gated      bool   // the attention's output is gated, so queries are twice as wide (qwen3_5)

	Experts, ExpertsPerToken int // num_experts, num_experts_per_tok; 0 = dense
	ExpertMLP, SharedMLP     int // moe_intermediate_size, shared_expert_intermediate_size

	FullAttention int    // layers with softmax attention, which alone have a KV cache; the others are linear
	Linear        Linear // of the linear layers
}

// Linear is a gated delta-net layer (qwen3_5): a state of fixed size in place of a KV cache.
type Linear struct {
	KeyHeads, ValueHeads, KeyDim, ValueDim, Kernel int
}

// families are the model types whose layers Shape knows.
var families = []string{"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}

// file is the part of config.json that a Shape is made of.
type file struct {
	ModelType        string   `json:"model_type"`
	Text             *file    `json:"text_config"`
	Layers           int      `json:"num_hidden_layers"`
	Width            int      `json:"hidden_size"`
	Vocab            int      `json:"vocab_size"`
	Heads            int      `json:"num_attention_heads"`
	KVHeads          int      `json:"num_key_value_heads"`
	HeadDim          int      `json:"head_dim"`
	MLP              int      `json:"intermediate_size"`
	MaxContext       int      `json:"max_position_embeddings"`
	Tied             bool     `json:"tie_word_embeddings"`
	AttentionBias    bool     `json:"attention_bias"`
	Experts          int      `json:"num_experts"`
	ExpertsPerToken  int      `json:"num_experts_per_tok"`
	ExpertMLP        int      `json:"moe_intermediate_size"`
	SharedMLP        int      `json:"shared_expert_intermediate_size"`
	LayerTypes       []string `json:"layer_types"`
	LinearKeyHeads   int      `json:"linear_num_key_heads"`
	LinearValueHeads int      `json:"linear_num_value_heads"`
	LinearKeyDim     int      `json:"linear_key_head_dim"`
	LinearValueDim   int      `json:"linear_value_head_dim"`
	LinearKernel     int      `json:"linear_conv_kernel_dim"`
}

// Read is the shape of the model in a directory. A family that is not known is an error of kind invalid.
func Read(dir string) (Shape, error) {
	config, err := readConfig(dir)
	if err != nil {
		return Shape{}, err
	}
	b, err := json.Marshal(config)
	if err != nil {
		return Shape{}, milepost.Wrap("modeldir: read", milepost.KindInternal, err)
	}
	return parse(b, filepath.Join(dir, configName))
}

// parse makes the shape of the text of a config.json; name is for messages.
func parse(text []byte, name string) (Shape, error) {
	const op = "modeldir: read"
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return Shape{}, milepost.E(op, milepost.KindCorrupt, "%s: %w", name, err)
	}
	if f.Text != nil {
		kind := f.ModelType
		f = *f.Text
		if f.ModelType == "" {
			f.ModelType = kind
		}
	}
	if !slices.Contains(families, f.ModelType) {
		return Shape{}, milepost.E(op, milepost.KindInvalid, "%s: model_type is %q; known are: %s", name, f.ModelType, strings.Join(families, ", "))
	}
	s := f.shape()
	if s.Layers < 1 || s.Width < 1 || s.Vocab < 1 || s.Heads < 1 || s.KVHeads < 1 || s.MaxContext < 1 || s.MLP < 1 && s.Experts == 0 {
		return Shape{}, milepost.E(op, milepost.KindCorrupt, "%s lacks one of num_hidden_layers, hidden_size, vocab_size, num_attention_heads, intermediate_size, max_position_embeddings", name)
	}
	return s, nil
}

func (f file) shape() Shape {
	qwen35 := strings.HasPrefix(f.ModelType, "qwen3_5")
	s := Shape{
		Family: f.ModelType, Layers: f.Layers, Width: f.Width, Vocab: f.Vocab, Heads: f.Heads, KVHeads: f.KVHeads, HeadDim: f.HeadDim,
		MLP: f.MLP, MaxContext: f.MaxContext, Tied: f.Tied,
		Bias: f.AttentionBias || f.ModelType == "qwen2", OutputBias: f.AttentionBias,
		QKNorm: strings.HasPrefix(f.ModelType, "qwen3"), Gated: qwen35,
		Experts: f.Experts, ExpertsPerToken: f.ExpertsPerToken, ExpertMLP: f.ExpertMLP, SharedMLP: f.SharedMLP,
		FullAttention: f.Layers,
	}
	if s.KVHeads == 0 {
		s.KVHeads = s.Heads
	}
	if s.HeadDim == 0 && s.Heads > 0 {
		s.HeadDim = s.Width / s.Heads
	}
	if qwen35 {
		s.Linear = Linear{KeyHeads: f.LinearKeyHeads, ValueHeads: f.LinearValueHeads, KeyDim: f.LinearKeyDim, ValueDim: f.LinearValueDim, Kernel: f.LinearKernel}
		s.FullAttention = f.Layers / 4 // every fourth, where layer_types does not say
	}
	if len(f.LayerTypes) > 0 && qwen35 {
		s.FullAttention = 0
		for _, kind := range f.LayerTypes {
			if kind == "full_attention" {
				s.FullAttention++
			}
		}
	}
	return s
}

// Parameters is the exact number of them, with a head of its own where untied (the trainer's models are).
func (s Shape) Parameters() int {
	n := s.Embedding() + s.Width // embedding and the last norm
	if !s.Tied {
		n += s.Embedding()
	}
	return n + s.FullAttention*s.attention() + (s.Layers-s.FullAttention)*s.linear() + s.Layers*(s.feedForward(s.Experts)+2*s.Width)
}

// Embedding is the number of parameters of the embedding, which is also that of the head.
func (s Shape) Embedding() int { return s.Vocab * s.Width }

// Layer is the number of parameters of the largest layer.
func (s Shape) Layer() int {
	mixer := 0
	if s.FullAttention > 0 {
		mixer = s.attention()
	}
	if s.FullAttention < s.Layers {
		mixer = max(mixer, s.linear())
	}
	return mixer + s.feedForward(s.Experts) + 2*s.Width
}

// Active is the number of parameters that a token is multiplied with: those of its experts and of the head, not the
// embedding, which is a look-up.
func (s Shape) Active() int {
	n := s.Parameters() - s.Layers*(s.feedForward(s.Experts)-s.feedForward(s.ExpertsPerToken))
	if !s.Tied {
		n -= s.Embedding()
	}
	return n
}

// Adapter is the number of parameters of a LoRA adapter of this rank on every linear layer but the head; experts, which are
// no such layers, have none.
func (s Shape) Adapter(rank int) int {
	w, q, kv := s.Width, s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	out := q + w
	if s.Gated {
		q *= 2
	}
	full := w + q + 2*(w+kv) + out
	values := s.Linear.ValueHeads * s.Linear.ValueDim
	linear := 4*w + s.Linear.channels() + values + 2*s.Linear.ValueHeads + values + w
	ffn := 3 * (w + s.MLP)
	if s.Experts > 0 {
		if ffn = 0; s.SharedMLP > 0 {
			ffn = 3*(w+s.SharedMLP) + w + 1
		}
	}
	return rank * (s.FullAttention*full + (s.Layers-s.FullAttention)*linear + s.Layers*ffn)
}

// KVBytes is what one token holds in the KV cache of one of `parallel` GPUs, with elements of `size` bytes. Heads are
// dealt out; where there are fewer than GPUs they are repeated.
func (s Shape) KVBytes(size, parallel int) int {
	heads := max(1, s.KVHeads/max(1, parallel))
	return 2 * s.FullAttention * heads * s.HeadDim * size
}

// StateBytes is what one sequence holds beside, whatever its length, on one of `parallel` GPUs: the state of the linear
// layers in float32, and the last inputs of their convolutions.
func (s Shape) StateBytes(size, parallel int) int {
	l := s.Linear
	state := l.ValueHeads * l.KeyDim * l.ValueDim * 4
	return (s.Layers - s.FullAttention) * (state + l.channels()*max(0, l.Kernel-1)*size) / max(1, parallel)
}

func (l Linear) channels() int { return 2*l.KeyHeads*l.KeyDim + l.ValueHeads*l.ValueDim }

func (s Shape) attention() int {
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	out := q * s.Width
	if s.Gated {
		q *= 2
	}
	n := s.Width*(q+2*kv) + out
	if s.Bias {
		n += q + 2*kv
	}
	if s.OutputBias {
		n += s.Width
	}
	if s.QKNorm {
		n += 2 * s.HeadDim
	}
	return n
}

func (s Shape) linear() int {
	l := s.Linear
	values := l.ValueHeads * l.ValueDim
	return s.Width*(l.channels()+values+2*l.ValueHeads) + l.channels()*l.Kernel + values*s.Width + l.ValueDim + 2*l.ValueHeads
}

// feedForward is that of a layer with so many of its experts; a dense one has none.
func (s Shape) feedForward(experts int) int {
	if s.Experts == 0 {
		return 3 * s.Width * s.MLP
	}
	n := s.Width*s.Experts + experts*3*s.Width*s.ExpertMLP
	if s.SharedMLP > 0 {
		n += 3*s.Width*s.SharedMLP + s.Width
	}
	return n
}

package modeldir

import (
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
)

// presets are the shapes of the recipes' models, for plans made where no model is on disk. Those of Qwen3.5 are the
// language models in it, from transformers' own defaults (9B, 35B-A3B) and the published configuration (27B).
var presets = map[string]string{
	"qwen3.5-9b": `{"model_type": "qwen3_5_text", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 248320,
		"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 262144, "linear_num_key_heads": 16,
		"linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}`,
	"qwen3.5-27b": `{"model_type": "qwen3_5_text", "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 17408, "vocab_size": 248320,
		"num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 262144, "linear_num_key_heads": 16,
		"linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}`,
	"qwen3.5-35b-a3b": `{"model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048, "vocab_size": 248320,
		"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 262144, "linear_num_key_heads": 16,
		"linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
		"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}`,
	"qwen2.5-72b": `{"model_type": "qwen2", "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 29568, "vocab_size": 152064,
		"num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768}`,
	"qwen3-8b": `{"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 151936,
		"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960}`,
	"qwen3-30b-a3b": `{"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "vocab_size": 151936,
		"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40960,
		"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}`,
}

// Presets lists the names that Preset knows.
func Presets() []string {
	var names []string
	for name := range presets {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Preset is the shape of a model by its name.
func Preset(name string) (Shape, error) {
	text, ok := presets[strings.ToLower(name)]
	if !ok {
		return Shape{}, milepost.E("modeldir: preset", milepost.KindInvalid, "no shape is called %q; known are: %s", name, strings.Join(Presets(), ", "))
	}
	return parse([]byte(text), name)
}

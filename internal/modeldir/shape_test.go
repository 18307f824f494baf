package modeldir

import (
	"os"
	"path/filepath"
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

// TestParameters: counts are those of transformers' modules (meta device, 5.19), to the last parameter.
func TestParameters(t *testing.T) {
	for name, want := range map[string]int{
		"qwen3.5-9b": 8953803264, "qwen3.5-27b": 26895998464, "qwen3.5-35b-a3b": 34660610688,
		"qwen2.5-72b": 72706203648, "qwen3-8b": 8190735360, "qwen3-30b-a3b": 30532122624,
	} {
		s, err := Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Parameters(); got != want {
			t.Errorf("%s: %d parameters, transformers has %d", name, got, want)
		}
	}
	if len(Presets()) != 6 {
		t.Errorf("presets %v", Presets())
	}
	if _, err := Preset("gpt-2"); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("unknown preset: %v", err)
	}
}

func TestActive(t *testing.T) {
	s, err := Preset("qwen3-30b-a3b")
	if err != nil {
		t.Fatal(err)
	}
	if a := s.Active(); a < 3.0e9 || a > 3.1e9 { // "A3B": 3.3 with the embedding
		t.Errorf("%d active parameters", a)
	}
	if dense, _ := Preset("qwen3-8b"); dense.Active() != dense.Parameters()-dense.Embedding() {
		t.Errorf("dense: %d active of %d", dense.Active(), dense.Parameters())
	}
}

// TestAdapter: as many parameters as peft trains of these models with rank 16 on every linear layer.
func TestAdapter(t *testing.T) {
	for name, want := range map[string]int{"qwen3-8b": 43646976, "qwen3.5-9b": 43278336, "qwen3.5-35b-a3b": 22477440} {
		s, err := Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Adapter(16); got != want {
			t.Errorf("%s: %d parameters, peft has %d", name, got, want)
		}
	}
}

func TestKVBytes(t *testing.T) {
	s, err := Preset("qwen2.5-72b")
	if err != nil {
		t.Fatal(err)
	}
	for parallel, want := range map[int]int{1: 327680, 4: 81920, 8: 40960, 16: 40960} {
		if got := s.KVBytes(2, parallel); got != want {
			t.Errorf("%d GPUs: %d bytes a token, want %d", parallel, got, want)
		}
	}
	hybrid, _ := Preset("qwen3.5-9b")
	if got := hybrid.KVBytes(2, 1); got != 8*2*4*256*2 || hybrid.StateBytes(2, 1) != 24*(32*128*128*4+8192*3*2) {
		t.Errorf("hybrid: %d bytes a token, %d a sequence", got, hybrid.StateBytes(2, 1))
	}
}

// TestKVBytesAreVLLMs: tokens that vLLM 0.32 said, when it started on CPU in float32, that 1 GiB of KV cache holds, in whole
// blocks of 128: the tiny Llama of the quickstart and SmolLM2-135M.
func TestKVBytesAreVLLMs(t *testing.T) {
	for said, s := range map[int]Shape{
		262144: {Layers: 4, FullAttention: 4, KVHeads: 4, HeadDim: 32},
		23296:  {Layers: 30, FullAttention: 30, KVHeads: 3, HeadDim: 64},
	} {
		if got := (1 << 30) / (s.KVBytes(4, 1) * 128) * 128; got != said {
			t.Errorf("%d bytes a token: %d tokens in 1 GiB, vLLM says %d", s.KVBytes(4, 1), got, said)
		}
	}
}

func TestReadFaults(t *testing.T) {
	for text, kind := range map[string]milepost.Kind{
		`{`:                      milepost.KindCorrupt,
		`{"model_type": "gpt2"}`: milepost.KindInvalid,
		`{"model_type": "llama", "hidden_size": 8}`: milepost.KindCorrupt,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); milepost.KindOf(err) != kind {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Read(t.TempDir()); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no config.json: %v", err)
	}
}

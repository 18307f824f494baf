package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost/internal/modeldir"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// measured is a case for measure.py, and what it says.
type measured struct {
	Model     map[string]any `json:"model"`
	DType     string         `json:"dtype"`
	Recompute bool           `json:"recompute"`
	Tokens    []int          `json:"tokens"`

	Parameters int     `json:"parameters"`
	Peak       float64 `json:"peak"`
	Held       float64 `json:"held"`
	Disk       float64 `json:"disk"`
}

func (m measured) name() string {
	return fmt.Sprintf("%v of %v layers, vocabulary %v, %v of %v heads, %s, recompute %v", m.Model["model_type"], m.Model["num_hidden_layers"],
		m.Model["vocab_size"], m.Model["num_key_value_heads"], m.Model["num_attention_heads"], m.DType, m.Recompute)
}

func llama(kind string, layers, kv, vocab int) map[string]any {
	return map[string]any{"model_type": kind, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": layers, "num_attention_heads": 4, "head_dim": 64,
		"num_key_value_heads": kv, "vocab_size": vocab, "max_position_embeddings": 4096, "tie_word_embeddings": false}
}

// smol is SmolLM2-135M's shape with fewer layers.
func smol() map[string]any {
	m := llama("llama", 6, 3, 49152)
	m["hidden_size"], m["intermediate_size"], m["num_attention_heads"] = 576, 1536, 9
	return m
}

// TestTrainerMemory: an update's memory, as PyTorch counts its tensors, is the plan's within 15 %: two families, with and
// without recomputing, in both precisions, of 2 to 75 million parameters; parameters and what is held are exact, a checkpoint within 1 %.
func TestTrainerMemory(t *testing.T) {
	environment, err := trainerbridge.Environment(trainerbridge.EnvTrainer)
	if err != nil {
		t.Skip(err)
	}
	var cases []measured
	for _, recompute := range []bool{false, true} {
		cases = append(cases, measured{Model: llama("llama", 6, 4, 512), DType: "float32", Recompute: recompute, Tokens: []int{512, 512}},
			measured{Model: llama("qwen3", 4, 2, 2048), DType: "bfloat16", Recompute: recompute, Tokens: []int{300, 700}})
	}
	cases = append(cases, measured{Model: smol(), DType: "float32", Recompute: true, Tokens: []int{512}})
	for i, got := range measure(t, environment, cases) {
		m := cases[i]
		text, err := json.Marshal(m.Model)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644); err != nil {
			t.Fatal(err)
		}
		shape, err := modeldir.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		tokens := 0
		for _, n := range m.Tokens {
			tokens += n
		}
		want := Sum(trainerItems(shape, Trainer{Ranks: 1, BFloat16: m.DType == "bfloat16", Recompute: m.Recompute, Tokens: tokens, Steps: 1}))
		t.Logf("%s: %.1f MB, planned %.1f (%+.1f %%)", m.name(), got.Peak/1e6, want/1e6, 100*(want/got.Peak-1))
		if math.Abs(want/got.Peak-1) > .15 {
			t.Errorf("%s: %.1f MB, planned %.1f", m.name(), got.Peak/1e6, want/1e6)
		}
		if got.Parameters != shape.Parameters() {
			t.Errorf("%s: %d parameters, planned %d", m.name(), got.Parameters, shape.Parameters())
		}
		if want := checkpointBytes(shape, Trainer{}); math.Abs(got.Disk/want-1) > .01 {
			t.Errorf("%s: a checkpoint of %.2f MB, planned %.2f", m.name(), got.Disk/1e6, want/1e6)
		}
		if held := 12 * float64(shape.Parameters()); math.Abs(got.Held/held-1) > .005 {
			t.Errorf("%s: %.1f MB stay, planned %.1f", m.name(), got.Held/1e6, held/1e6)
		}
	}
}

// measure runs measure.py on the cases.
func measure(t *testing.T, environment string, cases []measured) []measured {
	t.Helper()
	text, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cases.json")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Abs("../../trainer_bridge/python")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), filepath.Join(environment, "bin", "python"), "measure.py", file)
	c.Env = append(os.Environ(), "PYTHONPATH="+sources, "PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1")
	out, err := c.Output()
	if err != nil {
		stderr := ""
		if e, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it unwrapped
			stderr = string(e.Stderr)
		}
		t.Fatalf("measure.py: %v\n%s", err, stderr)
	}
	var got []measured
	if err := json.Unmarshal(out, &got); err != nil || len(got) != len(cases) {
		t.Fatalf("measure.py printed %s: %v", out, err)
	}
	return got
}

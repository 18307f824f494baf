package plan

import (
	"math"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/modeldir"
)

func input(t *testing.T, shape, gpu string) Input {
	t.Helper()
	s, err := modeldir.Preset(shape)
	if err != nil {
		t.Fatal(err)
	}
	g, err := FindGPU(gpu)
	if err != nil {
		t.Fatal(err)
	}
	return Input{
		Model: shape, Shape: s, GPU: &g, Nodes: 1, Replicas: 4, Context: s.MaxContext, Longest: 32768,
		Trainer: Trainer{Ranks: 8, BFloat16: true, Recompute: true, Tokens: 32768, Steps: 1},
		Server:  Server{Parallel: 2, Size: 2, MaxModelLen: 32768, Utilization: .9},
		Work:    Workload{Episodes: 192, Begun: 1.5, Concurrency: 288, Sampled: 4096, Context: 16384, Turns: 30, Tool: 1, Probes: 7, Test: 30, Slots: 32},
	}
}

func TestItFits(t *testing.T) {
	r := Make(input(t, "qwen3-8b", "h100-80g"))
	if len(r.Problems) > 0 {
		t.Fatalf("%+v", r.Problems)
	}
	// 16 bytes a parameter over 8 ranks; 144 KiB of KV a token, halved.
	if got := r.Trainer[0].Bytes + r.Trainer[1].Bytes + r.Trainer[2].Bytes; got != 2*float64(r.Parameters) {
		t.Errorf("%.0f bytes of weights, gradients and optimizer", got)
	}
	if r.Serving.KVToken != 73728 || r.Serving.Sequences < 20 || r.Serving.Sequences > 30 {
		t.Errorf("%+v", r.Serving)
	}
	if want := 4 * (2*float64(r.Active) + 2*36*4096*16384) * 192 * 16384; math.Abs(r.FLOPs/want-1) > 1e-12 {
		t.Errorf("%g operations, want %g", r.FLOPs, want)
	}
	if len(r.Stages) != 5 || r.Seconds <= r.Stages[0].Seconds || r.Bottleneck == "" {
		t.Errorf("%+v, %v, %q", r.Stages, r.Seconds, r.Bottleneck)
	}
	in := input(t, "qwen3-8b", "h100-80g")
	in.Work.Async = true
	if a := Make(in); a.Seconds >= r.Seconds {
		t.Errorf("async takes %v, sync %v", a.Seconds, r.Seconds)
	}
}

// TestSuggestionsFit: what is suggested where something does not fit would.
func TestSuggestionsFit(t *testing.T) {
	in := input(t, "qwen2.5-72b", "a100-80g")
	in.Trainer.Recompute, in.Trainer.Tokens, in.Server.Parallel = false, 2048, 1
	r := Make(in)
	text := ""
	for _, p := range r.Problems {
		text += p.What + ": " + strings.Join(p.Try, "; ") + "\n"
	}
	for _, want := range []string{"the trainer needs", "trainer.recompute: true and ", "a replica cannot hold", "server.tensor_parallel: 4"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if len(r.Stages) != 0 {
		t.Errorf("timed though it does not fit: %+v", r.Stages)
	}
	in.Trainer.Recompute, in.Trainer.Ranks, in.Server.Parallel = true, 64, 4
	if r := Make(in); len(r.Problems) != 0 {
		t.Errorf("%+v", r.Problems)
	}
}

// TestEveryEpochCosts: each epoch is trained and moved anew, what scores beside happens once.
func TestEveryEpochCosts(t *testing.T) {
	plain := input(t, "qwen3-8b", "h100-80g")
	plain.GPU.Link = 1 // so slow that moving weights is the time
	base := Make(plain)
	for name, c := range map[string]struct {
		change       func(*Trainer)
		flops, moved float64 // in forward passes, in copies of the weights
	}{
		"one epoch":    {func(t *Trainer) { t.Epochs = 1 }, 4, 3},
		"three epochs": {func(t *Trainer) { t.Epochs, t.Steps = 3, 3 }, 13, 10},
		"all":          {func(t *Trainer) { t.Epochs, t.Steps, t.Scored, t.Recompute = 2, 4, true, false }, 8, 8},
	} {
		in := plain
		c.change(&in.Trainer)
		r := Make(in)
		if len(r.Stages) != 5 {
			t.Errorf("%s: %+v", name, r.Problems)
		} else if got, moved := 4*r.FLOPs/base.FLOPs, 3*r.Stages[2].Seconds/base.Stages[2].Seconds; math.Abs(got-c.flops) > 1e-9 || math.Abs(moved-c.moved) > 1e-9 {
			t.Errorf("%s: %g forward passes and %g copies moved, want %g and %g", name, got, moved, c.flops, c.moved)
		}
	}
}

// TestYarnRoundsUp: the factor that is advised reaches max_model_len.
func TestYarnRoundsUp(t *testing.T) {
	in := input(t, "qwen2.5-72b", "h200-141g")
	in.Server.MaxModelLen = 131400
	if got := Make(in).Problems[0].Try[1]; got != "yarn: {factor: 4.02, original: 32768}" {
		t.Error(got)
	}
}

func TestContexts(t *testing.T) {
	in := input(t, "qwen2.5-72b", "h200-141g")
	in.Server.MaxModelLen, in.Longest, in.Server.Parallel = 131072, 140000, 3
	r := Make(in)
	var text string
	for _, p := range r.Problems {
		text += p.What + ": " + strings.Join(p.Try, "; ") + "\n"
	}
	for _, want := range []string{"the model's context 32768", "yarn: {factor: 4, original: 32768}", "rollout.max_context is 140000", "does not divide the model's 64 heads"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// TestMoreRanksNeverNeedMore: every item shrinks or stays with more ranks, and with fewer tokens.
func TestMoreRanksNeverNeedMore(t *testing.T) {
	for _, name := range modeldir.Presets() {
		s, err := modeldir.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, recompute := range []bool{false, true} {
			last := math.Inf(1)
			for ranks := 2; ranks <= 256; ranks *= 2 {
				got := Sum(trainerItems(s, Trainer{Ranks: ranks, BFloat16: true, Recompute: recompute, Tokens: 8192, Steps: 2}))
				if got > last {
					t.Errorf("%s: %d ranks need %g, half of them %g", name, ranks, got, last)
				}
				last = got
			}
		}
	}
}

// TestAnAdapterIsSmall: with an adapter of rank 16 gradients, optimizer and copy are those of 43,646,976 parameters.
func TestAnAdapterIsSmall(t *testing.T) {
	s, err := modeldir.Preset("qwen3-8b")
	if err != nil {
		t.Fatal(err)
	}
	for i, item := range trainerItems(s, Trainer{Ranks: 1, Tokens: 8192, Steps: 2, Adapter: 16})[:4] {
		want := []float64{4 * float64(s.Parameters()+43646976), 4 * 43646976, 8 * 43646976, 12 * 43646976}[i]
		if item.Bytes != want {
			t.Errorf("%s: %g bytes, want %g", item.Name, item.Bytes, want)
		}
	}
}

// TestCheckpoints: 12 bytes of what is trained, written and read at 2 GB/s a node; an adapter's are small.
func TestCheckpoints(t *testing.T) {
	in := input(t, "qwen3-8b", "h100-80g")
	in.Kept = 2
	whole := 12 * float64(in.Shape.Parameters())
	for name, c := range map[string]struct {
		change         func(*Input)
		bytes, seconds float64
	}{
		"every update":  {func(*Input) {}, whole, whole / 1e9},
		"four nodes":    {func(in *Input) { in.Nodes = 4 }, whole, whole / 4e9},
		"every fifth":   {func(in *Input) { in.Every = 5 }, whole, whole / 5e9},
		"of an adapter": {func(in *Input) { in.Trainer.Adapter = 16 }, 12 * 43646976, 12 * 43646976 / 1e9},
	} {
		changed := in
		c.change(&changed)
		r := Make(changed)
		if s := r.Stages[3]; s.Name != "checkpoint" || math.Abs(s.Seconds/c.seconds-1) > 1e-12 || r.Checkpoint != c.bytes || r.Disk != 3*c.bytes {
			t.Errorf("%s: %g bytes, %g on disk, %+v, want %g bytes and %g s", name, r.Checkpoint, r.Disk, s, c.bytes, c.seconds)
		}
	}
	r, late := Make(in), in
	late.Every = 1 << 30
	if got := r.Seconds - Make(late).Seconds; math.Abs(got/(whole/1e9)-1) > 1e-6 {
		t.Errorf("an update takes %g s more by its checkpoint, want %g", got, whole/1e9)
	}
}

func TestFindGPU(t *testing.T) {
	if _, err := FindGPU("tpu"); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "h100-80g") {
		t.Error(err)
	}
}

package plan

import "github.com/milepost-rl/milepost/internal/modeldir"

// Trainer is what decides the memory of one rank.
type Trainer struct {
	Ranks     int  // FSDP ranks
	Share     int  // ranks that share one sequence (trainer.context_parallel); 0 and 1 = none
	BFloat16  bool // arithmetic; weights, gradients and optimizer are float32 in any case
	Recompute bool // activation checkpointing
	Tokens    int  // of the longest row: micro_tokens, or the longest episode where that is more
	Steps     int  // optimizer steps an update; several need a copy to go back to
	Epochs    int  // passes over an update's episodes; 0 = 1
	Scored    bool // a reference scores every token for the KL: a model of its own, or the trained one without its adapter
	Reference bool // that reference is a model of its own, beside the trained one
	Adapter   int  // rank of the LoRA adapter that is trained instead of the model (on every linear layer); 0 = none
}

// Item is one entry of a sum of memory.
type Item struct {
	Name  string  `json:"name"`
	Bytes float64 `json:"bytes"`
}

// headElements bounds the logits that exist at a time (HEAD_ELEMENTS of milepost_trainer/pack.py).
const headElements = 1 << 25

// trainerItems is the memory of one rank when it is fullest: in the backward pass of a row that is not the first.
func trainerItems(s modeldir.Shape, t Trainer) []Item {
	p, n := float64(s.Parameters()), float64(max(1, t.Ranks))
	trained := p
	if t.Adapter > 0 {
		trained = float64(s.Adapter(t.Adapter))
		p += trained
	}
	items := []Item{
		{"weights", 4 * p / n},
		{"gradients", 4 * trained / n},
		{"optimizer", 8 * trained / n},
	}
	if t.Steps > 1 {
		items = append(items, Item{"copy of weights and optimizer", 12 * trained / n})
	}
	if t.Reference {
		items = append(items, Item{"reference model", 4 * p / n})
	}
	layer, root := float64(s.Layer()), float64(2*s.Embedding())
	if n > 1 { // FSDP2: the root (embedding, head) and two layers stand whole, with the largest's gradient
		items = append(items, Item{"gathered parameters", 4*root + 8*layer + 4*max(root, layer)})
	}
	if t.BFloat16 { // autocast's copies, which the backward pass reads
		copies := 2 * (layer + float64(s.Embedding()))
		if !t.Recompute {
			copies = 2 * (p - float64(s.Embedding()))
		}
		items = append(items, Item{"bfloat16 copies of weights", copies})
	}
	t.Tokens /= max(1, t.Share)
	tokens, layers, whole := float64(t.Tokens), float64(s.Layers), layerActivations(s, t.BFloat16)
	if t.Recompute { // each layer's input, and one layer whole when the logits are gone
		return append(items, Item{"inputs of layers", tokens * (layers*4*float64(s.Width) + endActivations(s))},
			Item{"one layer, or the logits", max(tokens*whole, logits(s, t))})
	}
	return append(items, Item{"activations", tokens * (layers*whole + endActivations(s))}, Item{"logits", logits(s, t)})
}

// checkpointBytes is a checkpoint on disk: what is trained, and AdamW's two moments of it, in float32.
func checkpointBytes(s modeldir.Shape, t Trainer) float64 {
	if t.Adapter > 0 {
		return 12 * float64(s.Adapter(t.Adapter))
	}
	return 12 * float64(s.Parameters())
}

// endActivations is what embedding and last norm keep of a token: its embedding, the norm's two tensors and output, and
// the hidden states that predict something, with their gradient.
func endActivations(s modeldir.Shape) float64 { return 4 * 5 * float64(s.Width) }

// layerActivations is what autograd keeps of one token in one layer, in bytes: the inputs of every multiplication.
//
// A dense layer in float32 keeps, in elements: two norms (input, normalised) and the inputs of the projections 6W; queries,
// keys, values, the attention's output twice 3Q+2K; gate, its activation, up, product 4M. In bfloat16 the norms stay
// float32 and every projection keeps a cast of its own of its input.
func layerActivations(s modeldir.Shape, bfloat16 bool) float64 {
	w := float64(s.Width)
	mixer := mixerWidth(s)
	ffn, casts := 4*float64(s.MLP), 2.0 // gate and up
	if s.Experts > 0 {
		k := float64(s.ExpertsPerToken)
		ffn = 4*(k*float64(s.ExpertMLP)+float64(s.SharedMLP)) + 2*k*w + float64(s.Experts)
		casts = 3 // router, experts, shared expert
	}
	if !bfloat16 {
		return 4 * (6*w + mixer + ffn)
	}
	return 4*4*w + 2*w*(3+casts) + 2*mixer + 2*ffn + 2*w
}

// mixerWidth is the elements that the attention, or the linear layer in its place, keeps of a token between its
// projections: the mean over layers.
func mixerWidth(s modeldir.Shape) float64 {
	q, kv := float64(s.Heads*s.HeadDim), float64(s.KVHeads*s.HeadDim)
	full := 3*q + 2*kv
	if s.QKNorm {
		full += 2 * (q + kv)
	}
	if s.Gated {
		full += 2 * q
	}
	if s.FullAttention == s.Layers {
		return full
	}
	l := s.Linear
	keys, values := float64(l.KeyHeads*l.KeyDim), float64(l.ValueHeads*l.ValueDim)
	linear := 2*(2*keys+values) + 2*keys + 5*values // convolution before and after, normalised keys, gate, output, its norm
	share := float64(s.FullAttention) / float64(s.Layers)
	return share*full + (1-share)*linear
}

// logits is what the head holds: logits, their log-softmax, the terms of the entropy, in float32, for as many rows as
// exist at a time.
func logits(s modeldir.Shape, t Trainer) float64 {
	elements := min(float64(t.Tokens)*float64(s.Vocab), headElements)
	bytes := 4 * 4 * elements
	if t.BFloat16 {
		bytes += 2 * elements
	}
	return bytes
}

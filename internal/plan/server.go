package plan

import "github.com/milepost-rl/milepost/internal/modeldir"

// Server is what decides the memory of one GPU of a replica.
type Server struct {
	Parallel    int     // GPUs that share it
	Size        int     // bytes of an element: weights and KV cache
	MaxModelLen int     // tokens of the longest sequence
	Utilization float64 // share of the GPU that vLLM takes (--gpu-memory-utilization, .9)
	KVCache     float64 // bytes of the KV cache where that is given (CPU); 0 = what is left
}

// Serving is what a replica can hold.
type Serving struct {
	Items     []Item  `json:"items"`          // of one GPU
	KVToken   int     `json:"kv_token"`       // bytes that a token holds in the KV cache of one GPU
	KVTokens  int     `json:"kv_tokens"`      // tokens that fit
	Sequences float64 `json:"sequences"`      // of max_model_len tokens that fit at once
	Short     float64 `json:"short,omitzero"` // bytes that one such sequence lacks
}

// serverOverhead is what vLLM holds beside: CUDA context, graphs and the activations of its largest batch (8,192 tokens).
// Source: its start-up logs of models of 7 to 70 billion parameters, 2 to 5 GiB.
const serverOverhead = 4 * gib

// serve is what one GPU of a replica holds and what is left for the KV cache.
func serve(s modeldir.Shape, c Server, memory float64) Serving {
	tp := max(1, c.Parallel)
	weights := float64(c.Size) * float64(s.Parameters()) / float64(tp)
	out := Serving{KVToken: s.KVBytes(c.Size, tp), Items: []Item{{"weights", weights}}}
	cache := c.KVCache
	if cache == 0 {
		out.Items = append(out.Items, Item{"activations, graphs, CUDA", serverOverhead})
		cache = memory*c.Utilization - weights - serverOverhead
	}
	state := float64(s.StateBytes(c.Size, tp))
	one := float64(out.KVToken)*float64(c.MaxModelLen) + state
	if cache < one {
		out.Short = one - cache
	}
	cache = max(0, cache)
	out.Items = append(out.Items, Item{"KV cache", cache})
	if out.KVToken > 0 {
		out.KVTokens = int(cache / float64(out.KVToken))
	}
	out.Sequences = cache / one
	return out
}

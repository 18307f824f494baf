package milepost

// Routes are the experts that each layer of a mixture of experts chose for the first tokens of a sequence, as the sampler
// reported them; a trainer that replays them computes with the same experts (rollout routing replay, arXiv 2510.11370).
// The token that was sampled last was never an input, and what stands behind it was never seen: these have none.
//
// They are the largest part of an episode (layers x top_k bytes a token, 320 for 40 layers of 8), so they are packed, and
// only training episodes carry them.
type Routes struct {
	Layers int    `json:"layers"`        // of the model; a layer without experts has zeros
	TopK   int    `json:"top_k"`         // experts a token and layer
	Size   int    `json:"id_bytes"`      // bytes of an expert's number, 1 or 2, little endian
	IDs    []byte `json:"ids,omitempty"` // [tokens][Layers][TopK]
}

// Row is the number of bytes of one token.
func (r *Routes) Row() int { return r.Layers * r.TopK * r.Size }

// Tokens is the number of tokens that the routes are known of; 0 for nil.
func (r *Routes) Tokens() int {
	if r == nil || r.Row() == 0 {
		return 0
	}
	return len(r.IDs) / r.Row()
}

// SameShape reports whether both speak of the same kind of model.
func (r *Routes) SameShape(o *Routes) bool {
	return r.Layers == o.Layers && r.TopK == o.TopK && r.Size == o.Size
}

// Check reports what is wrong with routes of a sequence of n tokens; nil is right.
func (r *Routes) Check(n int) error {
	const op = "milepost: routes"
	switch {
	case r == nil:
	case r.Layers < 1 || r.TopK < 1 || r.Size != 1 && r.Size != 2:
		return E(op, KindInvalid, "%d layers, %d experts a token, %d bytes each; allowed: 1 or more, 1 or more, 1 or 2", r.Layers, r.TopK, r.Size)
	case len(r.IDs)%r.Row() != 0 || r.Tokens() > n:
		return E(op, KindInvalid, "%d bytes; allowed: a multiple of %d, for at most %d tokens", len(r.IDs), r.Row(), n)
	}
	return nil
}

package policy

import (
	"slices"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// sequence is the growing training sequence of one conversation. Invariant: the four slices of its sample have the
// same length, and tokens are only ever appended. Routes are known of a beginning of it, up to the last sampled token.
type sequence struct{ s milepost.Sample }

// context appends tokens that nobody sampled: prompt, observation, template.
func (q *sequence) context(ids ...int32) {
	for _, id := range ids {
		q.add(id, 0, -1, -1)
	}
}

// sampled appends a sampled turn and returns its place [start, end).
func (q *sequence) sampled(g *vllm.Generation, step int) (start, end int) {
	start = len(q.s.Tokens)
	for i, id := range g.IDs {
		q.add(id, g.Logprobs[i], g.Versions[i], int32(step))
	}
	if g.Routes != nil {
		if q.s.Routes == nil {
			q.s.Routes = &milepost.Routes{Layers: g.Routes.Layers, TopK: g.Routes.TopK, Size: g.Routes.Size}
		}
		q.s.Routes.IDs = append(q.s.Routes.IDs, g.Routes.IDs...)
	}
	return start, len(q.s.Tokens)
}

// fits fails with KindCorrupt where the turn's routes are of another model than those of the turns before.
func (q *sequence) fits(g *vllm.Generation) error {
	if known := q.s.Routes; known != nil && !known.SameShape(g.Routes) {
		return milepost.E("policy: next", milepost.KindCorrupt, "routes of %d layers by %d experts, of the turns before %d by %d",
			g.Routes.Layers, g.Routes.TopK, known.Layers, known.TopK)
	}
	return nil
}

func (q *sequence) add(id int32, logprob float32, version, step int32) {
	q.s.Tokens = append(q.s.Tokens, id)
	q.s.Logprobs = append(q.s.Logprobs, logprob)
	q.s.Versions = append(q.s.Versions, version)
	q.s.Steps = append(q.s.Steps, step)
}

// trim cuts off what nobody sampled at the end.
func (q *sequence) trim() {
	n := len(q.s.Steps)
	for n > 0 && q.s.Steps[n-1] < 0 {
		n--
	}
	q.s.Tokens, q.s.Logprobs, q.s.Versions, q.s.Steps = q.s.Tokens[:n], q.s.Logprobs[:n], q.s.Versions[:n], q.s.Steps[:n]
}

func (q *sequence) clone() milepost.Sample {
	out := milepost.Sample{
		Tokens: slices.Clone(q.s.Tokens), Logprobs: slices.Clone(q.s.Logprobs),
		Versions: slices.Clone(q.s.Versions), Steps: slices.Clone(q.s.Steps),
	}
	if r := q.s.Routes; r != nil {
		out.Routes = &milepost.Routes{Layers: r.Layers, TopK: r.TopK, Size: r.Size, IDs: slices.Clone(r.IDs)}
	}
	return out
}

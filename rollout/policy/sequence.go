package policy

import (
	"slices"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
)

// sequence is the growing training sequence of one conversation. Invariant: the four slices of its sample have the
// same length, and tokens are only ever appended.
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
	return start, len(q.s.Tokens)
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
	q.s = milepost.Sample{Tokens: q.s.Tokens[:n], Logprobs: q.s.Logprobs[:n], Versions: q.s.Versions[:n], Steps: q.s.Steps[:n]}
}

func (q *sequence) clone() milepost.Sample {
	return milepost.Sample{
		Tokens: slices.Clone(q.s.Tokens), Logprobs: slices.Clone(q.s.Logprobs),
		Versions: slices.Clone(q.s.Versions), Steps: slices.Clone(q.s.Steps),
	}
}

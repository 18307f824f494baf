package plan

import (
	"fmt"
	"math"

	"github.com/milepost-rl/milepost/internal/modeldir"
)

// Input is everything that a plan is made of.
type Input struct {
	Model    string // for messages
	Shape    modeldir.Shape
	GPU      *GPU // nil: nothing is compared and nothing timed
	Trainer  Trainer
	Nodes    int // of the trainer
	Server   Server
	Replicas int
	Context  int // tokens that the model can, stretched or not
	Longest  int // tokens of the longest turn that a rollout may have
	Work     Workload
	Every    int // updates between checkpoints; 0 = 1
	Kept     int // checkpoints that stay
}

// Problem is something that does not fit, with settings that would.
type Problem struct {
	What string   `json:"what"`
	Try  []string `json:"try,omitempty"`
}

// Result is a plan.
type Result struct {
	Model      string    `json:"model"`
	Parameters int       `json:"parameters"`
	Active     int       `json:"active"` // parameters that a token is multiplied with
	GPU        *GPU      `json:"gpu,omitempty"`
	Ranks      int       `json:"ranks"`
	Trainer    []Item    `json:"trainer"`          // of one rank
	Host       float64   `json:"host"`             // bytes of memory of the trainer's first node: the gathered export
	Checkpoint float64   `json:"checkpoint_bytes"` // on disk, of one
	Disk       float64   `json:"disk_bytes"`       // of all checkpoints at once: those that stay, and the one that is being written
	Serving    Serving   `json:"serving"`
	Replicas   int       `json:"replicas"`
	Work       Workload  `json:"work"`
	Tokens     float64   `json:"tokens"` // trained or context, of an update
	FLOPs      float64   `json:"flops"`  // of an update
	Stages     []Stage   `json:"stages,omitempty"`
	Seconds    float64   `json:"seconds,omitzero"` // of an update with everything
	Bottleneck string    `json:"bottleneck,omitempty"`
	Problems   []Problem `json:"problems,omitempty"` // what does not fit
	Warnings   []string  `json:"warnings,omitempty"`
}

// Sum adds up items.
func Sum(items []Item) float64 {
	var n float64
	for _, i := range items {
		n += i.Bytes
	}
	return n
}

// usable is what a trainer can have of a GPU's memory: the rest is CUDA's, NCCL's and lost between blocks.
func usable(g GPU) float64 { return .94*g.Memory - 1.5*gib }

// Make reckons a plan.
func Make(in Input) Result {
	s := in.Shape
	memory := 0.0
	if in.GPU != nil {
		memory = in.GPU.Memory
	}
	r := Result{
		Model: in.Model, Parameters: s.Parameters(), Active: s.Active(), GPU: in.GPU, Ranks: max(1, in.Trainer.Ranks),
		Trainer: trainerItems(s, in.Trainer), Host: 4 * float64(s.Parameters()), Serving: serve(s, in.Server, memory), Replicas: in.Replicas,
		Work: in.Work, Tokens: in.Work.Context * float64(in.Work.Episodes), FLOPs: updateFLOPs(s, in.Trainer, in.Work),
	}
	r.Checkpoint = checkpointBytes(s, in.Trainer)
	r.Disk = float64(in.Kept+1) * r.Checkpoint
	r.check(in)
	if in.GPU == nil {
		return r
	}
	r.fit(in)
	if r.Serving.Short == 0 {
		r.time(in)
	}
	return r
}

// check compares what does not depend on the GPU.
func (r *Result) check(in Input) {
	if in.Server.MaxModelLen > in.Context {
		r.Problems = append(r.Problems, Problem{fmt.Sprintf("server.max_model_len is %d and the model's context %d", in.Server.MaxModelLen, in.Context),
			[]string{fmt.Sprintf("server.max_model_len: %d", in.Context), fmt.Sprintf("yarn: {factor: %g, original: %d}", math.Ceil(100*float64(in.Server.MaxModelLen)/float64(in.Context))/100, in.Context)}})
	}
	if in.Longest > in.Server.MaxModelLen {
		r.Problems = append(r.Problems, Problem{fmt.Sprintf("rollout.max_context is %d and server.max_model_len %d", in.Longest, in.Server.MaxModelLen),
			[]string{fmt.Sprintf("rollout.max_context: %d", in.Server.MaxModelLen)}})
	}
	if tp := in.Server.Parallel; tp > 1 && in.Shape.Heads%tp != 0 {
		r.Problems = append(r.Problems, Problem{What: fmt.Sprintf("server.tensor_parallel is %d, which does not divide the model's %d heads", tp, in.Shape.Heads)})
	}
	if in.Shape.FullAttention < in.Shape.Layers {
		r.Warnings = append(r.Warnings, "the model has linear layers: their activations are an estimate that no measurement stands behind, and the trainer refuses a model whose packed rows score otherwise than its own forward pass")
	}
	if in.Shape.Tied {
		r.Warnings = append(r.Warnings, "the embeddings are tied; the trainer asks for a head of its own (milepost_trainer untie)")
	}
}

// fit compares memory with the GPU's.
func (r *Result) fit(in Input) {
	if need, have := Sum(r.Trainer), usable(*in.GPU); need > have {
		r.Problems = append(r.Problems, Problem{fmt.Sprintf("the trainer needs %.1f GiB a GPU and can have %.1f: %.1f too much", need/gib, have/gib, (need-have)/gib), tryTrainer(in)})
	}
	if r.Serving.Short > 0 {
		r.Problems = append(r.Problems, Problem{fmt.Sprintf("a replica cannot hold one sequence of %d tokens: its KV cache lacks %.1f GiB a GPU", in.Server.MaxModelLen, r.Serving.Short/gib), tryServer(in)})
	} else if held := r.Serving.Sequences * float64(in.Replicas); held < float64(in.Work.Concurrency)/4 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("of %d episodes at once, the replicas hold %.0f of full length: the others wait or lose their prefix cache", in.Work.Concurrency, held))
	}
}

// tryTrainer is settings, each by itself, that would fit.
func tryTrainer(in Input) []string {
	var out []string
	fits := func(t Trainer) bool { return Sum(trainerItems(in.Shape, t)) <= usable(*in.GPU) }
	t := in.Trainer
	if t.Recompute = true; !in.Trainer.Recompute && fits(t) {
		out = append(out, "trainer.recompute: true")
	}
	for ranks := 2 * max(1, in.Trainer.Ranks); ranks <= 1024; ranks *= 2 {
		t := in.Trainer
		t.Ranks = ranks
		if fits(t) {
			out = append(out, fmt.Sprintf("%d ranks", ranks))
			break
		}
		if t.Recompute = true; !in.Trainer.Recompute && fits(t) {
			out = append(out, fmt.Sprintf("trainer.recompute: true and %d ranks", ranks))
			break
		}
	}
	for share := 2 * max(1, in.Trainer.Share); share <= 8 && share <= in.Trainer.Ranks; share *= 2 {
		t := in.Trainer
		if t.Share = share; in.Trainer.Ranks%share == 0 && fits(t) {
			out = append(out, fmt.Sprintf("trainer.context_parallel: %d", share))
			break
		}
	}
	for tokens := in.Trainer.Tokens / 2; tokens >= 1024; tokens /= 2 {
		t := in.Trainer
		if t.Tokens = tokens; fits(t) {
			out = append(out, fmt.Sprintf("update.micro_tokens and rollout.max_context: %d", tokens))
			break
		}
	}
	if len(out) == 0 {
		out = []string{"a smaller model, or GPUs with more memory"}
	}
	return out
}

func tryServer(in Input) []string {
	for tp := 2 * in.Server.Parallel; tp <= 16; tp *= 2 {
		c := in.Server
		if c.Parallel = tp; in.Shape.Heads%tp == 0 && serve(in.Shape, c, in.GPU.Memory).Short == 0 {
			return []string{fmt.Sprintf("server.tensor_parallel: %d", tp)}
		}
	}
	for n := in.Server.MaxModelLen / 2; n >= 1024; n /= 2 {
		c := in.Server
		if c.MaxModelLen = n; serve(in.Shape, c, in.GPU.Memory).Short == 0 {
			return []string{fmt.Sprintf("server.max_model_len: %d", n)}
		}
	}
	return []string{"GPUs with more memory"}
}

// time adds the stages and names the longest.
func (r *Result) time(in Input) {
	roll, tests, up, save, weights := rollouts(in, r.Serving), probes(in.Work), update(in, in.Nodes), checkpoint(in), push(in)
	r.Stages = []Stage{roll, tests, up, save, weights}
	ahead, behind := max(roll.Seconds, tests.Seconds), up.Seconds+save.Seconds+weights.Seconds
	if r.Seconds = ahead + behind; in.Work.Async {
		r.Seconds = max(ahead, behind)
	}
	for _, s := range r.Stages {
		if s.Seconds == max(roll.Seconds, tests.Seconds, up.Seconds, save.Seconds, weights.Seconds) {
			r.Bottleneck = s.Name
		}
	}
}

package plan

import (
	"fmt"
	"math"

	"github.com/milepost-rl/milepost/internal/modeldir"
)

// Workload is what a run does in one update; what no configuration says (lengths, seconds) is assumed and told.
type Workload struct {
	Episodes    int     `json:"episodes"`     // that train
	Begun       float64 `json:"begun"`        // episodes begun for each that trains (oversampling)
	Concurrency int     `json:"concurrency"`  // episodes under way at once
	Async       bool    `json:"async"`        // rollouts go on during the update
	Sampled     float64 `json:"sampled"`      // tokens that an episode samples
	Context     float64 `json:"context"`      // tokens of a whole episode
	Turns       float64 `json:"turns"`        // model calls of an episode
	Tool        float64 `json:"tool_seconds"` // that a turn waits for its tool
	Probes      float64 `json:"probes"`       // test runs for an episode
	Test        float64 `json:"test_seconds"` // of one
	Slots       int     `json:"slots"`        // test runs at once
}

// Shares of the makers' figures that programs reach.
const (
	trainShare    = .4   // of FLOPs in training: 40 % is usual for FSDP of dense models
	prefillShare  = .4   // of FLOPs in prefill
	decodeShare   = .6   // of bandwidth in decoding
	decodeLatency = .004 // seconds of a decoding step beside: kernel launches, collectives, scheduling
	network       = 50e9 // bytes a second between nodes for each GPU: 400 Gbit/s
	disk          = 2e9  // bytes a second of a shared file system, for one reader or writer
	mostSequences = 256  // vLLM's default of --max-num-seqs
)

// Stage is one part of an update.
type Stage struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Why     string  `json:"why"`
}

// decode is the time of one decoding step of a replica with so many sequences of a mean length, and what bounds it.
func decode(s modeldir.Shape, c Server, g GPU, sequences, length float64) float64 {
	read := math.Min(float64(s.Parameters()), float64(s.Active())*math.Max(1, sequences)) * float64(c.Size) / float64(c.Parallel)
	read += sequences * (length*float64(s.KVBytes(c.Size, c.Parallel)) + float64(s.StateBytes(c.Size, c.Parallel)))
	compute := 2 * float64(s.Active()) * sequences / (float64(c.Parallel) * g.FLOPs * prefillShare)
	return math.Max(read/(g.Bandwidth*decodeShare), compute) + decodeLatency
}

// rollouts is the time of an update's episodes: that of the servers' arithmetic, or that of the slots.
func rollouts(in Input, held Serving) Stage {
	w, s, g, replicas := in.Work, in.Shape, *in.GPU, float64(in.Replicas)
	episodes, mean := float64(w.Episodes)*w.Begun, w.Context/2
	atOnce := math.Min(float64(w.Concurrency)/replicas, mostSequences)
	if held.KVToken > 0 {
		atOnce = math.Min(atOnce, float64(held.KVTokens)/math.Max(1, mean))
	}
	atOnce = math.Max(1, atOnce)
	step := decode(s, in.Server, g, atOnce, mean)
	prefill := episodes * w.Context * 2 * float64(s.Active()) / (replicas * float64(in.Server.Parallel) * g.FLOPs * prefillShare)
	servers := episodes*w.Sampled*step/(replicas*atOnce) + prefill
	slots := math.Ceil(episodes/(replicas*atOnce)) * (w.Sampled*step + w.Turns*w.Tool)
	out := Stage{Name: "rollouts", Seconds: math.Max(servers, slots)}
	out.Why = fmt.Sprintf("%.0f episodes, %.0f at once on each of %d replicas, %.0f tokens/s in all", episodes, atOnce, in.Replicas, replicas*atOnce/step)
	if slots > servers && w.Turns*w.Tool > w.Sampled*step {
		out.Why += "; tools, not sampling, take the time"
	}
	return out
}

// updateFLOPs is the arithmetic of an update: 6 operations a parameter and token (Kaplan et al., arXiv 2001.08361) and
// causal attention's 6 * layers * width of queries * context, for each epoch, a third more where activations are computed
// again; once, a forward pass more where the update makes several steps, and one where a reference scores.
func updateFLOPs(s modeldir.Shape, t Trainer, w Workload) float64 {
	forward := 2*float64(s.Active()) + 2*float64(s.FullAttention*s.Heads*s.HeadDim)*w.Context
	each := 3.0
	if t.Recompute {
		each++
	}
	return (t.epochs()*each + t.scorings()) * forward * w.Context * float64(w.Episodes)
}

func (t Trainer) epochs() float64 { return float64(max(1, t.Epochs)) }

// scorings are the forward passes over an update's episodes that train nothing.
func (t Trainer) scorings() float64 {
	n := 0.0
	if t.Steps > 1 {
		n++
	}
	if t.Scored {
		n++
	}
	return n
}

func update(in Input, nodes int) Stage {
	t, n := in.Trainer, float64(max(1, in.Trainer.Ranks))
	flops := updateFLOPs(in.Shape, t, in.Work)
	compute := flops / (n * in.GPU.FLOPs * trainShare)
	link := in.GPU.Link
	if nodes > 1 {
		link = math.Min(link, network)
	}
	passes := math.Ceil(in.Work.Context * float64(in.Work.Episodes) * float64(max(1, t.Share)) / (n * float64(t.Tokens)))
	moved := passes * (3*t.epochs() + t.scorings()) * 4 * float64(in.Shape.Parameters()) * (1 - 1/n) // gathered twice, gradients scattered once, float32; to score, gathered once
	out := Stage{Name: "update", Seconds: math.Max(compute, moved/link)}
	out.Why = fmt.Sprintf("%.3g operations on %d GPUs, %.0f passes a rank", flops, int(n), passes*t.epochs())
	if moved/link > compute {
		out.Why += "; moving weights between ranks takes longer than the arithmetic: larger micro_tokens, fewer ranks"
	}
	return out
}

// checkpoint is an update's share of one: every node writes its part, and reads it again for its hash.
func checkpoint(in Input) Stage {
	bytes, every := checkpointBytes(in.Shape, in.Trainer), max(1, in.Every)
	return Stage{Name: "checkpoint", Seconds: 2 * bytes / (disk * float64(max(1, in.Nodes)*every)),
		Why: fmt.Sprintf("%.3g GB written, and read for their hash, by %d nodes, every %d updates", bytes/1e9, max(1, in.Nodes), every)}
}

func push(in Input) Stage {
	bytes := float64(in.Server.Size) * float64(in.Shape.Parameters())
	return Stage{Name: "push", Seconds: 2 * bytes / disk, Why: fmt.Sprintf("%.0f GB written and read over a shared disk", bytes/1e9)}
}

func probes(w Workload) Stage {
	runs := float64(w.Episodes) * w.Begun * w.Probes
	return Stage{Name: "probes", Seconds: runs * w.Test / float64(max(1, w.Slots)), Why: fmt.Sprintf("%.0f test runs of %.0f s, %d at once, beside the rollouts", runs, w.Test, w.Slots)}
}

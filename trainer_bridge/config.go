package trainerbridge

import (
	"fmt"
	"math"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/trainer_bridge/trainerpb"
)

// LossConfig is the training rule, with the field names and defaults of the loss contract (documented in
// milepost_trainer/loss.py, which prints the loss and gradient of any case).
type LossConfig struct {
	Loss          string   `yaml:"loss"`           // policy-gradient rule: ppo, gspo or cispo
	ClipLow       float64  `yaml:"clip_low"`       // the ratio is clipped at 1 - clip_low; 0 to 1
	ClipHigh      float64  `yaml:"clip_high"`      // and at 1 + clip_high; 0 or more
	DualClip      *float64 `yaml:"dual_clip"`      // bound of the ratio where the advantage is negative, above 1; null = none; ppo only
	Aggregate     string   `yaml:"aggregate"`      // how token losses are summed: token-mean, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm
	NormLength    *float64 `yaml:"norm_length"`    // constant divisor in tokens; required with seq-mean-token-sum-norm, null otherwise
	Correction    string   `yaml:"correction"`     // importance weights against the sampler: none, token_tis, sequence_tis or icepop
	CorrectionCap float64  `yaml:"correction_cap"` // cap of the tis weights; above 0
	IcepopLow     float64  `yaml:"icepop_low"`     // least icepop weight that trains, inclusive
	IcepopHigh    float64  `yaml:"icepop_high"`    // largest icepop weight that trains, inclusive
	Reject        string   `yaml:"reject"`         // sequences dropped by their ratio to the sampler: none, sequence (product) or geometric (mean)
	RejectLow     float64  `yaml:"reject_low"`     // a ratio below this is rejected
	RejectHigh    float64  `yaml:"reject_high"`    // a ratio above this is rejected
	KL            string   `yaml:"kl"`             // estimator of the KL to trainer.reference: none, k1, k2 or k3
	KLCoefficient float64  `yaml:"kl_coef"`        // weight of the KL term
}

// DefaultLossConfig returns the defaults of the loss contract.
func DefaultLossConfig() LossConfig {
	return LossConfig{
		Loss: "ppo", ClipLow: 0.2, ClipHigh: 0.28, Aggregate: "token-mean",
		Correction: "none", CorrectionCap: 2, IcepopLow: 0.5, IcepopHigh: 5,
		Reject: "none", RejectLow: 0.5, RejectHigh: 2, KL: "none",
	}
}

// Validate reports the first field out of range, with what is allowed.
func (c LossConfig) Validate() error {
	v := check{op: "trainerbridge: loss configuration"}
	v.oneOf("loss.loss", c.Loss, "ppo", "gspo", "cispo")
	v.between("loss.clip_low", c.ClipLow, 0, 1)
	v.between("loss.clip_high", c.ClipHigh, 0, math.MaxFloat64)
	if c.DualClip != nil {
		v.above("loss.dual_clip", *c.DualClip, 1)
	}
	v.oneOf("loss.aggregate", c.Aggregate, "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
	if c.NormLength != nil {
		v.above("loss.norm_length", *c.NormLength, 0)
	} else if c.Aggregate == "seq-mean-token-sum-norm" {
		v.fail("loss.norm_length is required with aggregate seq-mean-token-sum-norm (a number above 0)")
	}
	v.oneOf("loss.correction", c.Correction, "none", "token_tis", "sequence_tis", "icepop")
	v.above("loss.correction_cap", c.CorrectionCap, 0)
	v.between("loss.icepop_low", c.IcepopLow, 0, c.IcepopHigh)
	v.oneOf("loss.reject", c.Reject, "none", "sequence", "geometric")
	v.between("loss.reject_low", c.RejectLow, 0, c.RejectHigh)
	v.oneOf("loss.kl", c.KL, "none", "k1", "k2", "k3")
	v.between("loss.kl_coef", c.KLCoefficient, 0, math.MaxFloat64)
	return v.err
}

func (c LossConfig) proto() *trainerpb.LossConfig {
	return &trainerpb.LossConfig{
		Loss: c.Loss, ClipLow: c.ClipLow, ClipHigh: c.ClipHigh, DualClip: c.DualClip, Aggregate: c.Aggregate,
		NormLength: c.NormLength, Correction: c.Correction, CorrectionCap: c.CorrectionCap, IcepopLow: c.IcepopLow,
		IcepopHigh: c.IcepopHigh, Reject: c.Reject, RejectLow: c.RejectLow, RejectHigh: c.RejectHigh, Kl: c.KL,
		KlCoef: c.KLCoefficient,
	}
}

// OptimizerConfig is AdamW.
type OptimizerConfig struct {
	LR          float64 `yaml:"lr"`           // learning rate, above 0
	Beta1       float64 `yaml:"beta1"`        // decay of the mean of gradients
	Beta2       float64 `yaml:"beta2"`        // decay of the mean of their squares
	Eps         float64 `yaml:"eps"`          // added to the root of that mean
	WeightDecay float64 `yaml:"weight_decay"` // decoupled weight decay; 0 = none
	ClipNorm    float64 `yaml:"clip_norm"`    // largest norm of the gradient; 0 = no clipping
}

func (c OptimizerConfig) check(v *check) {
	v.above("optimizer.lr", c.LR, 0)
	v.between("optimizer.beta1", c.Beta1, 0, 0.999999)
	v.between("optimizer.beta2", c.Beta2, 0, 0.999999)
	v.above("optimizer.eps", c.Eps, 0)
	v.between("optimizer.weight_decay", c.WeightDecay, 0, math.MaxFloat64)
	v.between("optimizer.clip_norm", c.ClipNorm, 0, math.MaxFloat64)
}

func (c OptimizerConfig) proto() *trainerpb.OptimizerConfig {
	return &trainerpb.OptimizerConfig{Lr: c.LR, Beta1: c.Beta1, Beta2: c.Beta2, Eps: c.Eps, WeightDecay: c.WeightDecay, ClipNorm: c.ClipNorm}
}

// UpdateConfig says how [Client.Update] trains on a batch.
type UpdateConfig struct {
	Loss        LossConfig      `yaml:"loss"`        // the training rule; `python -m milepost_trainer.loss` prints it for any case
	Optimizer   OptimizerConfig `yaml:"optimizer"`   // AdamW
	Warmup      int             `yaml:"warmup"`      // updates over which lr rises from lr/warmup to lr; 0 = none
	Epochs      int             `yaml:"epochs"`      // passes over the batch
	Minibatches int             `yaml:"minibatches"` // optimizer steps a pass
	// MinibatchSequences sets the steps by the batch's size instead: about so many trained sequences an optimizer step;
	// 0 = minibatches.
	MinibatchSequences int `yaml:"minibatch_sequences"`

	MicroTokens int         `yaml:"micro_tokens"` // tokens of one forward pass, at most; changes speed and memory only
	Temperature float64     `yaml:"temperature"`  // logits are divided by it; must equal rollout.temperature
	Value       ValueConfig `yaml:"value"`        // the value head; read where credit.estimator needs values (ppo_gae)
	Guard       GuardConfig `yaml:"guard"`        // bounds beyond which the update is not made and the run stops with the batch kept (milepost trainer replay)
}

// GuardConfig holds the bounds of an update that is not made; they are looked at before every optimizer step. Numbers
// that are not finite stop it always.
type GuardConfig struct {
	MaxRatio    float64 `yaml:"max_ratio"`     // largest ratio of a trained token's probability to that at the start of the update, or of its inverse; 0 = no bound
	MinEntropy  float64 `yaml:"min_entropy"`   // smallest mean entropy of the trained tokens, nats; 0 = no bound
	MaxGap      float64 `yaml:"max_gap"`       // largest mean |logprob(trainer) - logprob(sampler)|; 0 = no bound
	MaxGradNorm float64 `yaml:"max_grad_norm"` // largest gradient norm before clipping; 0 = no bound
}

func (c GuardConfig) check(v *check) {
	v.between("guard.max_ratio", c.MaxRatio, 0, math.MaxFloat64)
	v.between("guard.min_entropy", c.MinEntropy, 0, math.MaxFloat64)
	v.between("guard.max_gap", c.MaxGap, 0, math.MaxFloat64)
	v.between("guard.max_grad_norm", c.MaxGradNorm, 0, math.MaxFloat64)
}

func (c GuardConfig) proto() *trainerpb.GuardConfig {
	return &trainerpb.GuardConfig{MaxRatio: c.MaxRatio, MinEntropy: c.MinEntropy, MaxGap: c.MaxGap, MaxGradNorm: c.MaxGradNorm}
}

// ValueConfig says how the value head learns; the rule is in milepost_trainer/critic.py.
type ValueConfig struct {
	LR          float64 `yaml:"lr"`     // learning rate of the head, above 0: about what a value moves in a step, whatever the model's width; it warms up as the policy's does
	Coefficient float64 `yaml:"coef"`   // weight of the value loss beside the policy's, above 0
	Clip        float64 `yaml:"clip"`   // a value counts as moved by at most this from the one before the update; 0 = no clipping
	Detach      bool    `yaml:"detach"` // true: the value loss trains the head alone, and the policy as if there were none
}

// DefaultValueConfig is the clipped value loss of verl with the coefficient of TRL.
func DefaultValueConfig() ValueConfig { return ValueConfig{LR: .02, Coefficient: .1, Clip: .5} }

func (c ValueConfig) check(v *check) {
	v.above("value.lr", c.LR, 0)
	v.above("value.coef", c.Coefficient, 0)
	v.between("value.clip", c.Clip, 0, math.MaxFloat64)
}

func (c ValueConfig) proto() *trainerpb.ValueConfig {
	return &trainerpb.ValueConfig{Lr: c.LR, Coef: c.Coefficient, Clip: c.Clip, Detach: c.Detach}
}

// DefaultUpdateConfig is the clipped policy gradient with token-level truncated importance sampling against the
// sampler, one optimizer step a batch.
func DefaultUpdateConfig() UpdateConfig {
	loss := DefaultLossConfig()
	loss.Correction = "token_tis"
	return UpdateConfig{
		Loss:      loss,
		Optimizer: OptimizerConfig{LR: 5e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, ClipNorm: 1},
		Epochs:    1, Minibatches: 1, MicroTokens: 8192, Temperature: 1, Value: DefaultValueConfig(),
	}
}

// Validate reports the first field out of range, with what is allowed.
func (c UpdateConfig) Validate() error {
	if err := c.Loss.Validate(); err != nil {
		return err
	}
	v := check{op: "trainerbridge: update configuration"}
	c.Optimizer.check(&v)
	v.atLeast("warmup", c.Warmup, 0)
	v.atLeast("epochs", c.Epochs, 1)
	v.atLeast("minibatches", c.Minibatches, 1)
	v.atLeast("minibatch_sequences", c.MinibatchSequences, 0)
	v.atLeast("micro_tokens", c.MicroTokens, 1)
	v.above("temperature", c.Temperature, 0)
	c.Guard.check(&v)
	c.Value.check(&v)
	return v.err
}

func (c UpdateConfig) proto() *trainerpb.UpdateConfig {
	return &trainerpb.UpdateConfig{
		Loss: c.Loss.proto(), Optimizer: c.Optimizer.proto(), Warmup: int32(c.Warmup), Epochs: int32(c.Epochs),
		Minibatches: int32(c.Minibatches), MicroTokens: int32(c.MicroTokens), Temperature: c.Temperature,
		Value: c.Value.proto(), Guard: c.Guard.proto(), MinibatchSequences: int32(c.MinibatchSequences),
	}
}

// SFTConfig says how [Client.Supervised] fine-tunes on demonstrations.
type SFTConfig struct {
	Optimizer     OptimizerConfig `yaml:"optimizer"`      // AdamW
	Epochs        int             `yaml:"epochs"`         // passes over the demonstrations where steps is 0
	Steps         int             `yaml:"steps"`          // optimizer steps; 0 = by epochs
	BatchEpisodes int             `yaml:"batch_episodes"` // demonstrations an optimizer step
	Warmup        int             `yaml:"warmup"`         // steps over which lr rises to its value; 0 = none
	Schedule      string          `yaml:"schedule"`       // how lr falls after the warmup: cosine, linear or constant
	FinalLR       float64         `yaml:"final_lr"`       // share of lr at the last step
	MicroTokens   int             `yaml:"micro_tokens"`   // tokens of one forward pass, at most
	MaxTokens     int             `yaml:"max_tokens"`     // longer demonstrations are left out and counted; 0 = the model's context
	Seed          int64           `yaml:"seed"`           // of the order of demonstrations
}

// DefaultSFTConfig fits a model of about a million parameters trained from scratch.
func DefaultSFTConfig() SFTConfig {
	return SFTConfig{
		Optimizer:     OptimizerConfig{LR: 3e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.01, ClipNorm: 1},
		Steps:         800,
		Epochs:        1,
		BatchEpisodes: 32, Warmup: 20, Schedule: "cosine", FinalLR: 0.1, MicroTokens: 8192,
	}
}

// Validate reports the first field out of range, with what is allowed.
func (c SFTConfig) Validate() error {
	v := check{op: "trainerbridge: sft configuration"}
	c.Optimizer.check(&v)
	v.atLeast("steps", c.Steps, 0)
	if c.Steps == 0 {
		v.atLeast("epochs", c.Epochs, 1)
	}
	v.atLeast("batch_episodes", c.BatchEpisodes, 1)
	v.atLeast("warmup", c.Warmup, 0)
	v.oneOf("schedule", c.Schedule, "cosine", "linear", "constant")
	v.between("final_lr", c.FinalLR, 0, 1)
	v.atLeast("micro_tokens", c.MicroTokens, 1)
	v.atLeast("max_tokens", c.MaxTokens, 0)
	return v.err
}

func (c SFTConfig) proto() *trainerpb.SupervisedConfig {
	return &trainerpb.SupervisedConfig{
		Optimizer: c.Optimizer.proto(), Epochs: int32(c.Epochs), Steps: int32(c.Steps), BatchEpisodes: int32(c.BatchEpisodes),
		Warmup: int32(c.Warmup), Schedule: c.Schedule, FinalLr: c.FinalLR, MicroTokens: int32(c.MicroTokens),
		MaxTokens: int32(c.MaxTokens), Seed: c.Seed,
	}
}

// ModelConfig is the shape of a tiny Llama model, embeddings untied, and of its byte-level BPE tokenizer.
type ModelConfig struct {
	VocabSize     int      `yaml:"vocab_size"`      // special and added tokens included; a small corpus gives fewer
	Layers        int      `yaml:"layers"`          // transformer blocks
	Width         int      `yaml:"width"`           // of the hidden state; a multiple of twice heads. vLLM's CPU attention refuses 16 a head
	Heads         int      `yaml:"heads"`           // attention heads
	KeyValueHeads int      `yaml:"key_value_heads"` // heads that share keys and values; divides heads
	MLPWidth      int      `yaml:"mlp_width"`       // of the feed-forward part
	MaxContext    int      `yaml:"max_context"`     // longest sequence in tokens
	RopeTheta     float64  `yaml:"rope_theta"`      // base of the rotary positions
	Seed          int64    `yaml:"seed"`            // of the initial weights
	AddedTokens   []string `yaml:"added_tokens"`    // one token each, not special: the mark-up of tool calls
}

// DefaultModelConfig is a model of about a million parameters.
func DefaultModelConfig() ModelConfig {
	return ModelConfig{
		VocabSize: 512, Layers: 4, Width: 128, Heads: 4, KeyValueHeads: 4, MLPWidth: 384, MaxContext: 4096, RopeTheta: 10000, Seed: 1,
		AddedTokens: []string{"<tool_call>", "</tool_call>"},
	}
}

// Validate reports the first field out of range, with what is allowed.
func (c ModelConfig) Validate() error {
	v := check{op: "trainerbridge: model configuration"}
	v.atLeast("vocab_size", c.VocabSize, 256+3+len(c.AddedTokens))
	for _, f := range []struct {
		name  string
		value int
	}{{"layers", c.Layers}, {"width", c.Width}, {"heads", c.Heads}, {"key_value_heads", c.KeyValueHeads}, {"mlp_width", c.MLPWidth}, {"max_context", c.MaxContext}} {
		v.atLeast(f.name, f.value, 1)
	}
	v.above("rope_theta", c.RopeTheta, 1)
	if v.err == nil && (c.Width%(2*c.Heads) != 0 || c.Heads%c.KeyValueHeads != 0) {
		v.fail("width %d must be a multiple of twice heads %d, and heads a multiple of key_value_heads %d", c.Width, c.Heads, c.KeyValueHeads)
	}
	for i, t := range c.AddedTokens {
		if t == "" || slices.Contains(c.AddedTokens[:i], t) {
			v.fail("added_tokens[%d] is %q; allowed: texts that are not empty and differ from each other", i, t)
		}
	}
	return v.err
}

func (c ModelConfig) proto() *trainerpb.ModelConfig {
	return &trainerpb.ModelConfig{
		VocabSize: int32(c.VocabSize), Layers: int32(c.Layers), Width: int32(c.Width), Heads: int32(c.Heads),
		KeyValueHeads: int32(c.KeyValueHeads), MlpWidth: int32(c.MLPWidth), MaxContext: int32(c.MaxContext),
		RopeTheta: c.RopeTheta, Seed: c.Seed, AddedTokens: c.AddedTokens,
	}
}

// check collects the first complaint about a configuration.
type check struct {
	op  string
	err error
}

func (v *check) fail(format string, args ...any) {
	if v.err == nil {
		v.err = milepost.E(v.op, milepost.KindInvalid, format, args...)
	}
}

func (v *check) oneOf(field, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.fail("%s is %q; allowed: %s", field, value, strings.Join(allowed, ", "))
	}
}

func (v *check) between(field string, value, low, high float64) {
	if !(value >= low && value <= high) {
		upper := fmt.Sprintf("to %g", high)
		if high == math.MaxFloat64 {
			upper = "or more"
		}
		v.fail("%s is %v; allowed: %g %s", field, value, low, upper)
	}
}

func (v *check) above(field string, value, low float64) {
	if !(value > low && !math.IsInf(value, 1)) {
		v.fail("%s is %v; allowed: above %g", field, value, low)
	}
}

func (v *check) atLeast(field string, value, low int) {
	if value < low || value > math.MaxInt32 {
		v.fail("%s is %d; allowed: %d or more", field, value, low)
	}
}

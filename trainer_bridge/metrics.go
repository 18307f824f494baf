package trainerbridge

import (
	"time"

	"github.com/milepost-rl/milepost/trainer_bridge/trainerpb"
)

// UpdateMetrics says what one update did. Means are over trained tokens unless said otherwise; logprobs are natural.
type UpdateMetrics struct {
	Updates           int64         `json:"updates"` // updates held by the weights now
	Loss              float64       `json:"loss"`
	PolicyLoss        float64       `json:"policy_loss"`
	KLLoss            float64       `json:"kl_loss"`
	Entropy           float64       `json:"entropy"`            // nats
	KLSampler         float64       `json:"kl_sampler"`         // k3 estimate of KL(sampler || trainer)
	LogprobGapMean    float64       `json:"logprob_gap_mean"`   // |logprob(trainer) - logprob(sampler)| at the start of the update
	LogprobGapMax     float64       `json:"logprob_gap_max"`    //
	ClipFraction      float64       `json:"clip_fraction"`      // share of trained tokens whose ratio the loss clipped
	GradNorm          float64       `json:"grad_norm"`          // before clipping, mean over optimizer steps
	GradNormMax       float64       `json:"grad_norm_max"`      //
	RatioMean         float64       `json:"ratio_mean"`         // exp(l - l_old)
	RatioMin          float64       `json:"ratio_min"`          //
	RatioMax          float64       `json:"ratio_max"`          //
	CorrectionMean    float64       `json:"correction_mean"`    // weight of the rollout correction
	KLReference       float64       `json:"kl_reference"`       // mean KL term; 0 without reference
	AdvantageMean     float64       `json:"advantage_mean"`     //
	AdvantageAbsMean  float64       `json:"advantage_abs_mean"` //
	LR                float64       `json:"lr"`                 //
	Sequences         int64         `json:"sequences"`          //
	RejectedSequences int64         `json:"rejected_sequences"` //
	Tokens            int64         `json:"tokens"`             // all tokens of the batch
	TrainedTokens     int64         `json:"trained_tokens"`     // mask true and not rejected
	OptimizerSteps    int           `json:"optimizer_steps"`    //
	VersionMin        int32         `json:"version_min"`        // oldest weight version among trained tokens; -1 where none
	VersionMax        int32         `json:"version_max"`        //
	Duration          time.Duration `json:"duration"`           //
	ScoreDuration     time.Duration `json:"score_duration"`     // of it, forward passes for old and reference logprobs
	TokensPerSecond   float64       `json:"tokens_per_second"`  // tokens * epochs / duration

	// With a value head only, else nil.
	ValueLoss         *float64 `json:"value_loss,omitempty"`         // without its coefficient
	ValueClipFraction *float64 `json:"value_clipfrac,omitempty"`     // share of trained tokens where the loss took the clipped value
	ExplainedVariance *float64 `json:"explained_variance,omitempty"` // 1 - Var(return - old value)/Var(return); nil too where returns are all equal

	// With routing replay only, else nil.
	RoutesReplayed *float64 `json:"routes_replayed,omitempty"` // share of the tokens passed through the model whose recorded experts were used
	RoutesChanged  *float64 `json:"routes_changed,omitempty"`  // share of the replayed choices that the trainer's own router would have made differently
}

func updateMetrics(m *trainerpb.UpdateReply) UpdateMetrics {
	return UpdateMetrics{
		Updates: m.Updates, Loss: m.Loss, PolicyLoss: m.PolicyLoss, KLLoss: m.KlLoss, Entropy: m.Entropy, KLSampler: m.KlSampler,
		LogprobGapMean: m.LogprobGapMean, LogprobGapMax: m.LogprobGapMax, ClipFraction: m.ClipFraction,
		GradNorm: m.GradNorm, GradNormMax: m.GradNormMax, RatioMean: m.RatioMean, RatioMin: m.RatioMin, RatioMax: m.RatioMax,
		CorrectionMean: m.CorrectionMean, KLReference: m.KlReference, AdvantageMean: m.AdvantageMean,
		AdvantageAbsMean: m.AdvantageAbsMean, LR: m.Lr, Sequences: m.Sequences, RejectedSequences: m.RejectedSequences,
		Tokens: m.Tokens, TrainedTokens: m.TrainedTokens, OptimizerSteps: int(m.OptimizerSteps),
		VersionMin: m.VersionMin, VersionMax: m.VersionMax, Duration: seconds(m.Seconds),
		ScoreDuration: seconds(m.ScoreSeconds), TokensPerSecond: m.TokensPerSecond,
		ValueLoss: m.ValueLoss, ValueClipFraction: m.ValueClipfrac, ExplainedVariance: m.ExplainedVariance,
		RoutesReplayed: m.RoutesReplayed, RoutesChanged: m.RoutesChanged,
	}
}

// SFTProgress is the state of a supervised run after one optimizer step.
type SFTProgress struct {
	Step, Steps     int
	Loss            float64 // mean negative logprob a trained token at this step
	LR, GradNorm    float64
	Tokens          int64 // so far
	TrainedTokens   int64
	TokensPerSecond float64
	Elapsed, ETA    time.Duration
	Demonstrations  int
	LeftOut         int  // longer than max_tokens
	Done            bool // set on the last one; the weights hold the result from here on
}

func sftProgress(m *trainerpb.SupervisedProgress) SFTProgress {
	return SFTProgress{
		Step: int(m.Step), Steps: int(m.Steps), Loss: m.Loss, LR: m.Lr, GradNorm: m.GradNorm, Tokens: m.Tokens,
		TrainedTokens: m.TrainedTokens, TokensPerSecond: m.TokensPerSecond, Elapsed: seconds(m.Seconds), ETA: seconds(m.EtaSeconds),
		Demonstrations: int(m.Demonstrations), LeftOut: int(m.LeftOut), Done: m.Done,
	}
}

package credit

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

// The verification modes. Auto takes pass_count for tasks of kind repo_generation and normalized for the others.
const (
	ModeAuto       = "auto"
	ModeNormalized = "normalized"
	ModePassCount  = "pass_count"
)

// The normalisations of gigpo, hgpo and graph_gpo.
const (
	NormMeanStd = "mean_std" // subtract the mean, divide by std + eps
	NormMean    = "mean"     // subtract the mean
)

// The process baselines.
const (
	BaselineNone      = "none"
	BaselineGroupMean = "group_mean" // extension beyond the paper, see process_baseline.go
)

// The sources of the outcome reward.
const (
	OutcomeResolved  = "resolved"  // 1 where every test passes at the end, a fraction at a limit (limit.go), else 0
	OutcomePassed    = "passed"    // 1 where every test passes at the end, at a limit too, else 0 (as SWE-bench and Nebius count)
	OutcomePotential = "potential" // the verification potential of the final tree: dense, but without a probe of any step
)

// Config is every number and switch of the credit rules. Decode it over [Default]: an absent or null field keeps its
// default (for objectives, null is the default too). Two weights have a default that follows the resolved verification mode and are pointers for that reason.
type Config struct {
	Estimator       string    `yaml:"estimator" json:"estimator"`               // dapo, dr_grpo, gigpo, graph_gpo, grpo, hgpo, mo_grpo, ppo_gae, reinforce_pp_baseline or rloo
	Outcome         string    `yaml:"outcome" json:"outcome"`                   // outcome reward: resolved (SWE-MILE: a fraction at a limit), passed (1 at a limit, too), or potential (the verification potential of the final tree, as terminal reward)
	Overlong        Overlong  `yaml:"overlong" json:"overlong"`                 // length terms added to the outcome reward
	Objectives      []string  `yaml:"objectives" json:"objectives"`             // mo_grpo: terms, each normalised by itself; of resolved, reward, verification, navigation, format
	OutcomeWeight   float64   `yaml:"outcome_weight" json:"outcome_weight"`     // w_out: weight of the outcome advantage beside milestone credit
	Eps             float64   `yaml:"eps" json:"eps"`                           // added to every standard deviation that is divided by
	Omega           float64   `yaml:"omega" json:"omega"`                       // gigpo: weight of the state part
	StepGamma       float64   `yaml:"step_gamma" json:"step_gamma"`             // gigpo, hgpo: discount of the return
	HGPOK           int       `yaml:"hgpo_k" json:"hgpo_k"`                     // hgpo: levels beyond the current state
	HGPOAlpha       float64   `yaml:"hgpo_alpha" json:"hgpo_alpha"`             // hgpo: exponent of the level weights
	GroupNorm       string    `yaml:"group_norm" json:"group_norm"`             // gigpo, hgpo, graph_gpo: mean_std or mean
	GraphGamma      float64   `yaml:"graph_gamma" json:"graph_gamma"`           // graph_gpo: discount per edge
	GraphScale      float64   `yaml:"graph_scale" json:"graph_scale"`           // graph_gpo: value of success
	GAEGamma        float64   `yaml:"gae_gamma" json:"gae_gamma"`               // ppo_gae: discount a token
	GAELambda       float64   `yaml:"gae_lambda" json:"gae_lambda"`             // ppo_gae: 1 = return minus value, 0 = one-step difference
	GAEWhiten       bool      `yaml:"gae_whiten" json:"gae_whiten"`             // ppo_gae: whiten the outcome advantage over the update's trained tokens, as verl does
	ProcessBaseline string    `yaml:"process_baseline" json:"process_baseline"` // none, or group_mean (an extension: the mean of the group is taken off process advantages)
	Milestone       Milestone `yaml:"milestone" json:"milestone"`               // per-step credit of SWE-MILE
}

// Milestone configures the per-step credit of SWE-MILE. Enabled false zeroes all of it; each term can be switched off
// alone and then reports 0.
type Milestone struct {
	Enabled        bool     `yaml:"enabled" json:"enabled"`                 // false: no milestone credit at all, outcome only
	Verification   bool     `yaml:"verification" json:"verification"`       // the verification term: what probes of the tests show
	Navigation     bool     `yaml:"navigation" json:"navigation"`           // the navigation term: relevant files found and read
	Format         bool     `yaml:"format" json:"format"`                   // the format term: -1 for a call that does not parse, breaks its schema or breaks policy
	Mode           string   `yaml:"mode" json:"mode"`                       // verification potential: normalized (bug repair), pass_count (repository generation) or auto (by the kind of task)
	BetaAny        float64  `yaml:"beta_any" json:"beta_any"`               // normalized: price of any regression
	BetaFrac       float64  `yaml:"beta_frac" json:"beta_frac"`             // normalized: price of the share regressed
	WVer           *float64 `yaml:"w_ver" json:"w_ver"`                     // weight of the verification term; null: .2 normalized, .1 pass_count
	WNav           *float64 `yaml:"w_nav" json:"w_nav"`                     // weight of the navigation term; null: .05 normalized, 0 pass_count
	Search         float64  `yaml:"search" json:"search"`                   // exposure of a file whose path a search showed
	Read           float64  `yaml:"read" json:"read"`                       // exposure of a file whose content was shown
	BackwardLambda float64  `yaml:"backward_lambda" json:"backward_lambda"` // weight of the credit that a step takes from later steps
	BackwardGamma  float64  `yaml:"backward_gamma" json:"backward_gamma"`   // discount of that credit for each step between
	WFormat        float64  `yaml:"w_format" json:"w_format"`               // weight of the format term
	ClipLow        float64  `yaml:"clip_low" json:"clip_low"`               // pass_count: least change of a step, in tests
	ClipHigh       float64  `yaml:"clip_high" json:"clip_high"`             // pass_count: largest change of a step, in tests
}

// Default returns the defaults of the paper (SWE-MILE, arXiv 2609.32631) with the grpo estimator.
func Default() Config {
	return Config{
		Estimator: "grpo", Outcome: OutcomeResolved, Objectives: defaultObjectives(), OutcomeWeight: 1, Eps: 1e-6, Omega: 1, StepGamma: .95, HGPOK: 2, HGPOAlpha: 1,
		GroupNorm: NormMeanStd, GraphGamma: .1, GraphScale: 10, GAEGamma: 1, GAELambda: 1, ProcessBaseline: BaselineNone,
		Milestone: Milestone{
			Enabled: true, Verification: true, Navigation: true, Format: true, Mode: ModeAuto,
			BetaAny: .1, BetaFrac: .5, Search: .2, Read: 1,
			BackwardLambda: .2, BackwardGamma: .9, WFormat: .25, ClipLow: -6, ClipHigh: 3,
		},
	}
}

// Validate returns an error of kind invalid that names the first wrong field and what is allowed.
func (c Config) Validate() error {
	if err := oneOf("estimator", c.Estimator, Estimators()...); err != nil {
		return err
	}
	if err := oneOf("outcome", c.Outcome, OutcomeResolved, OutcomePassed, OutcomePotential); err != nil {
		return err
	}
	if err := c.Overlong.Validate(); err != nil {
		return err
	}
	if err := c.validateObjectives(); err != nil {
		return err
	}
	if err := oneOf("group_norm", c.GroupNorm, NormMeanStd, NormMean); err != nil {
		return err
	}
	if err := oneOf("process_baseline", c.ProcessBaseline, BaselineNone, BaselineGroupMean); err != nil {
		return err
	}
	if c.HGPOK < 0 || c.HGPOK > 100 {
		return fieldError("hgpo_k", c.HGPOK, "a whole number from 0 to 100")
	}
	for _, f := range []field{
		{"outcome_weight", c.OutcomeWeight, finite}, {"eps", c.Eps, nonNegative}, {"omega", c.Omega, finite},
		{"step_gamma", c.StepGamma, unit}, {"hgpo_alpha", c.HGPOAlpha, hundred},
		{"graph_gamma", c.GraphGamma, unit}, {"graph_scale", c.GraphScale, finite},
		{"gae_gamma", c.GAEGamma, unit}, {"gae_lambda", c.GAELambda, unit},
	} {
		if err := f.check(); err != nil {
			return err
		}
	}
	return c.Milestone.validate()
}

func (m Milestone) validate() error {
	if err := oneOf("milestone.mode", m.Mode, ModeAuto, ModeNormalized, ModePassCount); err != nil {
		return err
	}
	fields := []field{
		{"beta_any", m.BetaAny, finite}, {"beta_frac", m.BetaFrac, finite}, {"search", m.Search, finite},
		{"read", m.Read, finite}, {"backward_lambda", m.BackwardLambda, finite},
		{"backward_gamma", m.BackwardGamma, unit}, {"w_format", m.WFormat, finite},
		{"clip_low", m.ClipLow, finite}, {"clip_high", m.ClipHigh, finite},
	}
	if m.WVer != nil {
		fields = append(fields, field{"w_ver", *m.WVer, finite})
	}
	if m.WNav != nil {
		fields = append(fields, field{"w_nav", *m.WNav, finite})
	}
	for _, f := range fields {
		f.name = "milestone." + f.name
		if err := f.check(); err != nil {
			return err
		}
	}
	if m.ClipLow > m.ClipHigh {
		return fieldError("milestone.clip_low", m.ClipLow, fmt.Sprintf("a number up to clip_high (%v)", m.ClipHigh))
	}
	return nil
}

// weights are the milestone weights of one task, resolved by verification mode.
type weights struct{ ver, nav float64 }

// mode resolves ModeAuto for a kind of task.
func (m Milestone) mode(kind milepost.TaskKind) string {
	switch {
	case m.Mode != ModeAuto:
		return m.Mode
	case kind == milepost.RepoGeneration:
		return ModePassCount
	default:
		return ModeNormalized
	}
}

func (m Milestone) weights(mode string) weights {
	w := weights{ver: .2, nav: .05}
	if mode == ModePassCount {
		w = weights{ver: .1, nav: 0}
	}
	if m.WVer != nil {
		w.ver = *m.WVer
	}
	if m.WNav != nil {
		w.nav = *m.WNav
	}
	return w
}

// field is one number of a configuration and what it may be.
type field struct {
	name  string
	value float64
	rule  rule
}

type rule struct {
	words     string
	low, high float64
}

var (
	finite      = rule{"a finite number", -math.MaxFloat64, math.MaxFloat64}
	nonNegative = rule{"a finite number from 0", 0, math.MaxFloat64}
	unit        = rule{"a number from 0 to 1", 0, 1}
	hundred     = rule{"a number from -100 to 100", -100, 100}
)

func (f field) check() error {
	if f.value >= f.rule.low && f.value <= f.rule.high { // false for NaN
		return nil
	}
	return fieldError(f.name, f.value, f.rule.words)
}

func oneOf(name, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fieldError(name, fmt.Sprintf("%q", value), "one of "+strings.Join(allowed, ", "))
}

func fieldError(name string, value any, allowed string) error {
	return milepost.E("credit: configure", milepost.KindInvalid, "field %s is %v; allowed: %s", name, value, allowed)
}

package credit

import (
	"math"

	"github.com/milepost-rl/milepost"
)

const opAssign = "credit: assign"

// Input is one finished episode with its task and the task's baseline of this run (nil or untrusted: no verification
// credit). Episode.Outcome.Reward is set by the caller. Nothing in it is changed.
type Input struct {
	Episode  *milepost.Episode
	Task     *milepost.Task
	Baseline *milepost.Probe

	// Values are a value head's, one for each trained token in order across the episode's samples ([TrainedSteps]): V of
	// the state in which the token was chosen. nil = none; only estimators with values read them ([NeedsValues]).
	Values []float64
}

// Result is the credit of a batch of episodes, in the order of the inputs.
type Result struct {
	Episodes []milepost.EpisodeCredit
	Tokens   []TokenCredit // by episode as well; nil but for estimators with values, whose advantages are by token
	Warnings []string      // baselines and probes that claim a trust the engine refuses; each names its place
	Summary  Summary
}

// Engine assigns credit by one validated configuration. It is stateless and safe for concurrent use.
type Engine struct{ cfg Config }

// New validates cfg; the error is of kind invalid and names the field and what is allowed.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Engine{cfg: cfg}, nil
}

// Config returns the configuration in force.
func (e *Engine) Config() Config { return e.cfg }

// Assign computes the credit of every step: process advantage by episode, A_out by group, A = w_out*A_out + p. A_out is
// that before any whitening over the update ([Engine.Whiten]). Episodes with status infra_error or cancelled are
// excluded: in no statistic, no steps.
//
// Errors are of kind invalid and name episode and step: a merge group that is not contiguous, a reward that is not
// finite, a step out of order, a group of several tasks, an episode id given twice, credit that is not finite, values
// that the estimator needs and that are missing or not one a trained token.
func (e *Engine) Assign(inputs []Input) (Result, error) {
	groups, err := arrange(inputs)
	if err != nil {
		return Result{}, err
	}
	r := Result{Episodes: allocate(inputs)}
	process := walker{m: e.cfg.Milestone}
	plans := planner{m: e.cfg.Milestone, plans: make(map[planKey]*plan)}
	for i, in := range inputs {
		if !excluded(in.Episode) {
			process.episode(in.Episode, plans.of(in), r.Episodes[i].Steps)
		}
	}
	for _, g := range groups {
		if err := e.group(g, r.Episodes); err != nil {
			return Result{}, err
		}
	}
	if err := checkFinite(r.Episodes); err != nil {
		return Result{}, err
	}
	if r.Tokens, err = e.tokens(groups, r.Episodes); err != nil {
		return Result{}, err
	}
	r.Warnings = append(plans.warnings, process.warnings...)
	r.Summary = summarise(groups, r.Episodes)
	r.Summary.Probes, r.Summary.ProbesTrusted = process.ver.probes, process.ver.trusted
	return r, nil
}

// group adds what needs the whole group: A_out, the process baseline, the sum.
func (e *Engine) group(g *arranged, credits []milepost.EpisodeCredit) error {
	steps := make([][]milepost.StepCredit, len(g.inputs))
	out := make([][]float64, len(g.inputs))
	for k, i := range g.inputs {
		steps[k] = credits[i].Steps
		out[k] = make([]float64, len(steps[k]))
	}
	if err := registry[e.cfg.Estimator].assign(&e.cfg, &g.group, out); err != nil {
		return err
	}
	if e.cfg.Milestone.Enabled && e.cfg.ProcessBaseline == BaselineGroupMean {
		subtractGroupMean(steps)
	}
	for k := range steps {
		for t := range steps[k] {
			c := &steps[k][t]
			c.AOut = out[k][t]
			c.Advantage = e.cfg.OutcomeWeight*c.AOut + c.P
		}
	}
	return nil
}

// excluded says whether an episode is in no statistic and trains nothing.
func excluded(e *milepost.Episode) bool {
	return e.Status == milepost.EpisodeInfra || e.Status == milepost.EpisodeCancelled
}

// allocate makes the result of all episodes in one block of memory.
func allocate(inputs []Input) []milepost.EpisodeCredit {
	total := 0
	for _, in := range inputs {
		if !excluded(in.Episode) {
			total += len(in.Episode.Steps)
		}
	}
	block := make([]milepost.StepCredit, total)
	out := make([]milepost.EpisodeCredit, len(inputs))
	for i, in := range inputs {
		out[i] = milepost.EpisodeCredit{ID: in.Episode.ID, Excluded: excluded(in.Episode)}
		if !out[i].Excluded {
			n := len(in.Episode.Steps)
			out[i].Steps, block = block[:n:n], block[n:]
		}
	}
	return out
}

// planner makes one plan for each task and baseline.
type planner struct {
	m        Milestone
	plans    map[planKey]*plan
	warnings []string
}

type planKey struct {
	task     *milepost.Task
	baseline *milepost.Probe
}

func (p *planner) of(in Input) *plan {
	key := planKey{in.Task, in.Baseline}
	if got, ok := p.plans[key]; ok {
		return got
	}
	made, warning := newPlan(p.m, in.Task, in.Baseline)
	p.plans[key] = made
	if warning != "" && p.m.Enabled && p.m.Verification {
		p.warnings = append(p.warnings, warning)
	}
	return made
}

// checkFinite is the last guard: no NaN and no infinity leaves the package.
func checkFinite(episodes []milepost.EpisodeCredit) error {
	for i := range episodes {
		for t := range episodes[i].Steps {
			c := &episodes[i].Steps[t]
			// A finite sum proves every term finite: infinities and NaN survive addition.
			if sum := c.PhiVer + c.PhiNav + c.R + c.B + c.F + c.P + c.AOut + c.Advantage; !isFinite(sum) {
				return milepost.E(opAssign, milepost.KindInvalid,
					"episode %s step %d: the credit is not finite (%+v): rewards or weights are too large", episodes[i].ID, t, *c)
			}
		}
	}
	return nil
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func stepError(e *milepost.Episode, t int, format string, args ...any) error {
	args = append([]any{e.ID, t}, args...)
	return milepost.E(opAssign, milepost.KindInvalid, "episode %s step %d: "+format, args...)
}

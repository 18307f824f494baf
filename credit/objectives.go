package credit

import (
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

// Objectives for multi-objective estimators (mo_grpo, arXiv 2509.22047: one normalised term an objective), as numbers
// that a run knows of every graded episode. The paper leaves the choice of objectives to the application; these are the
// outcome and the three milestone terms, each as a whole-episode number that no weight of [Milestone] scales:
//
//	resolved      1 where the final state passes everything, else 0
//	reward        the outcome reward, with fractions at a limit and length terms (outcome.go)
//	verification  phi_ver of the tree that the verdict tested, as if it were the episode's only probe
//	navigation    phi_nav after the last step
//	format        share of steps whose call was well formed and kept to policy; 1 without steps
//
// verification and navigation are 0 where the potential is not known, and do not depend on the milestone switches.

// The names of the objectives.
const (
	ObjectiveResolved     = "resolved"
	ObjectiveReward       = "reward"
	ObjectiveVerification = "verification"
	ObjectiveNavigation   = "navigation"
	ObjectiveFormat       = "format"
)

// objectives are the rules by name.
var objectives = map[string]func(e *Engine, in Input) float64{
	ObjectiveResolved:     func(_ *Engine, in Input) float64 { return float64(count(in.Episode.Outcome.Resolved)) },
	ObjectiveReward:       func(e *Engine, in Input) float64 { return e.OutcomeReward(in) },
	ObjectiveVerification: func(e *Engine, in Input) float64 { return e.finalPotential(in) },
	ObjectiveNavigation:   func(e *Engine, in Input) float64 { return e.finalNavigation(in) },
	ObjectiveFormat:       func(_ *Engine, in Input) float64 { return wellFormed(in.Episode) },
}

// objectiveNames are what a configuration may list, in the order in which messages name them.
var objectiveNames = []string{ObjectiveResolved, ObjectiveReward, ObjectiveVerification, ObjectiveNavigation, ObjectiveFormat}

// defaultObjectives are those of a configuration that lists none.
func defaultObjectives() []string {
	return []string{ObjectiveResolved, ObjectiveVerification, ObjectiveNavigation, ObjectiveFormat}
}

// objectives returns the names in force: null in a configuration keeps the default.
func (c *Config) objectives() []string {
	if c.Objectives == nil {
		return defaultObjectives()
	}
	return c.Objectives
}

// validateObjectives checks the list, and that an estimator that reads nothing but objectives sees the length terms.
func (c *Config) validateObjectives() error {
	names := c.objectives()
	allowed := "one or more of " + strings.Join(objectiveNames, ", ") + ", each once"
	for i, n := range names {
		if !slices.Contains(objectiveNames, n) || slices.Contains(names[:i], n) {
			return fieldError("objectives", names, allowed)
		}
	}
	if len(names) == 0 {
		return fieldError("objectives", names, allowed)
	}
	reads := c.Outcome != OutcomeResolved || c.Overlong.MaxTokens > 0 || c.Overlong.MaxTurns > 0
	if NeedsObjectives(c.Estimator) && reads && !slices.Contains(names, ObjectiveReward) {
		return fieldError("objectives", names, "a list with "+ObjectiveReward+", since "+c.Estimator+
			" reads nothing else and outcome or overlong would have no effect")
	}
	return nil
}

// Objectives returns the objectives of a graded episode by name, nil where the estimator reads none. The caller sets
// Episode.Outcome.Objectives to it, after Outcome.Resolved is known. Nothing of in is changed.
func (e *Engine) Objectives(in Input) map[string]float64 {
	if !NeedsObjectives(e.cfg.Estimator) {
		return nil
	}
	names := e.cfg.objectives()
	out := make(map[string]float64, len(names))
	for _, n := range names {
		out[n] = objectives[n](e, in)
	}
	return out
}

// finalNavigation is phi_nav after the last step.
func (e *Engine) finalNavigation(in Input) float64 {
	p, _ := newPlan(e.cfg.Milestone, in.Task, in.Baseline)
	var n navigator
	n.reset(p, &e.cfg.Milestone)
	phi := 0.0
	for t := range in.Episode.Steps {
		phi, _ = n.step(&in.Episode.Steps[t])
	}
	return phi
}

// wellFormed is the share of steps that earn no format penalty.
func wellFormed(ep *milepost.Episode) float64 {
	if len(ep.Steps) == 0 {
		return 1
	}
	n := 0
	for t := range ep.Steps {
		n += count(ep.Steps[t].Valid)
	}
	return float64(n) / float64(len(ep.Steps))
}

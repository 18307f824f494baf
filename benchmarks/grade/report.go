package grade

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost/benchmarks/predictions"
)

// Report turns a verdict into SWE-bench's form. "Applied" there means that the log could be judged, not only that the patch
// applied.
func (v *Verdict) Report() predictions.Instance {
	r := predictions.Instance{PatchIsNone: v.Outcome == NoPatch && v.PatchIsNil, Resolved: v.Outcome == Resolved, TestsStatus: v.Tests,
		PatchSuccessfullyApplied: v.Outcome.Ran()}
	r.PatchExists = !r.PatchIsNone
	if !v.Outcome.Ran() {
		r.InfraFailure, r.InfraFailureReason = v.HintTier == TierEnvironment, v.Hint
	}
	return r
}

// Judged reports whether SWE-bench's harness writes a report of such an end: it does where the evaluation came to its
// end and the log could be parsed, however it was judged; otherwise the instance is an error there.
func (o Outcome) Judged() bool {
	switch o {
	case Resolved, Unresolved, NoMarkers, NoResults, Contradicted:
		return true
	}
	return false
}

// RunReport is the report of a run in SWE-bench's form and, beside it, what that form lacks: the closed outcome of every
// graded instance, and what was not graded for want of infrastructure, which is in error_ids too but is no wrong answer.
type RunReport struct {
	predictions.Run
	Milepost struct {
		Outcomes       map[Outcome][]string `json:"outcomes"`
		Infrastructure []string             `json:"infrastructure_ids"`
		Graded         int                  `json:"graded_instances"` // without infrastructure: the denominator of a rate
		MeanReward     float64              `json:"mean_reward"`      // over graded
	} `json:"milepost"`
}

// Summarise makes the report of a run: tasks are the ids of the whole task set, and verdicts hold one of each prediction
// that has a task.
func Summarise(tasks []string, list []predictions.Prediction, verdicts []*Verdict) *RunReport {
	graded := map[string]predictions.Instance{}
	for _, v := range verdicts {
		if v.Outcome.Judged() {
			graded[v.InstanceID] = v.Report()
		}
	}
	r := &RunReport{Run: predictions.Summarise(tasks, list, graded)}
	Hints(&r.Run, verdicts)
	r.Milepost.Outcomes, r.Milepost.Infrastructure = map[Outcome][]string{}, []string{}
	for _, v := range verdicts {
		r.Milepost.Outcomes[v.Outcome] = append(r.Milepost.Outcomes[v.Outcome], v.InstanceID)
		if v.Outcome == Infrastructure {
			r.Milepost.Infrastructure = append(r.Milepost.Infrastructure, v.InstanceID)
			continue
		}
		r.Milepost.Graded++
		r.Milepost.MeanReward += v.Reward
	}
	if r.Milepost.Graded > 0 {
		r.Milepost.MeanReward /= float64(r.Milepost.Graded)
	}
	slices.Sort(r.Milepost.Infrastructure)
	for ids := range maps.Values(r.Milepost.Outcomes) {
		slices.Sort(ids)
	}
	return r
}

// Hints fills the signs of broken environments into the report of a run, which SWE-bench looks for in the logs of all
// that is unresolved or in error, not only of what its reports of instances say. Of verdicts it reads InstanceID, Outcome,
// Hint and HintTier.
func Hints(r *predictions.Run, verdicts []*Verdict) {
	r.InfraIDs, r.AmbiguousIDs, r.FailureReasons = []string{}, []string{}, map[string]string{}
	for _, v := range verdicts {
		switch {
		case v.Outcome == Resolved || v.Outcome == NoPatch || v.Hint == "":
			continue
		case v.HintTier == TierEnvironment:
			r.InfraIDs = append(r.InfraIDs, v.InstanceID)
		default:
			r.AmbiguousIDs = append(r.AmbiguousIDs, v.InstanceID)
		}
		r.FailureReasons[v.InstanceID] = v.Hint
	}
	slices.Sort(r.InfraIDs)
	slices.Sort(r.AmbiguousIDs)
	r.Infra, r.Ambiguous = len(r.InfraIDs), len(r.AmbiguousIDs)
}

// ModelFolder is the name of a model's folder and report: its name with / as two underscores, as SWE-bench spells it. A
// name that would still leave the folder ("..") is spelled with a leading underscore.
func ModelFolder(model string) string {
	name := strings.ReplaceAll(model, "/", "__")
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsRune(name, 0) {
		name = "_" + strings.ReplaceAll(name, "\x00", "")
	}
	return name
}

// indented is JSON for files that people read.
func indented(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "    ")
	return append(b, '\n'), err
}

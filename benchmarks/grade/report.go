package grade

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Report is the report on one instance in SWE-bench's JSON, {instance id: Report}.
type Report struct {
	PatchIsNone bool         `json:"patch_is_None"`
	PatchExists bool         `json:"patch_exists"`
	Applied     bool         `json:"patch_successfully_applied"`
	Resolved    bool         `json:"resolved"`
	Infra       bool         `json:"infra_failure"`                  // the log shows a broken environment; advice, see hints.go
	InfraReason string       `json:"infra_failure_reason,omitempty"` // which sign
	Tests       *TestsStatus `json:"tests_status,omitempty"`
}

// Report turns a verdict into SWE-bench's form. "Applied" there means that the log could be judged, not only that the patch
// applied.
func (v *Verdict) Report() Report {
	r := Report{PatchIsNone: v.Outcome == NoPatch && v.PatchIsNil, Resolved: v.Outcome == Resolved, Tests: v.Tests, Applied: v.Outcome.Ran()}
	r.PatchExists = !r.PatchIsNone
	if !r.Applied {
		r.Infra, r.InfraReason = v.HintTier == TierEnvironment, v.Hint
	}
	return r
}

// judged reports whether SWE-bench's harness writes a report of such an end: it does where the evaluation came to its
// end and the log could be parsed, however it was judged; otherwise the instance is an error there.
func (o Outcome) judged() bool {
	switch o {
	case Resolved, Unresolved, NoMarkers, NoResults, Contradicted:
		return true
	}
	return false
}

// RunReport is the report on a whole run in SWE-bench's JSON (schema_version 2). An id is in one of completed, error,
// empty patch and incomplete; completed ones are resolved or unresolved. Lists are sorted, none is nil.
type RunReport struct {
	Total          int               `json:"total_instances"`
	Submitted      int               `json:"submitted_instances"`
	Completed      int               `json:"completed_instances"`
	Resolved       int               `json:"resolved_instances"`
	Unresolved     int               `json:"unresolved_instances"`
	InfraFailures  int               `json:"infra_failure_instances"`
	Ambiguous      int               `json:"ambiguous_failure_instances"`
	EmptyPatch     int               `json:"empty_patch_instances"`
	Errors         int               `json:"error_instances"`
	CompletedIDs   []string          `json:"completed_ids"`
	IncompleteIDs  []string          `json:"incomplete_ids"`
	EmptyPatchIDs  []string          `json:"empty_patch_ids"`
	SubmittedIDs   []string          `json:"submitted_ids"`
	ResolvedIDs    []string          `json:"resolved_ids"`
	UnresolvedIDs  []string          `json:"unresolved_ids"`
	InfraIDs       []string          `json:"infra_failure_ids"`
	AmbiguousIDs   []string          `json:"ambiguous_failure_ids"`
	FailureReasons map[string]string `json:"failure_reasons"`
	ErrorIDs       []string          `json:"error_ids"`
	SchemaVersion  int               `json:"schema_version"`

	// What SWE-bench's form lacks: the closed outcome of every graded instance, and what was not graded for want of
	// infrastructure, which is in error_ids too but is no wrong answer.
	Milepost struct {
		Outcomes       map[Outcome][]string `json:"outcomes"`
		Infrastructure []string             `json:"infrastructure_ids"`
		Graded         int                  `json:"graded_instances"` // without infrastructure: the denominator of a rate
		MeanReward     float64              `json:"mean_reward"`      // over graded
	} `json:"milepost"`
}

// Summarise makes the report of a run: tasks are the ids of the whole task set, submitted those of the predictions, and
// verdicts hold one of each prediction that has a task.
func Summarise(tasks, submitted []string, verdicts []*Verdict) *RunReport {
	r := &RunReport{Total: len(tasks), Submitted: len(submitted), SchemaVersion: 2, FailureReasons: map[string]string{}}
	r.Milepost.Outcomes = map[Outcome][]string{}
	has := map[string]bool{}
	for _, id := range submitted {
		has[id] = true
	}
	for _, id := range tasks {
		if !has[id] {
			r.IncompleteIDs = append(r.IncompleteIDs, id)
		}
	}
	r.SubmittedIDs = slices.Clone(submitted)
	for _, v := range verdicts {
		r.add(v)
	}
	r.Completed, r.Resolved, r.Unresolved = len(r.CompletedIDs), len(r.ResolvedIDs), len(r.UnresolvedIDs)
	r.InfraFailures, r.Ambiguous, r.EmptyPatch, r.Errors = len(r.InfraIDs), len(r.AmbiguousIDs), len(r.EmptyPatchIDs), len(r.ErrorIDs)
	if r.Milepost.Graded > 0 {
		r.Milepost.MeanReward /= float64(r.Milepost.Graded)
	}
	for _, ids := range []*[]string{&r.CompletedIDs, &r.IncompleteIDs, &r.EmptyPatchIDs, &r.SubmittedIDs, &r.ResolvedIDs, &r.UnresolvedIDs,
		&r.InfraIDs, &r.AmbiguousIDs, &r.ErrorIDs, &r.Milepost.Infrastructure} {
		if *ids == nil {
			*ids = []string{}
		}
		slices.Sort(*ids)
	}
	for ids := range maps.Values(r.Milepost.Outcomes) {
		slices.Sort(ids)
	}
	return r
}

func (r *RunReport) add(v *Verdict) {
	id := v.InstanceID
	r.Milepost.Outcomes[v.Outcome] = append(r.Milepost.Outcomes[v.Outcome], id)
	if v.Outcome == Infrastructure {
		r.Milepost.Infrastructure = append(r.Milepost.Infrastructure, id)
	} else {
		r.Milepost.Graded++
		r.Milepost.MeanReward += v.Reward
	}
	switch {
	case v.Outcome == NoPatch:
		r.EmptyPatchIDs = append(r.EmptyPatchIDs, id)
		return
	case v.Outcome == Resolved:
		r.CompletedIDs, r.ResolvedIDs = append(r.CompletedIDs, id), append(r.ResolvedIDs, id)
		return
	case v.Outcome.judged():
		r.CompletedIDs, r.UnresolvedIDs = append(r.CompletedIDs, id), append(r.UnresolvedIDs, id)
	default:
		r.ErrorIDs = append(r.ErrorIDs, id)
	}
	switch v.HintTier {
	case TierEnvironment:
		r.InfraIDs, r.FailureReasons[id] = append(r.InfraIDs, id), v.Hint
	case TierAmbiguous:
		r.AmbiguousIDs, r.FailureReasons[id] = append(r.AmbiguousIDs, id), v.Hint
	}
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

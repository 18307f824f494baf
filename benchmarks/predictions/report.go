package predictions

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	milepost "github.com/milepost-rl/milepost"
)

// Tests are the tests of one list that passed and that did not, by name.
type Tests struct {
	Success []string `json:"success"`
	Failure []string `json:"failure"`
}

// TestsStatus is the outcome of each list. FAIL_TO_FAIL and PASS_TO_FAIL are part of the form; SWE-bench leaves them empty.
type TestsStatus struct {
	FailToPass Tests `json:"FAIL_TO_PASS"`
	PassToPass Tests `json:"PASS_TO_PASS"`
	FailToFail Tests `json:"FAIL_TO_FAIL"`
	PassToFail Tests `json:"PASS_TO_FAIL"`
}

// Instance is the report of one instance. Source: swebench 5.0.2, harness/grading.py, get_eval_report.
type Instance struct {
	PatchIsNone              bool         `json:"patch_is_None"`
	PatchExists              bool         `json:"patch_exists"`
	PatchSuccessfullyApplied bool         `json:"patch_successfully_applied"`
	Resolved                 bool         `json:"resolved"`
	InfraFailure             bool         `json:"infra_failure"`
	InfraFailureReason       string       `json:"infra_failure_reason,omitempty"`
	TestsStatus              *TestsStatus `json:"tests_status,omitempty"` // nil where the tests gave no readable output
}

// SchemaVersion is the version of the report of a run.
const SchemaVersion = 2

// Run is the report of a run. Every list of ids is sorted and holds an id once; every count is the length of its list,
// but for Total, which counts the data set. Source: swebench 5.0.2, harness/reporting.py, make_run_report.
type Run struct {
	Total      int `json:"total_instances"`
	Submitted  int `json:"submitted_instances"`
	Completed  int `json:"completed_instances"`
	Resolved   int `json:"resolved_instances"`
	Unresolved int `json:"unresolved_instances"`
	Infra      int `json:"infra_failure_instances"`
	Ambiguous  int `json:"ambiguous_failure_instances"`
	Empty      int `json:"empty_patch_instances"`
	Errors     int `json:"error_instances"`

	CompletedIDs  []string `json:"completed_ids"`  // a report of their tests is there
	IncompleteIDs []string `json:"incomplete_ids"` // of the data set, but without a prediction
	EmptyIDs      []string `json:"empty_patch_ids"`
	SubmittedIDs  []string `json:"submitted_ids"`
	ResolvedIDs   []string `json:"resolved_ids"`
	UnresolvedIDs []string `json:"unresolved_ids"`
	InfraIDs      []string `json:"infra_failure_ids"`     // of those unresolved or in error: likely the infrastructure's doing
	AmbiguousIDs  []string `json:"ambiguous_failure_ids"` // of those unresolved or in error: perhaps

	FailureReasons map[string]string `json:"failure_reasons"` // by id, of InfraIDs and AmbiguousIDs
	ErrorIDs       []string          `json:"error_ids"`       // a patch, but no report
	SchemaVersion  int               `json:"schema_version"`
}

// Summarise makes the report of a run over the instances of a data set from the predictions and the reports of those
// that were graded. Infrastructure failure stays among unresolved or error, as in SWE-bench: its ids are told apart.
func Summarise(dataset []string, list []Prediction, graded map[string]Instance) Run {
	r := Run{Total: len(dataset), FailureReasons: map[string]string{}, SchemaVersion: SchemaVersion}
	by := map[string]Prediction{}
	for _, p := range list {
		by[p.InstanceID] = p
		r.SubmittedIDs = append(r.SubmittedIDs, p.InstanceID)
	}
	for _, id := range dataset {
		p, submitted := by[id]
		g, done := graded[id]
		switch {
		case !submitted:
			r.IncompleteIDs = append(r.IncompleteIDs, id)
			continue
		case p.Patch == nil || *p.Patch == "":
			r.EmptyIDs = append(r.EmptyIDs, id)
			continue
		case !done:
			r.ErrorIDs = append(r.ErrorIDs, id)
			continue
		}
		r.CompletedIDs = append(r.CompletedIDs, id)
		if g.Resolved {
			r.ResolvedIDs = append(r.ResolvedIDs, id)
			continue
		}
		r.UnresolvedIDs = append(r.UnresolvedIDs, id)
		switch {
		case g.InfraFailure:
			r.InfraIDs = append(r.InfraIDs, id)
			r.FailureReasons[id] = g.InfraFailureReason
		case g.InfraFailureReason != "":
			r.AmbiguousIDs = append(r.AmbiguousIDs, id)
			r.FailureReasons[id] = g.InfraFailureReason
		}
	}
	for _, ids := range r.lists() {
		slices.Sort(*ids.ids)
		if *ids.ids == nil {
			*ids.ids = []string{} // the form has no null
		}
		if ids.count != nil {
			*ids.count = len(*ids.ids)
		}
	}
	return r
}

// idList is a list of the report with its name and its count, nil where it has none.
type idList struct {
	name  string
	ids   *[]string
	count *int
}

func (r *Run) lists() []idList {
	return []idList{{"completed_ids", &r.CompletedIDs, &r.Completed}, {"incomplete_ids", &r.IncompleteIDs, nil},
		{"empty_patch_ids", &r.EmptyIDs, &r.Empty}, {"submitted_ids", &r.SubmittedIDs, &r.Submitted},
		{"resolved_ids", &r.ResolvedIDs, &r.Resolved}, {"unresolved_ids", &r.UnresolvedIDs, &r.Unresolved},
		{"infra_failure_ids", &r.InfraIDs, &r.Infra}, {"ambiguous_failure_ids", &r.AmbiguousIDs, &r.Ambiguous},
		{"error_ids", &r.ErrorIDs, &r.Errors}}
}

// WriteRun writes the report of a run as SWE-bench does: indented by four.
func WriteRun(w io.Writer, r Run) error { return write(w, r) }

// WriteInstances writes the reports of instances: {id: report}. SWE-bench writes one such file an instance.
func WriteInstances(w io.Writer, graded map[string]Instance) error { return write(w, graded) }

func write(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	return milepost.Wrap("predictions: write report", milepost.KindUnavailable, enc.Encode(v))
}

// ReadRun reads the report of a run. Fields that SWE-bench adds for its own containers are passed over; a count that is
// not the length of its list, an id twice and another schema version are errors, by field.
func ReadRun(r io.Reader, name string) (Run, error) {
	const op = "predictions: read report"
	var out Run
	if err := json.NewDecoder(r).Decode(&out); err != nil {
		return Run{}, milepost.E(op, milepost.KindInvalid, "%s: no report of a run: %w", name, err)
	}
	if out.SchemaVersion != SchemaVersion {
		return Run{}, milepost.E(op, milepost.KindInvalid, "%s: field schema_version: %d; %d is read", name, out.SchemaVersion, SchemaVersion)
	}
	for _, l := range out.lists() {
		sorted := slices.Sorted(slices.Values(*l.ids))
		for i := 1; i < len(sorted); i++ {
			if sorted[i] == sorted[i-1] {
				return Run{}, milepost.E(op, milepost.KindInvalid, "%s: field %s: %q is there twice", name, l.name, sorted[i])
			}
		}
		if l.count != nil && *l.count != len(*l.ids) {
			return Run{}, milepost.E(op, milepost.KindInvalid, "%s: field %s: %d ids, their count says %d", name, l.name, len(*l.ids), *l.count)
		}
	}
	return out, nil
}

// ReadInstances reads reports of instances: {id: report}.
func ReadInstances(r io.Reader, name string) (map[string]Instance, error) {
	const op = "predictions: read report"
	var raw map[string]json.RawMessage
	if err := json.NewDecoder(r).Decode(&raw); err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: no object of reports by instance id: %w", name, err)
	}
	out := make(map[string]Instance, len(raw))
	for _, id := range slices.Sorted(maps.Keys(raw)) {
		var fields map[string]json.RawMessage
		i, err := Instance{}, json.Unmarshal(raw[id], &fields)
		if err == nil && fields["resolved"] == nil {
			err = fmt.Errorf("field resolved: missing")
		}
		if err == nil {
			err = json.NewDecoder(bytes.NewReader(raw[id])).Decode(&i)
		}
		if err != nil {
			return nil, milepost.E(op, milepost.KindInvalid, "%s: instance %q: %w", name, id, err)
		}
		out[id] = i
	}
	return out, nil
}

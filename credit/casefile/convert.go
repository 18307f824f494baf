package casefile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// interner turns episodes of the format into inputs; equal tasks and equal baselines become one value each.
type interner struct {
	tasks     map[string]*milepost.Task // by their JSON
	baselines map[baselineKey]*milepost.Probe
}

type baselineKey struct {
	task *milepost.Task
	json string
}

func (in *interner) episode(i int, raw json.RawMessage) (credit.Input, error) {
	var f episodeFormat
	if err := strict(raw, &f); err != nil {
		return credit.Input{}, fmt.Errorf("episode %s: %w", episodeName(i, raw), err)
	}
	fail := func(format string, args ...any) (credit.Input, error) {
		return credit.Input{}, fmt.Errorf("episode %s: "+format, append([]any{f.ID}, args...)...)
	}
	if f.ID == "" {
		return credit.Input{}, fmt.Errorf("episode number %d has no id", i)
	}
	if f.Group == nil {
		return fail("there is no group; allowed: the same name in all episodes that were sampled for one task from one dispatch")
	}
	task, err := in.task(f.Task)
	if err != nil {
		return fail("task: %w", err)
	}
	baseline, err := in.baseline(task, f.Baseline)
	if err != nil {
		return fail("baseline: %w", err)
	}
	e := &milepost.Episode{ID: f.ID, Group: *f.Group, Task: task.ID, Status: f.Outcome.Status, FinalState: f.FinalState}
	if err := outcome(e, f.Outcome); err != nil {
		return fail("outcome: %w", err)
	}
	e.Steps = make([]milepost.Step, len(f.Steps))
	for t, raw := range f.Steps {
		if err := step(&e.Steps[t], task, raw); err != nil {
			return fail("step %d: %w", t, err)
		}
	}
	return credit.Input{Episode: e, Task: task, Baseline: baseline}, nil
}

// episodeName finds the id in an episode that does not decode strictly, else says which one it is.
func episodeName(i int, raw json.RawMessage) string {
	var named struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(raw, &named) == nil && named.ID != "" {
		return named.ID
	}
	return fmt.Sprintf("number %d", i)
}

func outcome(e *milepost.Episode, f outcomeFormat) error {
	known := []milepost.EpisodeStatus{
		milepost.EpisodeCompleted, milepost.EpisodeLimit, milepost.EpisodeInfra, milepost.EpisodeCancelled}
	if !slices.Contains(known, f.Status) {
		return fmt.Errorf("status is %q; allowed: %v", f.Status, known)
	}
	if f.Reward != nil {
		e.Outcome = milepost.Outcome{Graded: true, Reward: float64(*f.Reward), Resolved: *f.Reward == 1}
	} else if f.Status == milepost.EpisodeCompleted || f.Status == milepost.EpisodeLimit {
		return fmt.Errorf("there is no reward")
	}
	for k, v := range f.Objectives {
		if e.Outcome.Objectives == nil {
			e.Outcome.Objectives = make(map[string]float64, len(f.Objectives))
		}
		e.Outcome.Objectives[k] = float64(v)
	}
	return nil
}

func (in *interner) task(raw json.RawMessage) (*milepost.Task, error) {
	key := compact(raw)
	if task, ok := in.tasks[key]; ok {
		return task, nil
	}
	var f taskFormat
	if err := strict(raw, &f); err != nil {
		return nil, err
	}
	if f.ID == "" {
		return nil, fmt.Errorf("there is no id")
	}
	for test, state := range f.Target {
		if state != milepost.Passed.String() {
			return nil, fmt.Errorf("target of test %q is %q; allowed: PASSED", test, state)
		}
	}
	task := &milepost.Task{ID: f.ID, Kind: f.Kind, RelevantFiles: f.RelevantFiles, Tests: slices.Sorted(maps.Keys(f.Target))}
	in.tasks[key] = task
	return task, nil
}

func (in *interner) baseline(task *milepost.Task, raw json.RawMessage) (*milepost.Probe, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	key := baselineKey{task, compact(raw)}
	if probe, ok := in.baselines[key]; ok {
		return probe, nil
	}
	var f baselineFormat
	if err := strict(raw, &f); err != nil {
		return nil, err
	}
	report, err := intern(task, f.Results)
	if err != nil {
		return nil, err
	}
	probe := &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: f.Trusted, Reason: f.Failure, Report: report}
	if f.Status != nil {
		probe.Status = *f.Status
	}
	in.baselines[key] = probe
	return probe, nil
}

func step(s *milepost.Step, task *milepost.Task, raw json.RawMessage) error {
	var f stepFormat
	if err := strict(raw, &f); err != nil {
		return err
	}
	if f.Valid == nil || f.Executed == nil {
		return fmt.Errorf("valid or executed is missing; allowed: true or false, both in every step")
	}
	*s = milepost.Step{Index: f.Index, State: f.State, Valid: *f.Valid, Executed: *f.Executed, Exposures: f.Exposures}
	if err := words(f); err != nil || f.Probe == nil {
		return err
	}
	p := f.Probe
	if len(p.Results) > 0 && p.Partition != nil {
		return fmt.Errorf("probe has results and partition; allowed: one of them")
	}
	report, err := intern(task, p.Results)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if p.Partition != nil {
		report = nil
	}
	s.Probe = &milepost.Probe{Status: p.Status, Trusted: p.Trusted, Reason: p.Failure, Continuity: p.Continuity,
		Report: report, Partition: p.Partition, Merge: p.Merge, Reanchored: p.Reanchored}
	return nil
}

// words refuses a word that the rules do not know, where it would count as another in silence.
func words(f stepFormat) error {
	for i, x := range f.Exposures {
		if x.Level != milepost.ExposureSearch && x.Level != milepost.ExposureRead {
			return fmt.Errorf("exposure %d: level is %q; allowed: %s, %s", i, x.Level, milepost.ExposureSearch, milepost.ExposureRead)
		}
		if x.Confidence != "high" && x.Confidence != "low" {
			return fmt.Errorf("exposure %d: confidence is %q; allowed: high, low", i, x.Confidence)
		}
	}
	if f.Probe != nil && !slices.Contains([]milepost.Continuity{"", milepost.ContinuityKept, milepost.ContinuityLost}, f.Probe.Continuity) {
		return fmt.Errorf("probe: continuity is %q; allowed: %s, %s", f.Probe.Continuity, milepost.ContinuityKept, milepost.ContinuityLost)
	}
	return nil
}

// intern makes the dense report of named results. Results whose test ids are not exactly the task's give nil, which
// the engine does not trust.
func intern(task *milepost.Task, results map[string]string) (milepost.TestReport, error) {
	same := results != nil && len(results) == len(task.Tests)
	report := make(milepost.TestReport, len(task.Tests))
	for _, test := range slices.Sorted(maps.Keys(results)) {
		state, err := milepost.ParseTestState(results[test])
		if err != nil {
			return nil, fmt.Errorf("test %q: %w", test, err)
		}
		i, known := slices.BinarySearch(task.Tests, test)
		if !known {
			same = false
			continue
		}
		report[i] = state
	}
	if !same {
		return nil, nil
	}
	return report, nil
}

// compact strips insignificant space, so that equal values written alike share a key.
func compact(raw json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return string(raw)
	}
	return out.String()
}

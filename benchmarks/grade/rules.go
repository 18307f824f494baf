package grade

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/grade/logs"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
)

// byPasses sorts tests by whether they passed.
func byPasses(f2p, p2p []string, passed func(string) bool) *predictions.TestsStatus {
	out := newTestsStatus()
	split := func(names []string, to *predictions.Tests) {
		for _, n := range names {
			if passed(n) {
				to.Success = append(to.Success, n)
			} else {
				to.Failure = append(to.Failure, n)
			}
		}
	}
	split(f2p, &out.FailToPass)
	split(p2p, &out.PassToPass)
	return out
}

// bySubset is the rule of SWE-bench Pro: every test of both lists is among those that the data set's own parser wrote
// down as PASSED. Source: scaleapi/SWE-bench_Pro-os, swe_bench_pro_eval.py; the file is {"tests": [{"name", "status"}]}.
func bySubset(t *milepost.Task, ev *Evidence, v *Verdict) {
	if ev.Output == nil {
		v.fault(NoOutput, "the run left no "+t.Grading.Output)
		return
	}
	var report struct {
		Tests *[]struct {
			Name   string `json:"name"`
			Status string `json:"status"`
		} `json:"tests"`
	}
	if err := json.Unmarshal(ev.Output, &report); err != nil || report.Tests == nil {
		v.fault(Unreadable, fmt.Sprintf("%s is no object with a list of tests: %v", t.Grading.Output, err))
		return
	}
	passed := map[string]bool{}
	for _, test := range *report.Tests {
		if test.Status == "PASSED" {
			passed[test.Name] = true
		}
	}
	v.settle(byPasses(t.FailToPass, t.PassToPass, func(n string) bool { return passed[n] }))
}

// durations are the times that runners put into tests' names. Source: SWE-rebench V2, scripts/eval.py.
var durations = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\s*\[\s*\d+(?:\.\d+)?\s*(?:ms|s)\s*\]\s*$`),
	regexp.MustCompile(`(?i)\s+in\s+\d+(?:\.\d+)?\s+(?:msec|sec)\b`),
	regexp.MustCompile(`(?i)\s*\(\s*\d+(?:\.\d+)?\s*(?:ms|s)\s*\)\s*$`),
}

func withoutDuration(name string) string {
	for _, d := range durations {
		name = d.ReplaceAllLiteralString(name, "")
	}
	return strings.TrimSpace(name)
}

// byExactSet is the rule of SWE-rebench V2: the tests that passed are those of both lists and no others, times in their
// names aside. A task may have its lists in order and still be unresolved: another test passed.
func byExactSet(t *milepost.Task, r *logs.Results, v *Verdict) {
	passed, wanted := map[string]bool{}, map[string]bool{}
	for name, s := range r.All() {
		passed[withoutDuration(name)] = s == logs.Passed
	}
	for _, n := range slices.Concat(t.FailToPass, t.PassToPass) {
		wanted[withoutDuration(n)] = true
	}
	v.settle(byPasses(t.FailToPass, t.PassToPass, func(n string) bool { return passed[withoutDuration(n)] }))
	var more []string
	for name, ok := range passed {
		if ok && !wanted[name] {
			more = append(more, name)
		}
	}
	if v.Outcome == Resolved && len(more) > 0 {
		slices.Sort(more)
		v.Outcome, v.Resolution, v.Reward = Unresolved, No, 0
		v.Reason = fmt.Sprintf("%d tests passed that neither list names, the first is %s", len(more), more[0])
	}
}

var colourCode = regexp.MustCompile(`\x1b\[\d+m`)

// byStatusMap is the rule of R2E-Gym: the map of states equals the expected one; colours and what follows " - " are no part of a name.
// Source: R2E-Gym, repo_analysis/execution_log_parser.py and runtime/docker.py, with one difference: there a line's state
// is found anywhere in it, so that "FAILED a::b - RuntimeError: PASSED" is a pass; here it is the line's first word.
func byStatusMap(t *milepost.Task, ev *Evidence, v *Verdict) {
	r, err := logs.Parse("r2e_pytest", ev.Log, logs.Task{})
	if err != nil {
		v.fault(Unreadable, err.Error())
		return
	}
	if r.Len() == 0 {
		v.fault(NoResults, "the log has no short test summary with results")
		return
	}
	got, want := map[string]string{}, map[string]string{}
	for name, s := range r.All() {
		got[bareName(name)] = string(s)
	}
	for name, s := range t.Grading.Expected {
		want[bareName(name)] = s
	}
	tests := newTestsStatus()
	for _, name := range slices.Sorted(maps.Keys(t.Grading.Expected)) {
		if s, ok := got[bareName(name)]; ok && s == t.Grading.Expected[name] {
			tests.FailToPass.Success = append(tests.FailToPass.Success, name)
		} else {
			tests.FailToPass.Failure = append(tests.FailToPass.Failure, name)
		}
	}
	v.settle(tests)
	if len(got) != len(want) && v.Outcome == Resolved {
		v.Outcome, v.Resolution, v.Reward = Unresolved, No, 0
		v.Reason = fmt.Sprintf("the log has %d tests, %d are expected", len(got), len(want))
	}
}

func bareName(name string) string {
	name, _, _ = strings.Cut(colourCode.ReplaceAllString(name, ""), " - ")
	return name
}

var passedCount = regexp.MustCompile(`(?m)^=*\s?(?:.*, )?(\d+) passed(?:, .*)? in [\d.:]+`)

// byRate is the rule of the data sets of whole packages (NL2Repo-Bench, Doc2Repo, DeNovoSWE): the reward is the share of
// Grading.Total tests that passed, at most 1. Where the task lists its tests these are counted, else pytest's last summary is
// taken at its word.
func byRate(t *milepost.Task, ev *Evidence, v *Verdict) {
	total := len(t.Tests) // of a task of Milepost's own
	if t.Grading != nil {
		total = t.Grading.Total
	}
	if total <= 0 {
		v.fault(Unreadable, fmt.Sprintf("the task's number of tests is %d", total))
		return
	}
	part, ok := between(ev.Log)
	if !ok {
		v.fault(NoMarkers, "the log lacks the line "+missingMarker(ev.Log))
		return
	}
	passed := 0
	if len(t.Tests) > 0 {
		parse, err := parserOf(t)
		if err != nil {
			v.fault(Unreadable, err.Error())
			return
		}
		r, err := parse(part)
		if err != nil {
			v.fault(Unreadable, err.Error())
			return
		}
		v.Tests = byPasses(t.Tests, nil, func(name string) bool { s, _ := r.Get(name); return passing(s) })
		passed = len(v.Tests.FailToPass.Success)
	} else if all := passedCount.FindAllStringSubmatch(part, -1); len(all) > 0 {
		passed, _ = strconv.Atoi(all[len(all)-1][1]) // digits by the expression; too many count as 0
	} else if !strings.Contains(part, " failed") && !strings.Contains(part, " error") {
		v.fault(NoResults, "the log has no summary of tests")
		return
	}
	v.settleShare(math.Min(float64(passed)/float64(total), 1), fmt.Sprintf("%d of %d tests passed", passed, total))
}

// settleShare sets outcome and resolution by a reward of 0 to 1.
func (v *Verdict) settleShare(reward float64, reason string) {
	v.Reward, v.Outcome, v.Resolution = reward, Unresolved, No
	if reward >= 1 {
		v.Outcome, v.Resolution = Resolved, Full
		return
	}
	if reward > 0 {
		v.Resolution = Partial
	}
	v.Reason = reason
}

// byRewardFile is the rule of Harbor's tasks: the verifier writes a number into a file, or an object {"reward": number}.
func byRewardFile(t *milepost.Task, ev *Evidence, v *Verdict) {
	if ev.Output == nil {
		v.fault(NoOutput, "the verifier left no "+t.Grading.Output)
		return
	}
	text := strings.TrimSpace(string(ev.Output))
	reward, err := strconv.ParseFloat(text, 64)
	if err != nil {
		var object struct {
			Reward *float64 `json:"reward"`
		}
		if json.Unmarshal(ev.Output, &object) == nil && object.Reward != nil {
			reward, err = *object.Reward, nil
		}
	}
	if err != nil || math.IsNaN(reward) || reward < 0 || reward > 1 {
		v.fault(Unreadable, fmt.Sprintf("%s holds %.80q; a number from 0 to 1 is wanted", t.Grading.Output, text))
		return
	}
	v.settleShare(reward, fmt.Sprintf("the verifier gave %v", reward))
}

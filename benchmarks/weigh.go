package benchmarks

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	milepost "github.com/milepost-rl/milepost"
)

// Trial is one run of a task's tests on one tree, whoever ran them.
type Trial struct {
	Passed   map[string]bool // by test; a test that is not in it did not run
	Resolved bool            // by the task's own rule
	Fault    string          // in words, where there is nothing to read
	Ran      time.Duration
}

// The sides of a task, as findings name them.
const (
	sideUntouched = "untouched tree"
	sideReference = "reference patch"
)

// Weigh holds the runs of both sides against what the task claims and adds what it finds to the certificate: each
// FailToPass test never passes untouched and always with the reference, each PassToPass test passes always, the reference
// resolves the task each time and the untouched tree never does. A PassToPass test, or one of neither list, whose runs on
// one tree differ is flaky: a warning, and the test decides nothing any more.
func Weigh(t *milepost.Task, untouched, reference []Trial, cert *Certificate) {
	cert.Checks, cert.Runs = sortedChecks(append(cert.Checks, CheckRuns)...), max(len(untouched), len(reference))
	if cert.Times == nil {
		cert.Times = map[string]Seconds{}
	}
	problem := func(format string, args ...any) {
		cert.Problems = append(cert.Problems, Finding{CheckRuns, fmt.Sprintf(format, args...)})
	}
	for _, side := range []struct {
		name, phase string
		trials      []Trial
	}{{sideReference, "reference", reference}, {sideUntouched, "untouched", untouched}} {
		var times []time.Duration
		for _, trial := range side.trials {
			times = append(times, trial.Ran)
			if trial.Fault != "" {
				problem("%s: %s", side.name, trial.Fault)
			}
		}
		if len(times) > 0 {
			cert.Times[side.phase] = SumTimes(times)
		}
	}
	if len(reference) == 0 {
		cert.Warnings = append(cert.Warnings, Finding{CheckRuns, "there is no reference patch: nothing proves that the task can be solved"})
	}
	if len(cert.Problems) > 0 {
		return
	}
	weighTests(t, untouched, reference, cert, problem)
	flaky := cert.FlakyTests()
	if len(flaky) > 0 {
		cert.Warnings = append(cert.Warnings, Finding{CheckRuns, fmt.Sprintf("%d flaky tests are left out: %s", len(flaky), strings.Join(flaky, ", "))})
	}
	if len(cert.Problems) > 0 || len(flaky) > 0 {
		return // the verdicts below are theirs
	}
	for _, trial := range reference {
		if !trial.Resolved {
			problem("%s: it does not resolve the task by the task's own rule", sideReference)
			break
		}
	}
	for _, trial := range untouched {
		if trial.Resolved {
			problem("%s: it resolves the task", sideUntouched)
			break
		}
	}
}

// weighTests judges test by test.
func weighTests(t *milepost.Task, untouched, reference []Trial, cert *Certificate, problem func(string, ...any)) {
	f2p := map[string]bool{}
	for _, id := range t.FailToPass {
		f2p[id] = true
	}
	p2p := map[string]bool{}
	for _, id := range t.PassToPass {
		p2p[id] = true
	}
	for _, id := range t.Tests {
		before, after := passes(untouched, id), passes(reference, id)
		flaky := (before > 0 && before < len(untouched)) || (after > 0 && after < len(reference))
		if flaky {
			cert.Flaky = append(cert.Flaky, flakes(id, before, len(untouched), after, len(reference))...)
		}
		switch {
		case f2p[id] && before > 0:
			problem("%s: fail_to_pass test %s passes in %d of %d runs", sideUntouched, id, before, len(untouched))
		case f2p[id] && after < len(reference):
			problem("%s: fail_to_pass test %s passes in %d of %d runs", sideReference, id, after, len(reference))
		case flaky, f2p[id]:
		case p2p[id] && before < len(untouched):
			problem("%s: pass_to_pass test %s does not pass", sideUntouched, id)
		case after < len(reference) && (p2p[id] || t.Grading == nil):
			problem("%s: test %s does not pass", sideReference, id)
		}
	}
}

func passes(trials []Trial, id string) (n int) {
	for _, trial := range trials {
		if trial.Passed[id] {
			n++
		}
	}
	return n
}

// flakes are the sides of one test whose runs differ.
func flakes(id string, before, nBefore, after, nAfter int) []Flake {
	var out []Flake
	if before > 0 && before < nBefore {
		out = append(out, NewFlake(id, "untouched", before, nBefore))
	}
	if after > 0 && after < nAfter {
		out = append(out, NewFlake(id, "reference", after, nAfter))
	}
	return out
}

// NewFlake is a test that passed in some of its runs, with the posterior of its pass rate.
func NewFlake(id, side string, passed, runs int) Flake {
	b := distuv.Beta{Alpha: 1 + float64(passed), Beta: 1 + float64(runs-passed)}
	return Flake{Test: id, Side: side, Passed: passed, Runs: runs, Mean: b.Mean(), Low: b.Quantile(.025), High: b.Quantile(.975)}
}

// CheckWords looks through the statement: a fix in it is a problem, the names of failing tests a warning. The specification
// of a generation task quotes signatures and docstrings, which are lines of its reference; its maker sees to the bodies.
func CheckWords(t *milepost.Task, cert *Certificate) {
	cert.Checks = sortedChecks(append(cert.Checks, CheckStatement)...)
	for _, line := range FixLines(t.ReferencePatch) {
		if t.Kind != milepost.RepoGeneration && strings.Contains(t.Statement, line) {
			cert.Problems = append(cert.Problems, Finding{CheckStatement, fmt.Sprintf("the statement holds a line of the fix: %q", line)})
			break
		}
	}
	var named []string
	for _, id := range t.FailToPass {
		if word := testWord(id); len(word) >= minWord && strings.Contains(t.Statement, word) {
			named = append(named, id)
		}
	}
	if len(named) > 0 {
		cert.Warnings = append(cert.Warnings, Finding{CheckStatement, fmt.Sprintf("the statement names %d of the failing tests, as %s", len(named), named[0])})
	}
}

// minWord is the length from which the last part of a test's name is taken for its name and not for a plain word.
const minWord = 8

// testWord is the name of a test without its file, class and parameters.
func testWord(id string) string {
	id, _, _ = strings.Cut(id, "[")
	id = strings.TrimSuffix(id, ")")
	if i := strings.LastIndexAny(id, ":./ "); i >= 0 {
		id = id[i+1:]
	}
	return id
}

// minFixLine is the length, without blanks around it, from which an added line is taken for a mark of the fix.
const minFixLine = 24

// FixLines are the added lines of a patch that could only come from it: long enough, and none that it also takes away.
func FixLines(patch string) []string {
	gone := map[string]bool{}
	var added []string
	for line := range strings.SplitSeq(patch, "\n") {
		switch {
		case strings.HasPrefix(line, "+++ "), strings.HasPrefix(line, "--- "):
		case strings.HasPrefix(line, "-"), strings.HasPrefix(line, " "):
			gone[strings.TrimSpace(line[1:])] = true
		case strings.HasPrefix(line, "+"):
			if s := strings.TrimSpace(line[1:]); len(s) >= minFixLine {
				added = append(added, s)
			}
		}
	}
	added = slices.DeleteFunc(added, func(s string) bool { return gone[s] })
	slices.Sort(added)
	return slices.Compact(added)
}

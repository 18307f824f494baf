// Package testlog reads what a test runner printed and says in which state each test ended.
//
// A format lives in one file (pytest.go, unittest.go, resident.go) as a function that reads the log line by line into a
// tally and knows nothing of the task; this file turns the tally into a report over the task's test list. A new format
// gets a file of its own and a line in the table below.
//
// Logs are bytes, not text: they may hold anything a program can print, in any length. Reading is one pass, linear in
// the length of the log. A program under test that takes over the process can print whatever it likes, so a report is
// only as honest as the code that ran; the parsers take care that ordinary output of tests is not mistaken for results.
package testlog

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

// formats holds every known log format. known says whether an id is one of the task's (always false without a list).
var formats = map[string]func(log []byte, known func(string) bool, t *tally){
	"gotest":   parseGoTest,
	"pytest":   parsePytest,
	"unittest": parseUnittest,
	"resident": parseResident,
}

// Formats returns the names of the known formats, sorted.
func Formats() []string { return slices.Sorted(maps.Keys(formats)) }

// Parse returns the state of every test of the list (element i is that of tests[i]; NotRun where the log does not report
// it) and, sorted, the ids that the log reports and the list does not have. Where the log says that a whole file, module
// or class could not be run, the tests below it that have no state of their own get that state. A log without any result
// gives a report of NotRun. Errors: KindInvalid for an unknown format or a list that names a test twice.
func Parse(format string, log []byte, tests []string) (report milepost.TestReport, extra []string, err error) {
	const op = "testlog: parse"
	at := make(map[string]int, len(tests))
	for i, id := range tests {
		if j, twice := at[id]; twice {
			return nil, nil, milepost.E(op, milepost.KindInvalid, "test %q is in the list twice, at %d and %d", id, j, i)
		}
		at[id] = i
	}
	t, err := read(op, format, log, func(id string) bool { _, ok := at[id]; return ok })
	if err != nil {
		return nil, nil, err
	}
	report = make(milepost.TestReport, len(tests))
	for id, state := range t.tests {
		if i, ok := at[id]; ok {
			report[i] = state
		} else {
			extra = append(extra, id)
		}
	}
	if len(t.containers) > 0 {
		for i, id := range tests {
			if report[i] == milepost.NotRun {
				report[i] = t.container(id)
			}
		}
	}
	slices.Sort(extra)
	return report, extra, nil
}

// IDs returns the state of every test that the log reports, by id. Failures of whole files, modules or classes are no
// tests and are left out. Errors: KindInvalid for an unknown format.
func IDs(format string, log []byte) (map[string]milepost.TestState, error) {
	t, err := read("testlog: ids", format, log, func(string) bool { return false })
	if err != nil {
		return nil, err
	}
	return t.tests, nil
}

func read(op, format string, log []byte, known func(string) bool) (*tally, error) {
	parse, ok := formats[format]
	if !ok {
		return nil, milepost.E(op, milepost.KindInvalid, "log format %q is not one of %s", format, strings.Join(Formats(), ", "))
	}
	t := newTally()
	parse(log, known, t)
	return t, nil
}

// tally is what a log says: states of tests, and of containers (files, modules, classes) that failed as a whole.
type tally struct {
	tests      map[string]milepost.TestState
	containers map[string]milepost.TestState
	flat       bool // a container holds the tests of its own name alone, not those of folders below
}

func newTally() *tally {
	return &tally{tests: map[string]milepost.TestState{}, containers: map[string]milepost.TestState{}}
}

// add notes a state of a test. A test may be reported several times (call and tear-down, sub-tests, repetitions): the
// worst counts.
func (t *tally) add(id string, s milepost.TestState) { worst(t.tests, id, s) }

// addContainer notes a state of everything below id.
func (t *tally) addContainer(id string, s milepost.TestState) { worst(t.containers, id, s) }

// badness orders the states for tests that are reported several times.
var badness = [...]int{milepost.NotRun: 0, milepost.Passed: 1, milepost.Skipped: 2, milepost.Failed: 3, milepost.Errored: 4}

func worst(m map[string]milepost.TestState, id string, s milepost.TestState) {
	if id != "" && badness[s] > badness[m[id]] {
		m[id] = s
	}
}

// container returns the worst state of the containers that hold the test, or NotRun. A container is a run of whole
// components of the id: "tests/test_a.py" of "tests/test_a.py::test_x"; "test_a" and "pkg.test_a" of "pkg.test_a.C.test_x"
// (a module that fails to import is reported by its last name alone).
func (t *tally) container(id string) milepost.TestState {
	state := milepost.NotRun
	see := func(part string) {
		if s := t.containers[part]; badness[s] > badness[state] {
			state = s
		}
	}
	if file, _, isPath := strings.Cut(id, "::"); isPath {
		for i := range id {
			if strings.HasPrefix(id[i:], "::") || (i < len(file) && id[i] == '/' && !t.flat) {
				see(id[:i])
			}
		}
		return state
	}
	for i := range id {
		if i > 0 && id[i-1] != '.' {
			continue
		}
		for j := i; j < len(id); j++ {
			if id[j] == '.' {
				see(id[i:j])
			}
		}
		see(id[i:])
	}
	return state
}

// maxID is the longest test id, in bytes, that a parser looks for; it bounds the work on one line.
const maxID = 4096

// lines yields the lines of a log without their end (\n or \r\n).
func lines(log []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(log) > 0 {
			line, rest, _ := bytes.Cut(log, []byte{'\n'})
			if !yield(bytes.TrimSuffix(line, []byte{'\r'})) {
				return
			}
			log = rest
		}
	}
}

// plain removes terminal colours (ESC [ ... m) from a line.
func plain(line []byte) []byte {
	if bytes.IndexByte(line, 0x1b) < 0 {
		return line
	}
	out := make([]byte, 0, len(line))
	for i := 0; i < len(line); i++ {
		if line[i] == 0x1b && i+1 < len(line) && line[i+1] == '[' {
			j := i + 2
			for j < len(line) && (line[j] == ';' || line[j] >= '0' && line[j] <= '9') {
				j++
			}
			if j < len(line) && (line[j] == 'm' || line[j] == 'K') {
				i = j
				continue
			}
		}
		out = append(out, line[i])
	}
	return out
}

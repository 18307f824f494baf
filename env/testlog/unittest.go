package testlog

import (
	"bytes"
	"strings"

	"github.com/milepost-rl/milepost"
)

// Source of the rules: unittest/runner.py, suite.py and loader.py of CPython 3.6 to 3.13, at verbosity 2:
//
//	test_x (pkg.mod.Class.test_x) ... ok          3.11 and later; earlier: test_x (pkg.mod.Class) ... ok
//	test_x (pkg.mod.Class.test_x)                 with a doc string, whose first line follows
//	What the test is about ... FAIL
//	  test_x (pkg.mod.Class.test_x) [msg] (i=1) ... FAIL      a sub-test, indented, below a line without result
//
// and at the end, for everything that went wrong, a section "FAIL: test_x (pkg.mod.Class.test_x)" below a line of 70 "=".
// The log is standard error, so what tests print may stand between a test's line and its result ("... warning\nok", "... textok").
// And a class or module set-up that fails prints a bare "ERROR" that belongs to no test. Hence: results are collected until the
// next test begins, count only once something follows them (a process that dies after printing "ok" passed nothing), and where the
// end was reached the sections decide what failed.

const (
	unittestRule  = "======================================================================"
	unittestFinal = "----------------------------------------------------------------------"
)

// unittestWords are the results in the order in which they are tried as suffix of a line.
var unittestWords = []struct {
	word  string
	state milepost.TestState
}{
	{"expected failure", milepost.Passed}, // before "failure"; "unexpected success" is no suffix of it
	{"unexpected success", milepost.Failed},
	{"ok", milepost.Passed},
	{"FAIL", milepost.Failed},
	{"ERROR", milepost.Errored},
}

// unittestSections are the headings of the sections at the end.
var unittestSections = []struct {
	head  string
	state milepost.TestState
}{
	{"FAIL: ", milepost.Failed},
	{"ERROR: ", milepost.Errored},
	{"UNEXPECTED SUCCESS: ", milepost.Failed},
}

// unittestSeen is what the lines of one test said. good holds the first result that needs no section, bad the first that does.
type unittestSeen struct{ good, bad milepost.TestState }

// first notes a result where there is none yet: what comes later may be the bare one of a class set-up.
func (s *unittestSeen) first(good, bad milepost.TestState) {
	if s.good == milepost.NotRun {
		s.good = good
	}
	if s.bad == milepost.NotRun {
		s.bad = bad
	}
}

type unittestParser struct {
	*tally
	seen    map[name]*unittestSeen
	current name         // the test whose result is awaited
	pending unittestSeen // its results so far
	loose   unittestSeen // results found only at the end of other text; used where there is no other
	doc     bool         // the next line is its doc string
	rule    bool         // the last line was a rule of "="
	details bool         // inside the sections at the end, whose text is not read
	ended   bool         // "Ran N tests" was seen
}

// name is a parsed "<method> (<where>)": an id, and whether it stands for a whole class or module.
type name struct {
	id        string
	container bool
}

func parseUnittest(log []byte, _ func(string) bool, t *tally) {
	p := unittestParser{tally: t, seen: map[name]*unittestSeen{}}
	sections := newTally()
	for line := range lines(log) {
		p.line(plain(line), sections)
	}
	for id, s := range sections.tests {
		t.add(id, s)
	}
	for id, s := range sections.containers {
		t.addContainer(id, s)
	}
	for n, s := range p.seen {
		if !n.container && sections.tests[n.id] != milepost.NotRun || n.container && sections.containers[n.id] != milepost.NotRun {
			continue
		}
		state := s.bad
		if state == milepost.NotRun || (p.ended && s.good != milepost.NotRun) {
			state = s.good
		}
		t.note(n, state)
	}
}

func (p *unittestParser) line(line []byte, sections *tally) {
	if p.rule {
		p.rule = false
		for _, s := range unittestSections {
			if rest, ok := bytes.CutPrefix(line, []byte(s.head)); ok {
				if n, _, ok := unittestName(rest); ok {
					sections.note(n, s.state)
				}
				p.details = true
				return
			}
		}
	}
	switch {
	case string(line) == unittestRule:
		p.confirm()
		p.rule = true
		return
	case string(line) == unittestFinal:
		p.confirm()
		return
	case bytes.HasPrefix(line, []byte("Ran ")) && bytes.Contains(line, []byte(" test")):
		p.confirm()
		p.ended, p.details = true, false
		return
	case p.details:
		return
	}
	if p.doc { // the doc string: its " ... " is the last one, for it may hold others
		p.doc = false
		if i := bytes.LastIndex(line, []byte(" ... ")); i >= 0 {
			head := line[max(0, i-maxID):i]
			next := head[bytes.LastIndex(head, []byte(" ... "))+1:]
			if n, rest, ok := unittestName(bytes.TrimPrefix(next, []byte("... "))); ok && len(rest) == 0 {
				p.begin(n) // up to 3.10, where the last test had failing sub-tests and no result: "Doc ... test_y (C) ... ok"
			}
			p.result(line[i+len(" ... "):])
			return
		}
	}
	for more := true; more; {
		line, more = p.start(line)
	}
}

// start reads a line that may begin a test, and returns what is left where another test begins on the same line: up to
// Python 3.10 a test with failing sub-tests prints neither result nor line end.
func (p *unittestParser) start(line []byte) (left []byte, more bool) {
	trimmed := bytes.TrimLeft(line, " ")
	n, rest, ok := unittestName(trimmed)
	if !ok {
		p.result(line)
		return nil, false
	}
	after, dots := bytes.CutPrefix(rest, []byte(" ..."))
	if !dots && bytes.HasPrefix(rest, []byte(" ")) { // the parameters of a sub-test: "[msg] (i=1) ..."
		if i := bytes.Index(rest, []byte(" ...")); i >= 0 {
			after, dots = rest[i+len(" ..."):], true
		}
	}
	after = bytes.TrimPrefix(after, []byte(" "))
	sub := len(trimmed) < len(line) && n == p.current
	switch {
	case sub:
		p.doc = !dots
	case dots || len(rest) == 0:
		p.begin(n)
		p.doc = !dots
		if _, _, another := unittestName(after); another {
			return after, true
		}
	default:
		after = line
	}
	p.result(after)
	return nil, false
}

// begin makes n the test whose result is awaited.
func (p *unittestParser) begin(n name) {
	p.confirm()
	p.current = n
}

// result looks for the result of the current test in what follows " ... " or stands on a line of its own.
func (p *unittestParser) result(text []byte) {
	if p.current.id == "" || len(text) == 0 {
		return
	}
	if bytes.HasPrefix(text, []byte("skipped '")) || bytes.HasPrefix(text, []byte("skipped \"")) {
		p.pending.first(milepost.Skipped, milepost.NotRun)
		return
	}
	for _, w := range unittestWords {
		if !bytes.HasSuffix(text, []byte(w.word)) {
			continue
		}
		into := &p.pending
		if len(text) > len(w.word) {
			into = &p.loose
		}
		if w.state == milepost.Passed || w.word == "unexpected success" {
			into.first(w.state, milepost.NotRun)
		} else {
			into.first(milepost.NotRun, w.state)
		}
		return
	}
}

// confirm takes the results of the current test as final: something came after them.
func (p *unittestParser) confirm() {
	n, got := p.current, p.pending
	if got == (unittestSeen{}) {
		got = p.loose
	}
	p.current, p.pending, p.loose, p.doc = name{}, unittestSeen{}, unittestSeen{}, false
	if n.id == "" || got == (unittestSeen{}) {
		return
	}
	s := p.seen[n]
	if s == nil {
		s = &unittestSeen{}
		p.seen[n] = s
	}
	if badness[got.good] > badness[s.good] {
		s.good = got.good
	}
	if badness[got.bad] > badness[s.bad] {
		s.bad = got.bad
	}
}

func (t *tally) note(n name, s milepost.TestState) {
	if n.container {
		t.addContainer(n.id, s)
	} else {
		t.add(n.id, s)
	}
}

// unittestName parses "<method> (<where>)" at the start of b and returns what follows it.
func unittestName(b []byte) (n name, rest []byte, ok bool) {
	head, tail, ok := bytes.Cut(b[:min(len(b), 2*maxID)], []byte(" ("))
	if !ok || !isDotted(head) {
		return name{}, nil, false
	}
	where, _, ok := bytes.Cut(tail, []byte(")"))
	if !ok || !isDotted(where) {
		return name{}, nil, false
	}
	rest = b[len(head)+len(" (")+len(where)+len(")"):]
	method, class := string(head), string(where)
	switch method {
	case "setUpClass", "tearDownClass", "setUpModule", "tearDownModule":
		return name{class, true}, rest, true
	}
	for _, made := range []string{"_FailedTest", "ModuleSkipped", "LoadTestsFailure", "ModuleImportFailure"} {
		if strings.HasPrefix(class, "unittest.loader."+made) {
			return name{method, true}, rest, true
		}
	}
	if strings.HasSuffix(class, "."+method) {
		return name{class, false}, rest, true
	}
	return name{class + "." + method, false}, rest, true
}

// isDotted reports whether b is one or more identifiers (any letter above ASCII allowed) joined by dots. "<locals>" is
// part of the name of a class made in a function.
func isDotted(b []byte) bool {
	for part := range bytes.SplitSeq(b, []byte{'.'}) {
		if string(part) == "<locals>" {
			continue
		}
		if len(part) == 0 || part[0] >= '0' && part[0] <= '9' {
			return false
		}
		for _, c := range part {
			if c < 0x80 && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
				return false
			}
		}
	}
	return len(b) > 0
}

package testlog

import (
	"bytes"
	"strings"

	"github.com/milepost-rl/milepost"
)

// Source of the rules: pytest's terminal reporter (_pytest/terminal.py, versions 6 to 9). Results are read from two places:
//
//   - progress lines of -v, before the first detail section: "a.py::test_x PASSED [ 50%]", with xdist "[gw0] [ 50%] PASSED a.py::test_x";
//   - the short test summary of -rA, after its header: "PASSED a.py::test_x", "FAILED a.py::test_x - why".
//
// The sections between them (ERRORS, FAILURES, PASSES) hold what the tests printed and are not read; the last summary header counts,
// since what a test prints may look like one. The summary folds skips by source line and without -v gives them no id.

// pytestStates maps the words of both places. An expected failure is a pass, an unexpected pass a failure.
var pytestStates = map[string]milepost.TestState{
	"PASSED":    milepost.Passed,
	"FAILED":    milepost.Failed,
	"ERROR":     milepost.Errored,
	"SKIPPED":   milepost.Skipped,
	"XFAIL":     milepost.Passed,
	"XPASS":     milepost.Failed,
	"SUBFAILED": milepost.Failed,
	"SUBFAIL":   milepost.Failed, // pytest-subtests before it became part of pytest
}

func parsePytest(log []byte, known func(string) bool, t *tally) {
	const (
		progress = iota
		details
		summary
	)
	section := progress
	found := newTally() // of the summary last begun
	for line := range lines(log) {
		line = plain(line)
		if title, ok := pytestHeader(line); ok {
			switch title {
			case "short test summary info":
				section, found = summary, newTally()
			case "test session starts":
				section = progress
			default:
				section = details
			}
			continue
		}
		switch section {
		case progress:
			pytestProgress(line, t)
		case summary:
			pytestSummary(line, known, found)
		}
	}
	for id, s := range found.tests {
		t.add(id, s)
	}
	for id, s := range found.containers {
		t.addContainer(id, s)
	}
}

// pytestHeader returns the title of a section header: "===== title =====", at least two signs a side.
func pytestHeader(line []byte) (string, bool) {
	if !bytes.HasPrefix(line, []byte("==")) || !bytes.HasSuffix(line, []byte("==")) {
		return "", false
	}
	rest := bytes.TrimLeft(line, "=")
	rest = bytes.TrimRight(rest, "=")
	if len(rest) < 3 || len(rest) > 200 || rest[0] != ' ' || rest[len(rest)-1] != ' ' {
		return "", false
	}
	return string(bytes.TrimSpace(rest)), true
}

// pytestProgress reads a line of -v: "<id> <STATE>[ (<reason>)][ <spaces>[ 12%]]", or xdist's form.
func pytestProgress(line []byte, t *tally) {
	line = bytes.TrimRight(line, " ")
	if rest, ok := bytes.CutPrefix(line, []byte("[gw")); ok {
		_, rest, ok = bytes.Cut(rest, []byte("] "))
		if percent := bytes.TrimLeft(rest, " ["); ok && len(percent) < len(rest) {
			if _, rest, ok = bytes.Cut(percent, []byte("] ")); ok {
				word, id, _ := bytes.Cut(rest, []byte(" "))
				if s, ok := pytestStates[string(word)]; ok && isPytestID(id) {
					t.add(string(id), s)
				}
			}
		}
		return
	}
	if bytes.HasSuffix(line, []byte("]")) { // the percentage, if that is what it is
		if i := bytes.LastIndexByte(line, '['); i > 0 && isShare(line[i+1:len(line)-1]) {
			line = bytes.TrimRight(line[:i], " ")
		}
	}
	for word, s := range pytestStates {
		id, ok := bytes.CutSuffix(line, []byte(" "+word))
		if !ok && bytes.HasSuffix(line, []byte(")")) { // with a reason
			head := line[:min(len(line), maxID+len(word)+3)]
			id, _, ok = bytes.Cut(head, []byte(" "+word+" ("))
		}
		if ok && isPytestID(id) {
			t.add(string(id), s)
			return
		}
	}
}

// isShare reports whether b is what -v prints between brackets: " 12%", or "3/40" with console_output_style=count.
func isShare(b []byte) bool {
	return len(b) > 0 && len(bytes.Trim(b, " 0123456789/%")) == 0
}

// isPytestID reports whether b has the form <path>::<name>.
func isPytestID(b []byte) bool {
	if len(b) > maxID {
		return false
	}
	i := bytes.Index(b, []byte("::"))
	return i > 0 && i+2 < len(b) && b[0] != ' '
}

// pytestSummary reads a line of the short test summary.
func pytestSummary(line []byte, known func(string) bool, t *tally) {
	word, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return
	}
	name, _, sub := strings.Cut(string(word[:min(len(word), 20)]), "[") // SUBFAILED[message]
	if i := strings.IndexByte(name, '('); i >= 0 {                      // SUBFAILED(i=1)
		name, sub = name[:i], true
	}
	state, ok := pytestStates[name]
	if !ok || len(rest) == 0 {
		return
	}
	if sub || strings.HasPrefix(name, "SUB") { // "SUBFAILED[message] (i=1) a.py::test_x - why"
		if i := bytes.Index(line, []byte("::")); i > 0 {
			rest = line[bytes.LastIndexByte(line[:i], ' ')+1:]
		}
	}
	if name == "SKIPPED" && rest[0] == '[' { // folded: "[2] a.py:10: why" names no test
		return
	}
	separator := " - "
	if name == "XPASS" {
		separator = " " // up to pytest 7: "XPASS a.py::test_x why"
	}
	id := pytestID(rest, separator, known)
	if isPytestID([]byte(id)) {
		t.add(id, state)
	} else if name == "ERROR" && id != "" {
		t.addContainer(id, state) // a file or directory that could not be collected
	}
	// A class or package may fail to be collected too; its id looks like a test's.
	if name == "ERROR" && !known(id) {
		t.addContainer(id, state)
	}
}

// pytestID cuts the reason off "<id>[<separator><reason>]". Both may hold the separator: a known id is taken first; else
// the first cut that leaves no parameter open ("test_x[a - b] - why").
func pytestID(rest []byte, separator string, known func(string) bool) string {
	rest = bytes.TrimRight(rest[:min(len(rest), maxID)], " ")
	if known(string(rest)) {
		return string(rest)
	}
	first, tries := "", 0
	for i := 0; i < len(rest) && tries < 64; tries++ {
		j := bytes.Index(rest[i:], []byte(separator))
		if j < 0 {
			break
		}
		head := rest[:i+j]
		if known(string(head)) {
			return string(head)
		}
		closed := bytes.IndexByte(head, '[') < 0 || bytes.HasSuffix(head, []byte("]"))
		if first == "" && closed && (separator == " - " || isPytestID(head)) {
			first = string(head)
		}
		i += j + len(separator)
	}
	if first == "" {
		first = string(rest)
	}
	return first
}

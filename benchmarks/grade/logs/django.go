package logs

import (
	"fmt"
	"strings"
)

// The ways in which a test's output tears its line of result apart: "<test> ... <this>\nok".
var djangoTorn = []struct {
	holds   string // no match without it
	pattern func() func(string) [][]string
}{
	{"Testing against Django installed in ", torn(`(?m)^(.*?)\s\.\.\.\sTesting against Django installed in (?s:.*?) silenced\)\.\nok$`)},
	{"Internal Server Error: /", torn(`(?m)^(.*?)\s\.\.\.\sInternal Server Error: /.*/\nok$`)},
	{"System check identified no issues (0 silenced)", torn(`(?m)^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$`)},
}

func torn(pattern string) func() func(string) [][]string {
	re := rx(pattern)
	return func() func(string) [][]string {
		return func(log string) [][]string { return re().FindAllStringSubmatch(log, -1) }
	}
}

// parseDjango reads the runner of Django's own tests, unittest with -v 2. A test may have three names: the whole text before
// " ... ", and for failures also the word behind "FAIL:" or "ERROR:" in the details. A line of details with nothing
// behind the colon is an error, as in the referee.
func parseDjango(log string, _ Task, r *Results) error {
	previous, seen := "", false // the last text before " ... "
	n := 0
	for line := range lines(log) {
		n++
		line = strip(line)
		if strings.Contains(line, "--version is equivalent to version") {
			r.Set("--version is equivalent to version", Passed)
		}
		if before, _, ok := strings.Cut(line, " ... "); ok {
			previous, seen = before, true
		}
		line = djangoPassed(line, r)
		if before, _, ok := strings.Cut(line, " ... skipped"); ok {
			r.Set(before, Skipped)
		}
		for _, f := range []struct {
			word, head string
			s          Status
		}{{" ... FAIL", "FAIL:", Failed}, {" ... ERROR", "ERROR:", Errored}} {
			if strings.HasSuffix(line, f.word) {
				before, _, _ := strings.Cut(line, f.word)
				r.Set(before, f.s)
			}
			if strings.HasPrefix(line, f.head) {
				words := fields(line)
				if len(words) < 2 {
					return fmt.Errorf("line %d: nothing behind %q", n, f.head)
				}
				r.Set(words[1], f.s)
			}
		}
		if seen && strings.HasPrefix(line, "ok") { // output between "..." and "ok"
			r.Set(previous, Passed)
		}
	}
	for _, t := range djangoTorn {
		if strings.Contains(log, t.holds) {
			for _, m := range t.pattern()(log) {
				r.Set(m[1], Passed)
			}
		}
	}
	return nil
}

// djangoPassed notes a line that ends with ok and returns the line, which the one migration's message that shares a line
// with a test (django-7188) is cut from.
func djangoPassed(line string, r *Results) string {
	for _, suffix := range []string{" ... ok", " ... OK", " ...  OK"} {
		if !strings.HasSuffix(line, suffix) {
			continue
		}
		if strings.HasPrefix(line, "Applying sites.0002_alter_domain_unique...test_no_migrations") {
			line = strip(after(line, "..."))
		}
		r.Set(beforeLast(line, suffix), Passed)
		break
	}
	return line
}

// parseSympy reads sympy's own runner: failures by the titles of their details ("____ a/test_b.py:test_c ____"), then
// "test_x ok", "test_x F" and "test_x E" lines.
func parseSympy(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		if name, ok := sympyTitle(line); ok {
			r.Set(name, Failed)
		}
	}
	for line := range lines(log) {
		line = strip(line)
		if !strings.HasPrefix(line, "test_") {
			continue
		}
		name := fields(line)[0]
		switch {
		case strings.HasSuffix(line, " E"):
			r.Set(name, Errored)
		case strings.HasSuffix(line, " F"):
			r.Set(name, Failed)
		case strings.HasSuffix(line, " ok"):
			r.Set(name, Passed)
		}
	}
	return nil
}

// sympyTitle cuts a name out of any line with a space, then ".py:" and then another space: from behind the first space
// to the last. So "  File a.py: line 3" is taken for a title too.
func sympyTitle(line string) (string, bool) {
	if !strings.Contains(line, ".py:") {
		return "", false
	}
	first, last := strings.IndexByte(line, ' '), strings.LastIndexByte(line, ' ')
	if first < 0 || last <= first {
		return "", false
	}
	if strings.LastIndex(line[first+1:last], ".py:") < 0 {
		return "", false
	}
	return line[first+1 : last], true
}

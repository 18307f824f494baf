package logs

import (
	"regexp"
	"strings"
)

// The statuses in the order in which a line's start or end is held against them.
var statusWords = [...]string{"FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL"}

func startsWithStatus(line string) bool {
	for _, w := range statusWords {
		if strings.HasPrefix(line, w) {
			return true
		}
	}
	return false
}

func endsWithStatus(line string) bool {
	for _, w := range statusWords {
		if strings.HasSuffix(line, w) {
			return true
		}
	}
	return false
}

// isFoldedSkip reports whether a summary line counts skips ("SKIPPED [3] a.py:10: why") and names no test.
func isFoldedSkip(word, name string) bool {
	if word != "SKIPPED" || len(name) < 3 || name[0] != '[' || name[len(name)-1] != ']' {
		return false
	}
	for _, r := range name[1 : len(name)-1] {
		if !isDigit(r) {
			return false
		}
	}
	return true
}

// summaryLine reads "STATUS name ..." of pytest -rA: the first word is the status, the second the name. The status is
// any word that begins with one, so "ERRORS x" is a test x of state ERRORS, and a name with a space is cut at it.
func summaryLine(line string) (name string, s Status, ok bool) {
	if !startsWithStatus(line) {
		return "", "", false
	}
	if strings.HasPrefix(line, "FAILED") {
		line = strings.ReplaceAll(line, " - ", " ")
	}
	words := fields(line)
	if len(words) < 2 || isFoldedSkip(words[0], words[1]) {
		return "", "", false
	}
	return words[1], Status(words[0]), true
}

// parsePytest reads the short summary of pytest -rA, wherever in the log its lines are.
func parsePytest(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		if name, s, ok := summaryLine(line); ok {
			r.Set(name, s)
		}
	}
	return nil
}

// parsePytestOptions is parsePytest for suites whose parameters are absolute paths, which differ from machine to machine:
// "test_x[/home/a/b.dcm]" becomes "test_x[/b.dcm]".
func parsePytestOptions(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		if name, s, ok := summaryLine(line); ok {
			r.Set(shortenOption(name), s)
		}
	}
	return nil
}

// shortenOption cuts an absolute path between the first and the last bracket of a name down to its last part, and drops
// what stands behind the last bracket.
func shortenOption(name string) string {
	open, end := strings.IndexByte(name, '['), strings.LastIndexByte(name, ']')
	if open < 0 || end < open {
		return name
	}
	option := name[open+1 : end]
	if strings.HasPrefix(option, "/") && !strings.HasPrefix(option, "//") && !strings.Contains(option, "*") {
		option = option[strings.LastIndexByte(option, '/'):]
	}
	return name[:open+1] + option + "]"
}

// parseMatplotlib is parsePytest with two names of mouse buttons written as their numbers.
func parseMatplotlib(log string, _ Task, r *Results) error {
	buttons := strings.NewReplacer("MouseButton.LEFT", "1", "MouseButton.RIGHT", "3")
	for line := range lines(log) {
		if strings.Contains(line, "MouseButton.") {
			line = buttons.Replace(line)
		}
		if name, s, ok := summaryLine(line); ok {
			r.Set(name, s)
		}
	}
	return nil
}

var colour = rx(`\[(\d+)m`)

// parsePytestV2 reads coloured output, names with spaces, and the older form with the status at the end of the line.
func parsePytestV2(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		line = plainLine(line, colour())
		if startsWithStatus(line) {
			if strings.HasPrefix(line, "FAILED") {
				line, _, _ = strings.Cut(line, " - ")
			}
			if words := fields(line); len(words) >= 2 && !isFoldedSkip(words[0], words[1]) {
				r.Set(strings.Join(words[1:], " "), Status(words[0]))
			}
		} else if endsWithStatus(line) {
			if words := fields(line); len(words) >= 2 {
				last := len(words) - 1
				r.Set(strings.Join(words[:last], " "), Status(words[last]))
			}
		}
	}
	return nil
}

// plainLine removes "[<number>m" and then every control character but NUL.
func plainLine(line string, colour *regexp.Regexp) string {
	if strings.Contains(line, "m") && strings.Contains(line, "[") {
		line = colour.ReplaceAllLiteralString(line, "")
	}
	control := func(c rune) bool { return c > 0 && c < 32 }
	if strings.IndexFunc(line, control) < 0 {
		return line
	}
	return strings.Map(func(c rune) rune {
		if control(c) {
			return -1
		}
		return c
	}, line)
}

// parseSeaborn knows two states: FAILED at the start of a line, PASSED at the start or as the second word.
func parseSeaborn(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		failed, passed := strings.HasPrefix(line, "FAILED"), strings.HasPrefix(line, "PASSED")
		middle := strings.Contains(line, " PASSED ")
		if !failed && !passed && !middle {
			continue
		}
		words := fields(line)
		switch {
		case len(words) < 2:
		case failed:
			r.Set(words[1], Failed)
		case middle: // also where the line starts with PASSED
			if words[1] == "PASSED" {
				r.Set(words[0], Passed)
			}
		default:
			r.Set(words[1], Passed)
		}
	}
	return nil
}

// parseSmithPython reads pytest --verbose as SWE-smith's profiles of Python projects do: "name STATUS", with no space in
// the name. Source: SWE-smith, profiles/python.py.
func parseSmithPython(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		end := strings.IndexFunc(line, isSpace)
		if end <= 0 {
			continue
		}
		rest := lstrip(line[end:])
		for _, w := range statusWords {
			if strings.HasPrefix(rest, w) {
				r.Set(line[:end], Status(w))
			}
		}
	}
	return nil
}

// parseR2E reads the short summary behind its title: PASSED, FAILED or ERROR and a name, of which the file is left out
// and "::" becomes a dot; a reason behind " - " is no part of a failure's name. A line without "::" names the test "".
func parseR2E(log string, _ Task, r *Results) error {
	_, summary, ok := strings.Cut(log, "short test summary info")
	if !ok {
		return nil
	}
	summary, _, _ = strings.Cut(summary, "short test summary info")
	for line := range lines(strip(summary)) {
		word, _, _ := strings.Cut(line, " ")
		switch word = withoutEscapes(word); word {
		case "PASSED", "FAILED", "ERROR":
		default:
			continue
		}
		_, name, _ := strings.Cut(line, "::")
		name = strings.ReplaceAll(name, "::", ".")
		if word != "PASSED" {
			name, _, _ = strings.Cut(name, " - ")
		}
		r.Set(name, Status(word))
	}
	return nil
}

package logs

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// markedLine makes a parser of lines that an expression with two groups, mark and name, matches after stripping. starts
// holds the first bytes a line may have, which spares most lines the expression; clean is applied to names.
func markedLine(starts, pattern string, clean func(string) string, states map[string]Status) parser {
	re := rx(pattern)
	return func(log string, _ Task, r *Results) error {
		for line := range lines(log) {
			line = strip(line)
			if line == "" || strings.IndexByte(starts, line[0]) < 0 {
				continue
			}
			if m := re().FindStringSubmatch(line); m != nil {
				if s, ok := states[m[1]]; ok {
					r.Set(clean(m[2]), s)
				}
			}
		}
		return nil
	}
}

const markBytes = "\xe2\xc3" // the first bytes of ✓ ✔ ✕ ✖ ○ ↓ and of ×

var (
	// parseJest reads jest --verbose; the duration in brackets is no part of the name.
	parseJest = markedLine(markBytes, `^(✓|✕|○)\s(.+?)(?:\s\(\d+\s*m?s\))?$`, strip, map[string]Status{"✓": Passed, "✕": Failed, "○": Skipped})
	// parseJestJSON reads jest --json piped through the benchmark's filter: "[PASSED] suite > name".
	parseJestJSON = markedLine("[", `^\[(PASSED|FAILED)\]\s(.+)$`, asIs, map[string]Status{"PASSED": Passed, "FAILED": Failed})
	// parseVitest reads vitest --reporter=verbose.
	parseVitest = markedLine(markBytes, `^(✓|×|↓)\s(.+?)(?:\s(?:\d+\s*m?s?|\[skipped\]))?$`, asIs, map[string]Status{"✓": Passed, "×": Failed, "↓": Skipped})
	// parseTAP reads "ok 3 name" and "not ok 3 name"; directives after # stay in the name.
	parseTAP = markedLine("on", `^(ok|not ok) \d+ (.+)$`, asIs, map[string]Status{"ok": Passed, "not ok": Failed})
)

// parseSuites reads jest's lines of whole test files, "PASS a/b.test.js (5.2 s)", for benchmarks that grade by file.
func parseSuites(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		s := Passed
		name, ok := strings.CutPrefix(line, "PASS")
		if !ok {
			s = Failed
			if name, ok = strings.CutPrefix(line, "FAIL"); !ok {
				continue
			}
		}
		space, size := utf8.DecodeRuneInString(name)
		if !isSpace(space) {
			continue
		}
		name = name[size:]
		r.Set(name[:suiteEnd(name)], s)
	}
	return nil
}

// suiteEnd is where the time of a suite begins, or the end. Three forms of the time are tried one after the other, each for its
// last place: 12ms, then 1.2 s, then 1.2s.
func suiteEnd(name string) int {
	for _, re := range suiteForms {
		if m := re().FindStringSubmatchIndex(name); m != nil {
			return m[3]
		}
	}
	return len(name)
}

var suiteForms = []lazyRegexp{rx(`^(.*)\s\([\d\.]+ms\)`), rx(`^(.*)\s\([\d\.]+\ss\)`), rx(`^(.*)\s\([\d\.]+s\)`)}

var (
	failSuite   = rx(`(?m)^FAIL\s(.*)`)
	passSuite   = rx(`(?m)^PASS\s(.*)`)
	grommetTime = rx(`\s\([\d\.]+\s?(?:ms|s)\)$`)
)

// parseEmotion reads PASS and FAIL lines with all that follows; failures first. A bare FAIL takes the next line.
func parseEmotion(log string, _ Task, r *Results) error {
	return wholeLines(log, r, func(name string) string { return name })
}

// parseGrommet is parseEmotion without the time at the end.
func parseGrommet(log string, _ Task, r *Results) error {
	return wholeLines(log, r, func(name string) string { return grommetTime().ReplaceAllLiteralString(name, "") })
}

func wholeLines(log string, r *Results, clean func(string) string) error {
	for _, m := range failSuite().FindAllStringSubmatch(log, -1) {
		r.Set(clean(strip(m[1])), Failed)
	}
	for _, m := range passSuite().FindAllStringSubmatch(log, -1) {
		r.Set(clean(strip(m[1])), Passed)
	}
	return nil
}

var (
	hasTime     = rx(`\(\d+ms\)`)
	calypsoTime = map[string]lazyRegexp{"✓": rx(`^\s+✓\s(.*)\(\d+ms\)$`), "✕": rx(`^\s+✕\s(.*)\(\d+ms\)$`)}
	calypsoBare = map[string]lazyRegexp{"✓": rx(`^\s+✓\s(.*)`), "✕": rx(`^\s+✕\s(.*)`)}
)

// parseCalypso reads the output behind each call of jest in a traced script, by indentation. A result that is not indented, or
// whose time is not at its end, is an error, as in the referee.
func parseCalypso(log string, _ Task, r *Results) error {
	var suite suites
	parts := strings.Split(log, " ./node_modules/.bin/jest ")
	for _, part := range parts[1:] {
		for line := range lines(part) {
			if strings.HasPrefix(line, "Test Suites") || strings.HasPrefix(line, "  ● ") {
				break
			}
			bare := strip(line)
			switch {
			case strings.HasPrefix(bare, "✓"), strings.HasPrefix(bare, "✕"):
				mark, s := "✓", Passed
				if strings.HasPrefix(bare, "✕") {
					mark, s = "✕", Failed
				}
				re := calypsoBare[mark]
				if hasTime().MatchString(line) {
					re = calypsoTime[mark]
				}
				m := re().FindStringSubmatch(line)
				if m == nil {
					return fmt.Errorf("result line %.80q is not indented, or has its time not at the end", line)
				}
				r.Set(strip(strings.Join(suite.names, " - ")+" - "+m[1]), s)
			default:
				suite.enter(line)
			}
		}
	}
	return nil
}

// parseImmutable chooses by the pull request: immutable-js has two instances.
func parseImmutable(log string, t Task, r *Results) error {
	switch afterLast(t.InstanceID, "-") {
	case "2006":
		return parseJest(log, t, r)
	case "2005":
		return parseJestJSON(log, t, r)
	}
	return fmt.Errorf("the immutable-js parser knows instances 2005 and 2006, not %q", t.InstanceID)
}

package logs

import (
	"iter"
	"strings"
	"unicode/utf8"
)

// Readers that SWE-rebench adds to the referee's, or has in an older form. Source: SWE-rebench/SWE-rebench-V2, lib/agent/log_parsers.py.

// textLines yields lines as Python's str.splitlines does: more characters end one than a newline, and nothing comes behind
// the last end.
func textLines(s string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for s != "" {
			line, rest, size := s, "", 0
			if i := strings.IndexFunc(s, endsLine); i >= 0 {
				_, size = utf8.DecodeRuneInString(s[i:])
				line, rest = s[:i], s[i+size:]
			}
			if !yield(line) {
				return
			}
			s = rest
		}
	}
}

// endsLine holds for the characters that end a line; \r\n is one \n by then, see [ReadText].
func endsLine(r rune) bool {
	return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
}

// parseRebenchPytestV2 is pytest_v2 as it was when SWE-rebench recorded its names: a name ends at its first space.
func parseRebenchPytestV2(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		line = plainLine(line, colour())
		front := startsWithStatus(line)
		if !front && !endsWithStatus(line) {
			continue
		}
		if strings.HasPrefix(line, "FAILED") {
			line = strings.ReplaceAll(line, " - ", " ")
		}
		switch words := fields(line); {
		case len(words) < 2: // an error there, which would lose the whole log to a line that says FAILED
		case front:
			r.Set(words[1], Status(words[0]))
		default:
			r.Set(words[0], Status(words[1]))
		}
	}
	return nil
}

var (
	neboWorker = rx(`^\[gw\d+\]\s+\[[^\]]*\]\s+(\w+)\s+(.*)$`)
	neboTimed  = rx(`^([^\t-\r\x1c-\x20\x{85}\x{a0}].*?)\s+(FAILED|PASSED|SKIPPED|ERROR)\s+\[[^\]]*\]\s+in\s+\d+(?:\.\d+)?s$`)
	neboFirst  = rx(`^(PASSED|FAILED|SKIPPED|ERROR)\s+(.*)$`)
)

// parsePytestNebo reads pytest -rA and -v, with xdist's workers and times: "[gw0] [ 5%] PASSED a.py::x in 0.1s".
func parsePytestNebo(log string, _ Task, r *Results) error {
	for line := range textLines(log) {
		line = strip(plainLine(line, colour()))
		untimed := func(name string) string { name, _, _ = strings.Cut(name, " in "); return strip(name) }
		if m := neboWorker().FindStringSubmatch(line); m != nil {
			switch s := Status(m[1]); s {
			case Passed, Failed, Skipped, Errored:
				r.Set(untimed(m[2]), s)
				continue
			}
		}
		if m := neboTimed().FindStringSubmatch(line); m != nil {
			r.Set(strip(m[1]), Status(m[2]))
		} else if m := neboFirst().FindStringSubmatch(line); m != nil {
			r.Set(untimed(m[2]), Status(m[1]))
		}
	}
	return nil
}

var swiftLine = rx(`^Test Case '([^']+)'\s+(passed|failed)\s+\([0-9.]+\s+seconds\)$`)

// parseSwift reads XCTest's "Test Case 'A.b' passed (0.1 seconds)".
func parseSwift(log string, _ Task, r *Results) error {
	for line := range textLines(log) {
		if m := swiftLine().FindStringSubmatch(strip(line)); m != nil {
			r.Set(m[1], Status(strings.ToUpper(m[2])))
		}
	}
	return nil
}

var (
	xunitResult  = rx(`^\s+(Passed|Failed)\s+(.+?)\s+\[.+?\]$`)
	xunitSkipped = rx(`^\s+Skipped\s+(.+?)(?:\s+\[.+?\])?$`)
	xunitFailed  = rx(`^\[xUnit\.net\s+[\d:\.]+\]\s+(.+?)\s+\[FAIL\]$`)
)

// parseCSharp reads dotnet test with xUnit.net: "  Passed A.b [3 ms]"; a failure is never overwritten by a pass.
func parseCSharp(log string, _ Task, r *Results) error {
	for line := range textLines(log) {
		line = rstrip(line)
		if m := xunitFailed().FindStringSubmatch(line); m != nil {
			r.Set(m[1], Failed)
		} else if m := xunitResult().FindStringSubmatch(line); m != nil {
			if _, known := r.Get(m[2]); m[1] == "Failed" {
				r.Set(m[2], Failed)
			} else if !known {
				r.Set(m[2], Passed)
			}
		} else if m := xunitSkipped().FindStringSubmatch(line); m != nil {
			r.Set(m[1], Skipped)
		}
	}
	return nil
}

package logs

import (
	"strings"
)

// Runners of C, C++, Go and Rust.

var (
	// parseJQ reads automake's "PASS: tests/x".
	parseJQ = markedLine("PF", `^(PASS|FAIL):\s(.+)$`, asIs, map[string]Status{"PASS": Passed, "FAIL": Failed})
	// parseMicropython reads "pass  a/b.py", "FAIL  a/b.py", "skip  a/b.py".
	parseMicropython = markedLine("pFs", `^(pass|FAIL|skip)\s+(.+)$`, asIs, map[string]Status{"pass": Passed, "FAIL": Failed, "skip": Skipped})
	// parseGoTest reads "--- PASS: TestX (0.00s)", subtests by their full names; packages are not told apart.
	parseGoTest = markedLine("-", `^--- (PASS|FAIL|SKIP): (.+) \(.+\)$`, asIs, map[string]Status{"PASS": Passed, "FAIL": Failed, "SKIP": Skipped})
	// parseRedis reads "[ok]: name (12 ms)"; of a failure the file at the end ("in tests/x.tcl") is no part of the name.
	redisLine  = rx(`^\[(ok|err|skip|ignore)\]:\s(.+?)(?:\s\(\d+\s*m?s\))?$`)
	redisPlace = rx(`\s+in\s+\S+$`)
	gtestLine  = rx(`^.*\[\s*(OK|FAILED)\s*\]\s(.*)\s\(.*\)$`)
	cargoLine  = rx(`^test\s+(\S+)\s+\.\.\.\s+(\w+)$`)
)

func parseRedis(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		line = strip(line)
		if !strings.HasPrefix(line, "[") {
			continue
		}
		m := redisLine().FindStringSubmatch(line)
		if m == nil {
			continue
		}
		switch m[1] {
		case "ok":
			r.Set(m[2], Passed)
		case "err":
			r.Set(redisPlace().ReplaceAllLiteralString(m[2], ""), Failed)
		default:
			r.Set(m[2], Skipped)
		}
	}
	return nil
}

// parseGoogleTest reads "[       OK ] suite.test (0 ms)".
func parseGoogleTest(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		if !strings.Contains(line, "[") {
			continue
		}
		if m := gtestLine().FindStringSubmatch(strip(line)); m != nil {
			s := Passed
			if m[1] == "FAILED" {
				s = Failed
			}
			r.Set(m[2], s)
		}
	}
	return nil
}

// parseCargo reads "test a::b ... ok"; ignored tests and names with spaces (doc tests) are not reported.
func parseCargo(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		line = strip(line)
		if !strings.HasPrefix(line, "test") {
			continue
		}
		if m := cargoLine().FindStringSubmatch(line); m != nil {
			switch m[2] {
			case "ok":
				r.Set(m[1], Passed)
			case "FAILED":
				r.Set(m[1], Failed)
			}
		}
	}
	return nil
}

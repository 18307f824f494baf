package logs

import (
	"fmt"
	"strings"
)

// Runners of PHP and Ruby.

var (
	phpSuite = rx(`^(\w.+) \(.+\)$`)
	phpTest  = rx(`^\s*([✔✘↩])\s*(.*)$`)
)

// parsePHPUnit reads phpunit --testdox: a line "Suite (Full\Name)", then its tests. A test before any suite belongs to
// "None".
func parsePHPUnit(log string, _ Task, r *Results) error {
	states := map[string]Status{"✔": Passed, "✘": Failed, "↩": Skipped}
	suite := "None"
	for line := range lines(log) {
		if strings.HasSuffix(line, ")") {
			if m := phpSuite().FindStringSubmatch(line); m != nil {
				suite = m[1]
				continue
			}
		}
		if !strings.Contains(line, "\xe2") {
			continue
		}
		if m := phpTest().FindStringSubmatch(line); m != nil {
			r.Set(suite+" > "+m[2], states[m[1]])
		}
	}
	return nil
}

var (
	minitestLine = rx(`^(.+)\. .*=.*(\.|F|E).*$`)
	cucumberLine = rx(`^(.*) \.+(\.|F)`)
	rubyUnitLine = rx(`^(?:test: )?(.+):\s+(?:(\.)|([EFO])(?:\W|$))`)
	rspecLine    = rx(`^(.+) - (passed|failed)`)
)

// parseMinitest reads minitest -v, "A::Test#test_x. = 0.01 s = ."; the result is the last dot, F or E of the line, so what
// follows it may be taken for it.
func parseMinitest(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		if !strings.Contains(line, "=") {
			continue
		}
		if m := minitestLine().FindStringSubmatch(strip(line)); m != nil {
			r.Set(m[1], dotted(m[2]))
		}
	}
	return nil
}

// parseCucumber reads the lines of cucumber's progress formatter.
func parseCucumber(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		if !strings.Contains(line, " .") {
			continue
		}
		if m := cucumberLine().FindStringSubmatch(strip(line)); m != nil {
			r.Set(m[1], dotted(m[2]))
		}
	}
	return nil
}

func dotted(mark string) Status {
	if mark == "." {
		return Passed
	}
	return Failed
}

// parseRubyUnit reads test-unit --verbose, "test: does x:	.: (0.001)"; an omission (O) is a skip.
func parseRubyUnit(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		if !strings.Contains(line, ":") {
			continue
		}
		m := rubyUnitLine().FindStringSubmatch(strip(line))
		switch {
		case m == nil:
		case m[2] == ".":
			r.Set(m[1], Passed)
		case m[3] == "O":
			r.Set(m[1], Skipped)
		default:
			r.Set(m[1], Failed)
		}
	}
	return nil
}

// parseRSpec reads rspec's JSON after the benchmark's filter: "name - passed"; pending ones are not reported.
func parseRSpec(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		if !strings.Contains(line, " - ") {
			continue
		}
		if m := rspecLine().FindStringSubmatch(strip(line)); m != nil {
			s := Passed
			if m[2] == "failed" {
				s = Failed
			}
			r.Set(m[1], s)
		}
	}
	return nil
}

// parseJekyll chooses by the pull request, the second part of the instance id.
func parseJekyll(log string, t Task, r *Results) error {
	parts := strings.Split(t.InstanceID, "-")
	if len(parts) > 1 {
		switch parts[1] {
		case "9141", "8047", "8167":
			return parseMinitest(log, t, r)
		case "8761", "8771":
			return parseCucumber(log, t, r)
		}
	}
	return fmt.Errorf("the jekyll parser knows instances 8047, 8167, 8761, 8771 and 9141, not %q", t.InstanceID)
}

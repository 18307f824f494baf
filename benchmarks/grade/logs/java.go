package logs

import (
	"strings"
)

var (
	mavenTest = rx(`^.*-Dtest=(\S+)`)
	// parseAnt reads "[junit] [PASS] name"; an error counts as a failure.
	parseAnt = markedLine("[", `^\[junit\]\s+\[(PASS|FAIL|ERR)\]\s+(.*)$`, asIs, map[string]Status{"PASS": Passed, "FAIL": Failed, "ERR": Failed})

	gradleResult = rx(`^([^>].+)\s+(PASSED|FAILED)$`)
	gradleName   = rx(`^[^>]\S*\s+>\s+\S+$`)
)

// parseMaven reads a traced script that runs maven once for each test: the names behind -Dtest= and the results
// "BUILD SUCCESS" and "BUILD FAILURE" are put together first to first, also where output comes out of order.
func parseMaven(log string, _ Task, r *Results) error {
	var names, early []string // tests without result; results before any test
	take := func(result string) {
		if result == "SUCCESS" {
			r.Set(names[0], Passed)
		} else {
			r.Set(names[0], Failed)
		}
		names = names[1:]
	}
	for line := range lines(log) {
		line = strip(line)
		if strings.Contains(line, "-Dtest=") {
			if m := mavenTest().FindStringSubmatch(line); m != nil {
				names = append(names, m[1])
			}
		}
		for _, result := range []string{"SUCCESS", "FAILURE"} {
			if !strings.HasSuffix(line, "BUILD "+result) {
				continue
			}
			if len(names) > 0 {
				take(result)
			} else {
				early = append(early, result)
			}
		}
	}
	for len(names) > 0 && len(early) > 0 {
		take(early[0])
		early = early[1:]
	}
	return nil
}

// parseGradle reads "com.example.Test > method PASSED", also where other output tore name and result apart.
func parseGradle(log string, _ Task, r *Results) error {
	states := map[string]Status{"PASSED": Passed, "FAILED": Failed}
	pending := ""
	for line := range lines(log) {
		line = strip(line)
		if strings.HasSuffix(line, "ED") { // of PASSED and FAILED
			if m := gradleResult().FindStringSubmatch(line); m != nil {
				r.Set(m[1], states[m[2]])
				pending = ""
				continue
			}
		}
		if strings.Contains(line, ">") && gradleName().MatchString(line) {
			pending = line
			continue
		}
		if s, ok := states[line]; ok && pending != "" {
			r.Set(pending, s)
			pending = ""
		}
	}
	return nil
}

package logs

import (
	"strings"
)

// parseNext chooses by the version: Cypress from 1.27, karma before.
func parseNext(log string, t Task, r *Results) error {
	if t.Version == "1.27" {
		return parseNextCypress(log, r)
	}
	return parseNextKarma(log, r)
}

var nextAssertion = rx(`AssertionError:\s+#(?s:.*?)\n\n`)

// parseNextKarma reads karma's output behind each xvfb-run of a traced script. Suites are carried from one run to the next.
func parseNextKarma(log string, r *Results) error {
	log = withoutEscapes(log)
	if strings.Contains(log, "AssertionError:") {
		log = nextAssertion().ReplaceAllLiteralString(log, "")
	}
	var suite suites
	runs := strings.Split(log, " xvfb-run ")
	for _, run := range runs[1:] {
		for line := range lines(afterLast(run, "Starting browser Chrome")) {
			if strings.HasPrefix(line, "TOTAL") {
				break
			}
			if bare := strip(line); startsWithAny(bare, "ERROR", "LOG", "WARN", "Check", "in") {
				continue
			}
			if _, name, ok := strings.Cut(line, "✗"); ok {
				r.Set(strings.Join(suite.path(lstrip(name)), " - "), Failed)
			} else if _, name, ok := strings.Cut(line, "✓"); ok {
				r.Set(strings.Join(suite.path(lstrip(name)), " - "), Passed)
			} else {
				suite.enter(line)
			}
		}
	}
	return nil
}

func startsWithAny(s string, heads ...string) bool {
	for _, h := range heads {
		if strings.HasPrefix(s, h) {
			return true
		}
	}
	return false
}

var (
	nextSuite   = rx(`Running:.*\)\n{3}\s{2}(.*)\n`)
	nextFailure = rx(`(?m)^\s{4}\d+\)\s(.*)`)
	nextSuccess = rx(`(?m)^\s{4}✓\s(.*)\(`)
)

// parseNextCypress reads Cypress' spec output: each test file has one suite, named after "Running:".
func parseNextCypress(log string, r *Results) error {
	at := nextSuite().FindAllStringSubmatchIndex(log, -1)
	for i, m := range at {
		end := len(log)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		suite, part := log[m[2]:m[3]], log[m[1]:end]
		for _, f := range nextFailure().FindAllStringSubmatch(part, -1) {
			r.Set(suite+": "+strip(f[1]), Failed)
		}
		for _, f := range nextSuccess().FindAllStringSubmatch(part, -1) {
			r.Set(suite+": "+strip(f[1]), Passed)
		}
	}
	return nil
}

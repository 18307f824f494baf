package logs

import (
	"fmt"
	"strings"
)

var (
	quartoTest = rx(`\[(?:smoke|unit)\]`)
	quartoTmp  = []lazyRegexp{rx(`/tmp/\w+\.qmd`), rx(`/tmp/\w+/`)}
)

// parseQuarto reads deno's coloured test lines, "[smoke] > x ... \x1b[0m\x1b[32mok", up to the first line with ERRORS or
// "failures:". Names of temporary files are numbered in the order of their appearance, so that ids agree from run to run.
// A test without a result counts as failed.
func parseQuarto(log string, _ Task, r *Results) error {
	numbers := map[string]int{}
	for line := range lines(log) {
		if strings.Contains(line, "ERRORS") || strings.Contains(line, "failures:") {
			break
		}
		if !quartoTest().MatchString(line) {
			continue
		}
		for _, re := range quartoTmp {
			tmp := re().FindString(line)
			if tmp == "" {
				continue
			}
			if _, ok := numbers[tmp]; !ok {
				numbers[tmp] = len(numbers)
			}
			line = re().ReplaceAllLiteralString(line, fmt.Sprintf("/tmp/%d", numbers[tmp]))
		}
		before, _, _ := strings.Cut(line, "...")
		name := strip(before)
		summary := strings.Contains(line, "passed") && strings.Contains(line, "failed") && strings.Contains(line, "steps")
		if summary || strings.HasPrefix(line, "test result:") || strings.Contains(line, "34mINFO") {
			continue
		}
		if strings.Contains(line, "32mok") {
			r.Set(name, Passed)
		} else if strings.Contains(line, "31mFAILED") {
			r.Set(name, Failed)
		} else if _, ok := r.Get(name); !ok {
			r.Set(name, Failed)
		}
	}
	return nil
}

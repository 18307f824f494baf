package logs

import (
	"errors"
	"strings"
)

var karmaLine = rx(`^(\s*)([✔✖]?)\s(.*)$`)

// parseKarma reads karma's mocha reporter between the start of the browser and the summary. A suite is entered where the
// indentation grows and left where it shrinks, whatever the amount; more leaving than entering is an error, as in the
// referee.
func parseKarma(log string, _ Task, r *Results) error {
	depth, started := -1, false
	var suite []string
	for line := range lines(log) {
		if strings.HasPrefix(line, "SUMMARY:") {
			return nil
		}
		if strings.Contains(line, "Starting browser") {
			started = true
			continue
		}
		if !started {
			continue
		}
		m := karmaLine().FindStringSubmatch(line)
		if m == nil {
			continue
		}
		in, mark, name := m[1], m[2], m[3]
		if mark == "" {
			if in != "" {
				switch d := indent(in + "x"); {
				case d > depth:
					depth, suite = d, append(suite, name)
				case d < depth:
					depth = d
					if len(suite) == 0 {
						return errors.New("the indentation shrinks where no suite is open")
					}
					suite = suite[:len(suite)-1]
				}
			}
			continue
		}
		s := Passed
		if mark == "✖" {
			s = Failed
		}
		r.Set(strings.Join(append(suite[:len(suite):len(suite)], name), " > "), s)
	}
	return nil
}

// failures makes a parser of expressions over the whole log whose last group is the name of a failed test. holds is a
// text without which no expression matches.
func failures(clean func(string) string, holds []string, patterns ...lazyRegexp) parser {
	return func(log string, _ Task, r *Results) error {
		if !containsAny(log, holds) {
			return nil
		}
		for _, re := range patterns {
			for _, m := range re().FindAllStringSubmatch(log, -1) {
				r.Set(clean(m[len(m)-1]), Failed)
			}
		}
		return nil
	}
}

func containsAny(s string, holds []string) bool {
	for _, h := range holds {
		if strings.Contains(s, h) {
			return true
		}
	}
	return false
}

func asIs(s string) string { return s }

var (
	// parseBPMN reads karma's failures under three browsers; passes are not printed.
	parseBPMN = failures(asIs, []string{"FAILED\n"},
		rx(`2KPhantomJS\s[\d\.]+\s\(Linux\s[\d\.]+\)\s(.*)FAILED\n`),
		rx(`2KPhantomJS\s[\d\.]+\s\(Linux\sx86_64\)\s(.*)FAILED\n`),
		rx(`Chrome\sHeadless\s(?:.*)\s\(Linux\sx86_64\)\s(.*)FAILED\n`),
		rx(`HeadlessChrome\s[\d\.]+\s\(Linux\s[\d\.]+\)\s(.*)FAILED\n`))
	// parseOpenLayers reads karma's and mocha's failures and those of its own rendering cases.
	parseOpenLayers = failures(collapse, []string{"FAILED\n", "Error:", "mismatch"},
		rx(`(?m)Chrome\sHeadless\s[\d\.]+\s\(Linux\s\S+\)\s(.*)\sFAILED\n`),
		rx(`(?m)Chrome\s[\d\.]+\s\(Linux\s\S+\)\s(.*)FAILED\n`),
		rx(`(?m)^\s{2}\d+\)((?s:.*?))Error:`),
		rx(`(?m)^case\s(.*):\smismatch`))
	chartFailure = failures(asIs, []string{"FAILED"},
		rx(`(?m)Chrome\s[\d\.]+[\t\x0b\x0c\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]\(.+?\)`+
			`[\t\x0b\x0c\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}](.*)FAILED$`))
)

// parseChartJS reads karma's failures, the terminal's escapes removed.
func parseChartJS(log string, t Task, r *Results) error {
	return chartFailure(withoutEscapes(log), t, r)
}

package logs

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// lazyRegexp is an expression that is compiled at its first use; [rx] makes it.
type lazyRegexp = func() *regexp.Regexp

var (
	mochaSummary = rx(`\n[ \t]*\d+ passing`)
	numbered     = rx(`^\d+\)`)
	milliseconds = rx(`\(\d+ms\)`)
)

// parseHighlightJS reads mocha's spec reporter up to its summary. Any line indented by two starts a suite, so a name has
// one suite before it, the last one.
func parseHighlightJS(log string, _ Task, r *Results) error {
	if at := mochaSummary().FindStringIndex(log); at != nil {
		log = log[:at[0]]
	}
	suite := ""
	for line := range lines(log) {
		bare := strip(line)
		s, rest, test := Passed, "", true
		switch {
		case strings.HasPrefix(bare, "✓"):
			rest = after(line, "✓")
		case strings.HasPrefix(bare, "✔"):
			rest = after(line, "✔")
		case numbered().MatchString(bare):
			s, rest = Failed, after(line, ")")
		default:
			if test = false; strings.HasPrefix(line, "  ") {
				suite = bare + "."
			}
		}
		if test {
			r.Set(suite+strip(milliseconds().ReplaceAllLiteralString(rest, "")), s)
		}
	}
	return nil
}

// parsePrism reads mocha's JSON reporter behind each command of a traced script. Text that is not that JSON, failures and passes
// with fullTitle, is an error, as in the referee.
func parsePrism(log string, _ Task, r *Results) error {
	const command = "./node_modules/.bin/mocha tests/run.js --reporter json"
	parts := strings.Split(log, command)
	for i, part := range parts[1:] {
		if _, rest, ok := strings.Cut(part, "{"); ok {
			part = rest
		}
		if err := mochaJSON("{"+beforeLast(part, "}")+"}", r); err != nil {
			return fmt.Errorf("output of run %d of mocha: %w", i+1, err)
		}
	}
	return nil
}

func mochaJSON(text string, r *Results) error {
	var report map[string]json.RawMessage // a map, since struct fields would match whatever the case
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		return err
	}
	for _, list := range []struct {
		key string
		s   Status
	}{{"failures", Failed}, {"passes", Passed}} {
		var tests []map[string]json.RawMessage
		if raw, ok := report[list.key]; !ok {
			return fmt.Errorf("no %q", list.key)
		} else if string(raw) == "null" {
			return fmt.Errorf("%q is null", list.key)
		} else if err := json.Unmarshal(raw, &tests); err != nil {
			return fmt.Errorf("%q: %w", list.key, err)
		}
		for i, t := range tests {
			var title string
			if raw, ok := t["fullTitle"]; !ok {
				return fmt.Errorf("%q[%d] has no fullTitle", list.key, i)
			} else if err := json.Unmarshal(raw, &title); err != nil {
				return fmt.Errorf("%q[%d]: fullTitle: %w", list.key, i, err)
			}
			r.Set(title, list.s)
		}
	}
	return nil
}

var fullTitle = rx(`"fullTitle":\s"(.*)",\n`)

// jsonTitles notes every fullTitle line of a text; escapes in the JSON strings stay as they are.
func jsonTitles(text string, s Status, r *Results) {
	for _, m := range fullTitle().FindAllStringSubmatch(text, -1) {
		r.Set(m[1], s)
	}
}

// parseCypress reads mocha's JSON reporter as text, in parts that end with "../..".
func parseCypress(log string, _ Task, r *Results) error {
	parts := strings.Split(log, "../..")
	for _, part := range parts[:len(parts)-1] {
		jsonTitles(beforeLast(afterLast(part, `  "passes": [`), "  }"), Passed, r)
		jsonTitles(beforeLast(afterLast(part, `  "failures": [`), "  ],"), Failed, r)
	}
	return nil
}

// parseLighthouse chooses by the version: mocha's spec reporter (9.5, 10.0, 10.2), jest from 3 on, mocha's JSON as text
// before.
func parseLighthouse(log string, t Task, r *Results) error {
	switch t.Version {
	case "9.5", "10.0", "10.2":
		return parseLighthouseMocha(log, t, r)
	}
	v, err := strconv.ParseFloat(strip(t.Version), 64)
	if err != nil {
		return fmt.Errorf("version %q of lighthouse is no number", t.Version)
	}
	if v >= 3 {
		return parseSuites(log, t, r)
	}
	parts := strings.Split(log, "./node_modules/.bin/mocha --reporter json")
	for _, part := range parts[1:] {
		jsonTitles(beforeLast(afterLast(part, `"passes": [`), "]"), Passed, r)
		jsonTitles(beforeLast(afterLast(part, `"failures": [`), "],"), Failed, r)
	}
	return nil
}

var (
	lighthouseRun   = rx(`running\s\d+\stest\sfiles`)
	lighthouseEnd   = rx(`\d+\spassing`)
	lighthouseForms = []struct {
		re lazyRegexp
		s  Status
	}{
		{rx(`^✔\s(.*)\s\(\d+m+s\)`), Passed}, {rx(`^✔\s(.*)`), Passed},
		{rx(`^\d+\)\s(.*)\s\(\d+m+s\)`), Failed}, {rx(`^\d+\)\s(.*)`), Failed},
	}
)

func parseLighthouseMocha(log string, _ Task, r *Results) error {
	runs := lighthouseRun().Split(log, -1)
	for _, run := range runs[1:] {
		if at := lighthouseEnd().FindStringIndex(run); at != nil {
			run = run[:at[0]]
		}
		var suite suites
		for line := range lines(strip(run)) {
			if name, s, ok := lighthouseTest(strip(line)); ok {
				r.Set(strings.Join(suite.path(name), " - "), s)
			} else {
				suite.enter(line)
			}
		}
	}
	return nil
}

func lighthouseTest(line string) (name string, s Status, ok bool) {
	for _, f := range lighthouseForms {
		if m := f.re().FindStringSubmatch(line); m != nil {
			return m[1], f.s, true
		}
	}
	return "", "", false
}

var eslintFailure = rx(`\s{2}\d+\)((?s:.*?))\s+(?:.*)Error`)

// parseESLint reads the failures of mocha's min reporter, names over several lines folded into one; passes are not printed,
// so its tasks are graded by failures only.
func parseESLint(log string, _ Task, r *Results) error {
	if !strings.Contains(log, "Error") {
		return nil
	}
	for _, m := range eslintFailure().FindAllStringSubmatch(log, -1) {
		r.Set(collapse(m[1]), Failed)
	}
	return nil
}

var markedFailure = rx(`^\d+\)\s(.*)`)

// parseMarked reads jasmine's numbered failures; passes are not printed.
func parseMarked(log string, _ Task, r *Results) error {
	for line := range lines(log) {
		if m := markedFailure().FindStringSubmatch(line); m != nil {
			r.Set(strip(m[1]), Failed)
		}
	}
	return nil
}

var (
	plotlySuite = rx(`^(\s+)-\s+(.*?)\s+:`)
	plotlyTest  = rx(`^(\s+)\*\s+(.*?)\s+:\s*(.*)`)
)

// parsePlotly reads "- suite :" and "* test : ok". A line that is not deeper than the last suite leaves every suite.
func parsePlotly(log string, _ Task, r *Results) error {
	var names []string
	depth := 0
	for line := range lines(log) {
		if m := plotlySuite().FindStringSubmatch(line); m != nil {
			if in := indent(m[1] + "x"); in <= depth {
				names, depth = nil, in
			} else {
				depth = in
			}
			names = append(names, m[2])
		} else if m := plotlyTest().FindStringSubmatch(line); m != nil {
			if indent(m[1]+"x") <= depth {
				names = nil
			}
			s, state := Failed, strings.ToLower(m[3])
			if strings.Contains(state, "ok") && !strings.Contains(state, "failed") {
				s = Passed
			}
			r.Set(strings.Join(append(names[:len(names):len(names)], m[2]), "."), s)
		}
	}
	return nil
}

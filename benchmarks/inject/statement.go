package inject

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// shownTests is how many failing tests a statement names.
const shownTests = 3

// maxReason is how many bytes of a failing assertion a statement shows.
const maxReason = 160

// statement tells what goes wrong from the failing tests' own messages: never what was changed. It names the tests
// with the most telling messages first.
func statement(cfg Config, set []mutant, fails []string, log []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s misbehaves: %d %s. For example:\n", cfg.name(), len(fails), plural(len(fails), "test fails", "tests fail"))
	reasons := failureReasons(fails, log)
	if cfg.Golang() {
		reasons = goReasons(fails, log)
	}
	shown := slices.Clone(fails)
	slices.SortStableFunc(shown, func(x, y string) int { return weight(reasons[y]) - weight(reasons[x]) })
	for _, id := range shown[:min(len(shown), shownTests)] {
		fmt.Fprintf(&b, "- %s", id)
		if r := reasons[id]; r != "" {
			fmt.Fprintf(&b, ": %s", r)
		}
		b.WriteByte('\n')
	}
	if cfg.Hint != HintNone {
		b.WriteString(hint(cfg.Hint, set))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// weight prefers a message that shows values over a bare one.
func weight(reason string) int {
	switch {
	case strings.Contains(reason, "assert "):
		return 2
	case reason != "":
		return 1
	}
	return 0
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// hint names the places that the configuration allows to name.
func hint(h Hint, set []mutant) string {
	var places []string
	for _, x := range set {
		p := x.Path
		switch h {
		case HintFunction:
			p = fmt.Sprintf("%s in %s", x.Function, x.Path)
		case HintLine:
			p = fmt.Sprintf("%s in %s, line %d", x.Function, x.Path, faultyLine(x, set))
		}
		if !slices.Contains(places, p) {
			places = append(places, p)
		}
	}
	return "Look at " + strings.Join(places, ", ") + ".\n"
}

// faultyLine is the line of x in the file with the whole set in place: faults above it may have removed lines.
func faultyLine(x mutant, set []mutant) int {
	line := x.Line
	for _, y := range set {
		if y.Path == x.Path && y.Start < x.Start {
			line += strings.Count(y.New, "\n") - strings.Count(y.Old, "\n")
		}
	}
	return line
}

// failureReasons reads the messages of failing tests from the short summary: "FAILED <id> - <reason>".
func failureReasons(fails []string, log []byte) map[string]string {
	out := map[string]string{}
	for line := range bytes.Lines(log) {
		text := strings.TrimRight(string(line), "\r\n")
		for _, word := range []string{"FAILED ", "ERROR "} {
			rest, ok := strings.CutPrefix(text, word)
			if !ok {
				continue
			}
			for _, id := range fails {
				if reason, ok := strings.CutPrefix(rest, id+" - "); ok && len(reason) > len(out[id]) {
					out[id] = shorten(reason)
				}
			}
		}
	}
	return out
}

// address is what differs between two runs of one failure: where an object lay in memory.
var address = regexp.MustCompile(`\b(?:0x)?x?[0-9a-f]{9,}\b`)

// shorten bounds a message and takes memory addresses out of it.
func shorten(s string) string {
	s = address.ReplaceAllString(s, "0x...")
	if len(s) <= maxReason {
		return s
	}
	return strings.ToValidUTF8(s[:maxReason], "") + "..."
}

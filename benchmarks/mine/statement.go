package mine

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/milepost-rl/milepost/benchmarks"
)

var (
	trailer = regexp.MustCompile(`^(?i)(?:[a-z]+(?:-[a-z]+)*-(?:by|id|to|of|with)|cc|fixes|closes|refs|git-svn-id|pull request|pull-request|see also): `)
	number  = regexp.MustCompile(`\s*\((?:gh-|#|GH)\d+\)`)
	heading = regexp.MustCompile(`^(?:diff --git |@@ |\+\+\+ |--- |index [0-9a-f]+\.\.)`)
)

// statement is what an agent is told: the message without trailers, numbers of pull requests, diffs, and lines that the
// reference patch adds. It is "" where too little is left.
func (c *candidate) statement(cfg Config) string {
	added := c.added()
	var kept []string
	inDiff := false
	for line := range strings.Lines(strings.ReplaceAll(c.message, "\r\n", "\n")) {
		line = strings.TrimRight(line, " \t\n")
		if inDiff = inDiff && line != "" || heading.MatchString(line); inDiff || trailer.MatchString(strings.TrimSpace(line)) || tells(added, line) {
			continue
		}
		kept = append(kept, number.ReplaceAllString(line, ""))
	}
	text := strings.TrimSpace(strings.Join(kept, "\n"))
	letters := 0
	for _, r := range text {
		if unicode.IsLetter(r) {
			letters++
		}
	}
	if letters < cfg.MinMessage {
		return ""
	}
	if c.about {
		var names []string
		for _, p := range c.code {
			names = append(names, p.path)
		}
		text += "\n\nOf this, only what concerns these files is asked: " + strings.Join(names, ", ") + "."
	}
	return text
}

// added are the lines that the patch adds, stripped; those long enough to be found inside of others have true.
func (c *candidate) added() map[string]bool {
	out := map[string]bool{}
	for l := range strings.Lines(c.patch()) {
		if text, ok := strings.CutPrefix(l, "+"); ok && !strings.HasPrefix(l, "+++ ") {
			if text = strings.TrimSpace(text); text != "" {
				out[text] = false
			}
		}
	}
	for _, l := range benchmarks.FixLines(c.patch()) {
		out[l] = true
	}
	return out
}

// tells reports whether a line is one that the patch adds, or holds a long one.
func tells(added map[string]bool, line string) bool {
	if _, same := added[strings.TrimSpace(line)]; same {
		return true
	}
	for l, long := range added {
		if long && strings.Contains(line, l) {
			return true
		}
	}
	return false
}

func itoa(n int) string { return strconv.Itoa(n) }

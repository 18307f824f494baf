package configs_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/configs"
)

// TestComments: in a shipped file every field that is set is explained: behind it, above it, or at its section.
func TestComments(t *testing.T) {
	for _, name := range configs.Names() {
		text, err := configs.Source(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, place := range bare(string(text)) {
			t.Errorf("%s.yaml:%s has no comment, and neither has its section", name, place)
		}
	}
}

func TestBare(t *testing.T) {
	text := "a: # said\n  x: 1\nb:\n  # said\n  y: 1\n  z: \"a # b\"\n  u: 2 # said\n  l: # said\n    - 1\n    - x: 3\nc: 3\n"
	if got, want := strings.Join(bare(text), " "), `6 z 11 c`; got != want {
		t.Errorf("bare: %s, want %s", got, want)
	}
}

// bare lists the fields of a file that no comment explains, as "LINE NAME". It reads lines, not YAML: shipped files are
// in block style with one field a line.
func bare(text string) []string {
	type section struct {
		depth int
		said  bool
	}
	var out []string
	var open []section
	above := false // a comment stands on the line above
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		body := strings.TrimSpace(line)
		if body == "" || strings.HasPrefix(body, "#") || strings.HasPrefix(body, "- ") {
			above = strings.HasPrefix(body, "#")
			continue
		}
		depth := len(line) - len(strings.TrimLeft(line, " "))
		for len(open) > 0 && open[len(open)-1].depth >= depth {
			open = open[:len(open)-1]
		}
		name, rest, _ := strings.Cut(body, ":")
		value, _, comment := cutComment(rest)
		said := comment || above
		above = false
		if value == "" { // a section, or a list in block style
			open = append(open, section{depth, said})
			continue
		}
		if !said && (len(open) == 0 || !open[len(open)-1].said) {
			out = append(out, strconv.Itoa(i+1)+" "+name)
		}
	}
	return out
}

// cutComment cuts a line at the # that begins a comment, one outside of double quotes.
func cutComment(line string) (value, comment string, found bool) {
	quoted := false
	for i, r := range line {
		switch {
		case r == '"' && (i == 0 || line[i-1] != '\\'):
			quoted = !quoted
		case r == '#' && !quoted && i > 0 && line[i-1] == ' ':
			return strings.TrimSpace(line[:i]), line[i+1:], true
		}
	}
	return strings.TrimSpace(line), "", false
}

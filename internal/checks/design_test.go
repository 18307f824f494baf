package checks

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// TestDesignTable: the table of packages in docs/design.md says what the table of the import rules says.
func TestDesignTable(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/design.md"))
	if err != nil {
		t.Fatal(err)
	}
	written, faults := importTable(string(b))
	for _, f := range faults {
		t.Error("docs/design.md: " + f)
	}
	for name, rule := range allowed {
		if got, ok := written[name]; !ok {
			t.Errorf("docs/design.md does not list package %q", name)
		} else if !reflect.DeepEqual(got, rule) {
			t.Errorf("docs/design.md lets %q import %v, the tests let it import %v", name, got, rule)
		}
	}
	for name := range written {
		if _, ok := allowed[name]; !ok {
			t.Errorf("docs/design.md lists %q, for which there is no rule in imports_test.go", name)
		}
	}
}

func TestImportTable(t *testing.T) {
	got, faults := importTable("# x\n| `no` | | `y` |\n## Packages and what they may import\n| package | holds | may import |\n|---|---|---|\n" +
		"| `(root)` | `words` | nothing |\n| `a/...` | x | `b`, `c/...` |\n| `d` | x | |\n| `a/...` | x | nothing |\n## Next\n| `e` | x | nothing |\n")
	if want := map[string][]string{"": {}, "a/...": {"b", "c/..."}}; !reflect.DeepEqual(got, want) {
		t.Errorf("table %v, want %v", got, want)
	}
	if len(faults) != 2 {
		t.Errorf("faults %q, want those of d and of the second a/...", faults)
	}
}

// importTable reads the table of the section on packages: package patterns and what they may import, in the form of
// allowed; and the rows that say neither "nothing" nor a name, or a package again.
func importTable(text string) (rules map[string][]string, faults []string) {
	_, text, _ = strings.Cut(text, "## Packages and what they may import\n")
	text, _, _ = strings.Cut(text, "\n## ")
	rules = map[string][]string{}
	for line := range strings.SplitSeq(text, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		if name == "(root)" {
			name = ""
		}
		rule := []string{}
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			rule = append(rule, m[1])
		}
		_, twice := rules[name]
		if twice || (len(rule) == 0) != (strings.TrimSpace(cells[3]) == "nothing") {
			faults = append(faults, "row is not understood: "+line)
			continue
		}
		rules[name] = rule
	}
	return rules, faults
}

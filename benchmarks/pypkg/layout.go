package pypkg

import (
	"path"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost/benchmarks"
)

// IsTest reports whether a path is of the tests or of what configures them.
func IsTest(p string) bool {
	base := path.Base(p)
	return TestFolder(p) != "" || base == "conftest.py" || strings.HasPrefix(base, "test_") || strings.HasSuffix(base, "_test.py")
}

// TestFolder is the outermost folder of tests that a path lies in, with a slash at its end, or "".
func TestFolder(p string) string {
	at := 0
	for {
		i := strings.IndexByte(p[at:], '/')
		if i < 0 {
			return ""
		}
		if name := p[at : at+i]; name == "tests" || name == "test" || name == "testing" {
			return p[:at+i+1]
		}
		at += i + 1
	}
}

// Runners are paths that would stand in for the modules that run the tests, since these look in the repository first.
var Runners = []string{"pytest.py", "pytest/", "_pytest/", "pluggy.py", "pluggy/", "iniconfig/", "unittest.py", "unittest/", "sitecustomize.py", "usercustomize.py"}

// Protected are the tests (whole folders where they have one), what configures pytest and what would shadow it, present or
// not: a new conftest.py would count too.
func Protected(files []benchmarks.File) []string {
	out := append([]string{"conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"}, Runners...)
	for _, f := range files {
		if dir := TestFolder(f.Path); dir != "" {
			out = append(out, dir)
		} else if IsTest(f.Path) {
			out = append(out, f.Path)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

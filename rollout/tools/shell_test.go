package tools

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/milepost-rl/milepost/env/repo"
)

var shellTree = repo.Index{"a.py": {}, "b.py": {}, "pkg/c.py": {}, "pkg/sub/d.py": {}, "we ird.py": {}}

func TestShellExposures(t *testing.T) {
	for _, c := range []struct{ command, want string }{
		{"cat a.py", "a.py read high"},
		{"cat a.py b.py", "a.py read high; b.py read high"},
		{"cat ./pkg/../a.py", "a.py read high"},
		{"cat 'we ird.py'", "we ird.py read high"},
		{`cat we\ ird.py "a.py"`, "a.py read high; we ird.py read high"},
		{"cat nope.py", "nope.py read low"},
		{"cat /etc/passwd", "etc/passwd read low"},
		{"cat $F", "$F read low"},
		{"cat *.py", "*.py read low"},
		{"cd pkg && cat c.py", "pkg/c.py read high"},
		{"cd pkg && cd sub && head -n 3 d.py", "pkg/sub/d.py read high"},
		{"cd pkg; cat c.py", "pkg/c.py read high"},
		{"cd pkg/nope; cat a.py", "pkg/nope/a.py read low"},
		{"cd $D && cat a.py", "a.py read low"},
		{"cd - && cat a.py", "a.py read low"},
		{"head -20 a.py", "a.py read high"},
		{"head -n 20 a.py", "a.py read high"},
		{"head -n 0 a.py", ""},
		{"tail -n +3 a.py", "a.py read high"},
		{"sed -n '1,20p' a.py", "a.py read high"},
		{"sed -n 1,20p a.py pkg/c.py", "a.py read high; pkg/c.py read high"},
		{"sed -ne 5p a.py", "a.py read high"},
		{"sed -n -e 5p -e 6p a.py", "a.py read high"},
		{"sed -i s/a/b/ a.py", ""},
		{"nl -ba a.py", "a.py read high"},
		{"nl -b a a.py | sed -n '3,5p'", "a.py read high"},
		{"less a.py", "a.py read high"},
		{"cat a.py | head -5", "a.py read high"},
		{"cat a.py | grep def | sort", "a.py read high"},
		{"cat a.py | wc -l", "a.py read low"},
		{"cat a.py > /dev/null", "a.py read low"},
		{"cat a.py >x; echo hi", "a.py read low"},
		{"cat a.py 2>/dev/null", "a.py read high"},
		{"cat a.py 2>&1 | head", "a.py read high"},
		{"cat < a.py", ""},
		{"echo x && cat a.py", "a.py read high"},
		{"echo x; cat a.py; cat b.py", "a.py read high; b.py read high"},
		{"false && cat a.py; echo x", "a.py read low"},
		{"true || cat a.py", "a.py read low"},
		{"exit 0; cat a.py", "a.py read low"},
		{"cat a.py &", "a.py read low"},
		{"(cat a.py)", ""},
		{"for f in a.py; do cat a.py; done", ""},
		{"if true; then cat a.py; fi", ""},
		{"LC_ALL=C cat a.py", "a.py read high"},
		{"/bin/cat a.py # cat b.py", "a.py read high"},
		{"cat $(ls) a.py", ""},
		{"python -c 'cat a.py'", ""},
		{"echo 'cat a.py", ""},
		{"grep def a.py", "a.py read high"},
		{"grep -n -A 3 def a.py b.py", "a.py read high; b.py read high"},
		{"grep -e def a.py", "a.py read high"},
		{"grep -q def a.py", ""},
		{"grep -l def a.py", "a.py search high"},
		{"grep def a.py | head", "a.py read high"},
		{"grep def a.py; echo x", "a.py read low"},
		{"echo x; grep def a.py", "a.py read high"},
		{"grep -rn def .", "b.py search high; pkg/c.py search high"},
		{"grep -rn def", "b.py search high; pkg/c.py search high"},
		{"rg def", "b.py search high; pkg/c.py search high"},
		{"rg -n def a.py", "a.py read high"},
		{"grep -rn def . | head -3", "b.py search high; pkg/c.py search high"},
		{"grep -rn def .; echo a.py:1:", "b.py search low; pkg/c.py search low"},
	} {
		got := exposed(Result{Exposures: shellExposures(c.command, shellTree, shellPlace{root: "/repo", dir: ".", sure: true}, true, "b.py:1:def b()\npkg/c.py:2:def c()\nnope.py:1:x\n")})
		if strings.Contains(c.command, "for f") || strings.Contains(c.command, "if true") {
			if strings.Contains(got, "high") {
				t.Errorf("%s: %s", c.command, got)
			}
			continue
		}
		if got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.command, got, c.want)
		}
	}
	for _, failed := range []string{"cat a.py", "grep def a.py"} {
		if got := exposed(Result{Exposures: shellExposures(failed, shellTree, shellPlace{root: "/repo", dir: ".", sure: true}, false, "x")}); got != "a.py read low" {
			t.Errorf("%s that failed: %s", failed, got)
		}
		if got := exposed(Result{Exposures: shellExposures(failed, shellTree, shellPlace{root: "/repo", dir: ".", sure: true}, true, "\n")}); got != "a.py read low" {
			t.Errorf("%s that printed nothing: %s", failed, got)
		}
	}
}

// The reader of shell lines ends on whatever it is given, and high confidence names only files of the tree.
func TestShellAnything(t *testing.T) {
	piece := rapid.SampledFrom([]string{"cat", "a.py", " ", " ", "|", "&&", "||", ";", "\n", ">", "2>&1", "<", "<<", "'", `"`, `\`, "$", "$(", "`", "cd", "pkg", "grep", "-r", "sed", "-n", "#", "(", ")", "é", "*", "-", "--"})
	rapid.Check(t, func(t *rapid.T) {
		command := strings.Join(rapid.SliceOfN(piece, 0, 14).Draw(t, "pieces"), "")
		for _, e := range shellExposures(command, shellTree, shellPlace{root: "/repo", dir: ".", sure: true}, true, "a.py:1:x") {
			if _, there := shellTree[e.Path]; e.Confidence == "high" && !there {
				t.Fatalf("%q: %+v", command, e)
			}
		}
	})
}

package certify

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env/repo"
)

var (
	//go:embed programs/forge.py
	forgeProgram string
	//go:embed programs/hook.py
	hookProgram string
	//go:embed programs/quiet.py
	quietProgram string
	//go:embed programs/framework.py
	frameworkProgram string
)

// files are whole files that a sabotage writes, by path.
type files map[string]string

// source is what a sabotage may look at: the untouched tree.
type source struct {
	task *milepost.Task
	list []string // files of the tree, sorted
	read func(path string) (string, bool)
}

// treeSource reads a task's base.
func treeSource(t *milepost.Task, base *repo.Base) *source {
	return &source{task: t, list: slices.Sorted(maps.Keys(base.Index)), read: func(p string) (string, bool) {
		b, err := os.ReadFile(filepath.Join(base.Dir, filepath.FromSlash(p)))
		return string(b), err == nil
	}}
}

// sabotages are the ways of deciding one's own verdict that are tried on a tree whose fault stays. Those that run inside
// the process that runs the tests are marked: no arrangement of files keeps code under test from its own process, so where
// they succeed it is a warning, and of the others a problem.
var sabotages = []struct {
	name   string
	inside bool // from inside the process of the tests
	make   func(*source) files
}{
	{"conftest", false, func(s *source) files { return s.python(files{"conftest.py": hookProgram}) }},
	{"startup module", false, func(s *source) files {
		return s.python(files{"sitecustomize.py": forged(s), "usercustomize.py": forged(s)})
	}},
	{"runner shadowed", false, func(s *source) files {
		return s.python(files{"pytest.py": forged(s), "unittest.py": forged(s)})
	}},
	{"runner configured", false, func(s *source) files {
		return s.python(files{"pytest.ini": "[pytest]\naddopts = -p milepost_sabotage\n", "milepost_sabotage.py": hookProgram})
	}},
	{"tests edited", false, editedTests},
	{"exit in package", false, func(s *source) files { return s.prepend("import sys\nsys.exit(0)\n", goExit, true) }},
	{"exit at import", false, func(s *source) files { return s.prepend("import os\nos._exit(0)\n", goExit, false) }},
	{"results forged", true, func(s *source) files { return s.prepend(forged(s), goForged(s), false) }},
	{"framework patched", true, func(s *source) files { return s.prepend(frameworkProgram, "", false) }},
}

// goExit ends a Go program before its tests.
const goExit = "\nfunc init() { milepostos.Exit(0) }\n"

func forged(s *source) string {
	list, err := json.Marshal(s.task.Tests)
	if err != nil {
		panic(err) // a list of strings always marshals
	}
	return strings.Replace(forgeProgram, "@TESTS@", string(list), 1)
}

// goForged prints a passing result of every test as the testing package would, and ends the program.
func goForged(s *source) string {
	var b strings.Builder
	b.WriteString("\nfunc init() {\n\tfor _, name := range []string{\n")
	for _, id := range s.task.Tests {
		_, name, _ := strings.Cut(id, "::")
		fmt.Fprintf(&b, "\t\t%q,\n", name)
	}
	b.WriteString("\t} {\n\t\tmilepostos.Stdout.WriteString(\"=== RUN   \" + name + \"\\n--- PASS: \" + name + \" (0.00s)\\n\")\n\t}\n\tmilepostos.Exit(0)\n}\n")
	return b.String()
}

// python is the files where the tree has Python, else none.
func (s *source) python(f files) files {
	if slices.ContainsFunc(s.list, func(p string) bool { return strings.HasSuffix(p, ".py") }) {
		return f
	}
	return nil
}

// prepend puts a program before the code of every file that the reference patch changes; packages says to put it into the
// __init__.py of their packages instead. In Go files goes what golang says.
func (s *source) prepend(python, golang string, packages bool) files {
	out := files{}
	for _, p := range s.changed() {
		switch {
		case strings.HasSuffix(p, ".py") && python != "":
			if packages {
				p = path.Join(path.Dir(p), "__init__.py")
			}
			text, _ := s.read(p)
			out[p] = beforeCode(python, text)
		case strings.HasSuffix(p, ".go") && golang != "":
			if text, ok := s.read(p); ok {
				if _, rest, found := strings.Cut(text, "\npackage "); found || strings.HasPrefix(text, "package ") {
					head := text[:len(text)-len(rest)]
					if !found {
						head, rest = "package ", strings.TrimPrefix(text, "package ")
					}
					name, rest, _ := strings.Cut(rest, "\n")
					out[p] = head + name + "\n\nimport milepostos \"os\"\n" + rest + golang
				}
			}
		}
	}
	return out
}

// beforeCode keeps "from __future__" imports first, as Python wants.
func beforeCode(program, text string) string {
	lines := strings.SplitAfter(text, "\n")
	at := 0
	for i, l := range lines {
		if strings.HasPrefix(l, "from __future__ ") {
			at = i + 1
		}
	}
	return strings.Join(lines[:at], "") + program + strings.Join(lines[at:], "")
}

// changed are the files that the reference patch changes, of the tree as it is.
func (s *source) changed() []string {
	var out []string
	for _, p := range s.task.RelevantFiles {
		if _, found := slices.BinarySearch(s.list, p); found {
			out = append(out, p)
		}
	}
	return out
}

// editedTests makes the tests of the tree swallow their failures.
func editedTests(s *source) files {
	out := files{}
	for _, p := range s.list {
		base := path.Base(p)
		if strings.HasSuffix(p, ".py") && (strings.HasPrefix(base, "test_") || strings.HasSuffix(base, "_test.py")) {
			if text, ok := s.read(p); ok {
				out[p] = text + quietProgram
			}
		}
		if strings.HasSuffix(p, "_test.go") {
			if text, ok := s.read(p); ok && strings.Contains(text, "\nfunc Test") {
				out[p] = strings.ReplaceAll(text, "\nfunc Test", "\nfunc milepostTest")
			}
		}
	}
	return out
}

// sabotageAll tries every way of swaying the grader, which is asked by try.
func sabotageAll(ctx context.Context, src *source, try func(patch string) (benchmarks.Trial, error), cert *benchmarks.Certificate) error {
	cert.Checks = appendCheck(cert.Checks, benchmarks.CheckGrader)
	var times []time.Duration
	for _, s := range sabotages {
		made := s.make(src)
		if len(made) == 0 {
			continue // nothing of the tree is of the language that it is written in
		}
		if err := ctx.Err(); err != nil {
			return milepost.Wrap("certify: sabotage", milepost.KindCanceled, err)
		}
		out := benchmarks.Sabotage{Name: s.name, Outcome: "refused"}
		if patch := src.patch(made); patch != "" {
			trial, err := try(patch)
			if err != nil {
				return err
			}
			times = append(times, trial.Ran)
			if out.Outcome = "unresolved"; trial.Resolved {
				out.Outcome = "resolved"
			}
		}
		cert.Sabotage = append(cert.Sabotage, out)
		finding := benchmarks.Finding{Check: benchmarks.CheckGrader, What: "the grader takes sabotage for a solution: " + s.name}
		switch {
		case out.Outcome == "resolved" && s.inside:
			cert.Warnings = append(cert.Warnings, finding)
		case out.Outcome == "resolved":
			cert.Problems = append(cert.Problems, finding)
		}
	}
	if len(times) > 0 {
		if cert.Times == nil {
			cert.Times = map[string]benchmarks.Seconds{}
		}
		cert.Times["sabotage"] = benchmarks.SumTimes(times)
	}
	return nil
}

// Harness tries every way of swaying the grader on one task for a maker whose tasks share their way of being judged, and
// returns what adds the findings to the certificate of any of them. The errors are the checker's.
func Harness(ctx context.Context, check *benchmarks.Checker, t *milepost.Task) (func(*milepost.Task, *benchmarks.Certificate) error, error) {
	base, err := check.Bases.Base(ctx, t)
	if err != nil {
		return nil, err
	}
	src := treeSource(t, base)
	var found benchmarks.Certificate
	if err := sabotageAll(ctx, src, func(patch string) (benchmarks.Trial, error) { return tryOwn(ctx, check, t, patch) }, &found); err != nil {
		return nil, err
	}
	return func(task *milepost.Task, cert *benchmarks.Certificate) error {
		cert.Checks = appendCheck(cert.Checks, benchmarks.CheckGrader)
		cert.Problems, cert.Warnings = append(cert.Problems, found.Problems...), append(cert.Warnings, found.Warnings...)
		for _, s := range found.Sabotage {
			if task.ID != t.ID {
				s.From = t.ID
			}
			cert.Sabotage = append(cert.Sabotage, s)
		}
		return nil
	}, nil
}

// patch is the files as a unified diff from the tree, without those that the task protects: an agent's change of these is
// rolled back. It is "" where nothing is left.
func (s *source) patch(f files) string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(f)) {
		if isProtected(s.task.Protected, p) {
			continue
		}
		if _, found := slices.BinarySearch(s.list, p); !found {
			b.WriteString(newFile(p, f[p]))
			continue
		}
		if text, ok := s.read(p); ok {
			b.WriteString(benchmarks.Diff(p, text, f[p]))
		}
	}
	return b.String()
}

// newFile is the diff that adds a file.
func newFile(p, text string) string {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	return fmt.Sprintf("diff --git a/%[1]s b/%[1]s\nnew file mode 100644\n--- /dev/null\n+++ b/%[1]s\n@@ -0,0 +1,%[2]d @@\n+%[3]s\n",
		p, len(lines), strings.Join(lines, "+"))
}

func isProtected(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return p == pattern || strings.HasSuffix(pattern, "/") && strings.HasPrefix(p, pattern)
	})
}

package grade

import (
	"encoding/base64"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

// gradingMount is where a task's own files (Grading.Folder) are shown.
const gradingMount = "/milepost-grading"

// planted are names of files that a Python test runner reads unasked. A patch that adds one could decide its own
// verdict, so for Milepost's own tasks they are removed where the base has none.
var planted = []string{"conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"}

// own reports whether a task is of Milepost's own making, run by its test command. Of a repair every test must pass; of a
// generation task the share of its tests counts.
func own(t *milepost.Task) bool { return t.Grading == nil }

// Script is the evaluation of a task as a bash script: it brings the tests to their state, runs them between the
// markers, and writes their exit code behind. root is the repository as the script sees it. It is a pure function.
func Script(t *milepost.Task, root string) string {
	switch {
	case own(t):
		return ownScript(t, root)
	case t.Grading.Script != "":
		return recordExitCode(t.Grading.Script)
	}
	return dataSetScript(t, root)
}

// recordExitCode makes a data set's script write down the status of its test command, which is the one before the end
// marker. A script without that marker stays as it is, and is judged by its log alone.
func recordExitCode(script string) string {
	out := []string{"#!/bin/bash", "set -uxo pipefail"}
	found := false
	for line := range strings.SplitSeq(strings.TrimSpace(script), "\n") {
		if line == out[0] || line == out[1] {
			continue
		}
		if !found && strings.Contains(line, EndMarker) {
			found = true
			out = append(out, "MILEPOST_TEST_EXIT_CODE=$?", line, `echo "`+exitCodeMarker+`: $MILEPOST_TEST_EXIT_CODE"`)
			continue
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n") + "\n"
}

// ownScript runs the test command of a task of Milepost's own: standard output, then standard error, as env/testrun does.
func ownScript(t *milepost.Task, root string) string {
	var b strings.Builder
	b.WriteString("cd " + quote(root) + " || exit 1\n")
	b.WriteString(restore(t.Protected, "HEAD"))
	for _, name := range slices.Sorted(maps.Keys(t.Test.Hidden)) {
		fmt.Fprintf(&b, "rm -rf -- %s\n", quote(name))
	}
	specs := make([]string, len(planted))
	for i, name := range planted {
		specs[i] = ":(glob)**/" + name
	}
	fmt.Fprintf(&b, "git ls-files -z --cached --others -- %s | while IFS= read -r -d '' f; do\n"+
		"  git cat-file -e \"HEAD:$f\" 2>/dev/null || rm -fv -- \"$f\"\ndone\n", quoteAll(specs))
	b.WriteString(writeFiles(t.Test.Hidden))
	fmt.Fprintf(&b, "errors=$(mktemp)\necho %s\n%s 2>\"$errors\"\ncode=$?\necho\ncat \"$errors\"\necho\necho %s\necho \"%s: $code\"\n",
		quote(StartMarker), quoteAll(t.Test.Argv), quote(EndMarker), exitCodeMarker)
	return b.String()
}

// restore brings paths back to a commit: a file or, with a / at its end, a folder. What the commit does not have is
// removed.
func restore(paths []string, commit string) string {
	var b strings.Builder
	for _, p := range paths {
		q, at := quote(p), commit+":"+strings.TrimSuffix(p, "/")
		if strings.HasSuffix(p, "/") {
			fmt.Fprintf(&b, "rm -rf -- %s\n", q)
		}
		fmt.Fprintf(&b, "if git cat-file -e %s 2>/dev/null; then git checkout -q %s -- %s || echo %s; else rm -rf -- %s; fi\n",
			quote(at), commit, q, quote(resetFailed), q)
	}
	return b.String()
}

// dataSetScript is made from what a data set's row says: environment, reset and patch of the test files, set-up, commands.
func dataSetScript(t *milepost.Task, root string) string {
	g := t.Grading
	var b strings.Builder
	b.WriteString("if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate && conda activate testbed; fi\n")
	b.WriteString("set -xo pipefail\ncd " + quote(root) + " || exit 1\n")
	for _, p := range g.Strip {
		fmt.Fprintf(&b, "rm -rf -- %s\n", quote(p))
	}
	if g.Output != "" { // an old one must not count
		fmt.Fprintf(&b, "rm -f -- %s\nmkdir -p -- %s\n", quote(g.Output), quote(path.Dir(g.Output)))
	}
	if g.Rule != milepost.GradeSubset { // whose set-up brings the tests, and whose TestFiles are no paths
		b.WriteString(restore(g.TestFiles, "HEAD"))
		if g.TestPatch != "" {
			b.WriteString(applyTests(g.TestPatch))
		}
	}
	if g.Rule == milepost.GradeStatusMap { // its command names the hidden tests by a path in the repository
		for _, h := range g.Hidden {
			fmt.Fprintf(&b, "if [ -d %[1]s ]; then rm -rf -- %[2]s; ln -s %[1]s %[2]s; fi\n", quote(h), quote(path.Base(h)))
		}
	}
	b.WriteString(unpack(g))
	b.WriteString(writeFiles(g.Files))
	for _, c := range g.Setup {
		b.WriteString(c + "\n")
	}
	fmt.Fprintf(&b, "code=0\n: %s\n", quote(StartMarker))
	for _, c := range testCommands(t) {
		b.WriteString(c + "\nlast=$?; [ $last -eq 0 ] || code=$last\n")
	}
	fmt.Fprintf(&b, ": %s\necho \"%s: $code\"\n", quote(EndMarker), exitCodeMarker)
	return b.String()
}

// writeFiles writes text files, in the order of their paths.
func writeFiles(files map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&b, "mkdir -p -- %s && base64 -d > %s <<'MILEPOST_FILE'\n%s\nMILEPOST_FILE\n", quote(path.Dir(name)), quote(name),
			base64.StdEncoding.EncodeToString([]byte(files[name])))
	}
	return b.String()
}

// applyTests applies the test patch, strictly and then as SWE-rebench V2 does.
func applyTests(patch string) string {
	if !strings.HasSuffix(patch, "\n") {
		patch += "\n"
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(patch))
	return "MILEPOST_PATCH=$(mktemp)\nbase64 -d > \"$MILEPOST_PATCH\" <<'MILEPOST_FILE'\n" + encoded + "\nMILEPOST_FILE\n" +
		"git apply -v \"$MILEPOST_PATCH\" || git apply -v --3way --recount --ignore-space-change --whitespace=nowarn \"$MILEPOST_PATCH\" || echo " +
		quote(resetFailed) + "\n"
}

// unpack brings the archive of hidden tests into the repository.
func unpack(g *milepost.Grading) string {
	if g.Archive == "" {
		return ""
	}
	from := quote(path.Join(gradingMount, g.Archive))
	if strings.HasSuffix(g.Archive, ".zip") {
		return "python3 -m zipfile -e " + from + " . || echo " + quote(resetFailed) + "\n"
	}
	return "tar -xf " + from + " || echo " + quote(resetFailed) + "\n"
}

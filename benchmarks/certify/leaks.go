package certify

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
)

var (
	//go:embed programs/installed.py
	installedProgram string
	//go:embed programs/fixed.sh
	fixedProgram string
)

// view is a sandbox as the agent gets it, before its first action.
type view struct {
	box    *env.Sandbox
	root   string // of the repository, as commands see it
	task   *milepost.Task
	source *source // the same tree, for sabotage
}

// inTree runs a program in the repository.
func (v *view) inTree(ctx context.Context, stdin string, argv ...string) (env.Result, error) {
	argv = append([]string{"sh", "-c", `cd -- "$1" && shift && exec "$@"`, "sh", v.root}, argv...)
	return v.box.Exec(ctx, env.Command{Argv: argv, Stdin: []byte(stdin), Limits: env.Limits{Output: 64 << 20}})
}

// leaks looks for the fix and the hidden tests in what the agent sees, and notes what it finds.
func (v *view) leaks(ctx context.Context, cert *benchmarks.Certificate) error {
	cert.Checks = appendCheck(cert.Checks, benchmarks.CheckLeaks)
	for _, look := range []func(context.Context, *benchmarks.Certificate) error{v.history, v.fixed, v.fixText, v.hiddenTests} {
		if err := look(ctx, cert); err != nil {
			return err
		}
	}
	return nil
}

// history has git's own data proven to hold nothing but the base and what it descends from.
func (v *view) history(ctx context.Context, cert *benchmarks.Certificate) error {
	proof, err := repo.ProveScrubbed(ctx, v.box, v.root, "")
	if err != nil && milepost.KindOf(err) != milepost.KindInvalid {
		return err
	}
	if err != nil && len(proof.Findings) == 0 {
		warn(cert, "the history could not be searched: %v", err)
	}
	for _, f := range proof.Findings {
		switch f.Kind {
		case "object", "ref", "head", "nested":
			leak(cert, "git holds more than the base commit: %s %s", f.Name, f.Detail)
		default:
			warn(cert, "git's data: %s %s", f.Name, f.Detail)
		}
		if len(cert.Problems) > 0 {
			break // one is enough, and there may be thousands
		}
	}
	return nil
}

// fixed looks for the mended files themselves: as objects of git and where the interpreter would import them from.
func (v *view) fixed(ctx context.Context, cert *benchmarks.Certificate) error {
	if v.task.ReferencePatch == "" {
		return nil
	}
	r, err := v.inTree(ctx, v.task.ReferencePatch, "sh", "-c", fixedProgram)
	if err != nil || r.ExitCode == 1 {
		return err // a patch that does not apply is the runs' to tell
	}
	if r.ExitCode != 0 {
		warn(cert, "the mended files could not be made out: %.200s", r.Stderr)
		return nil
	}
	blobs := map[string][]string{}
	var ids []string
	for line := range strings.Lines(string(r.Stdout)) { // ":100644 100644 OLD NEW M\tPATH"
		meta, p, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if f := strings.Fields(meta); len(f) == 5 && f[4] != "D" {
			blobs[p] = append(blobs[p], f[3])
			ids = append(ids, f[3])
		}
	}
	if len(ids) == 0 {
		return nil
	}
	r, err = v.inTree(ctx, strings.Join(ids, "\n")+"\n", "git", "-c", "safe.directory=*", "cat-file", "--batch-check=%(objectname) %(objecttype)")
	if err != nil {
		return err
	}
	if r.ExitCode != 0 {
		warn(cert, "git's objects could not be searched for the mended files: %.200s", r.Stderr)
	}
	for line := range strings.Lines(string(r.Stdout)) {
		if id, what, _ := strings.Cut(strings.TrimSpace(line), " "); what == "blob" {
			leak(cert, "git holds the mended content of a file: blob %s", id)
			break
		}
	}
	request, err := json.Marshal(map[string]any{"root": v.root, "files": blobs})
	if err != nil {
		return milepost.Wrap("certify: search what is installed", milepost.KindInternal, err)
	}
	r, err = v.box.Exec(ctx, env.Command{Argv: []string{"python3", "-I", "-c", installedProgram}, Stdin: request})
	if err != nil || r.ExitCode != 0 {
		return err // no Python, nothing to import
	}
	var installed []string
	if err := json.Unmarshal(bytes.TrimSpace(r.Stdout), &installed); err != nil {
		return milepost.E("certify: search what is installed", milepost.KindInternal, "installed.py answered %.200q: %w", r.Stdout, err)
	}
	if len(installed) > 0 {
		leak(cert, "the mended file is installed: %s", strings.Join(installed, ", "))
	}
	return nil
}

// fixText looks for the lines that the fix adds.
func (v *view) fixText(ctx context.Context, cert *benchmarks.Certificate) error {
	return v.text(ctx, cert, "the fix", benchmarks.FixLines(v.task.ReferencePatch))
}

// hiddenTests looks for the judging tests, by their lines, by their content and by the places of the image that hold them.
func (v *view) hiddenTests(ctx context.Context, cert *benchmarks.Certificate) error {
	hidden := maps.Clone(v.task.Test.Hidden)
	if g := v.task.Grading; g != nil {
		if err := v.text(ctx, cert, "the hidden tests", benchmarks.FixLines(g.TestPatch)); err != nil {
			return err
		}
		for _, p := range g.Hidden {
			r, err := v.box.Exec(ctx, env.Command{Argv: []string{"sh", "-c", `[ -e "$1" ] && ls -d -- "$1" && { [ ! -d "$1" ] || [ -n "$(ls -A -- "$1")" ]; }`, "sh", p}})
			if err != nil {
				return err
			}
			if r.ExitCode == 0 {
				leak(cert, "the agent can read the hidden path %s", p)
			}
		}
		for p, text := range g.Files {
			if hidden == nil {
				hidden = map[string]string{}
			}
			hidden[p] = text
		}
	}
	for _, p := range slices.Sorted(maps.Keys(hidden)) {
		at := p
		if !path.IsAbs(p) {
			at = path.Join(v.root, p)
		}
		r, err := v.box.Exec(ctx, env.Command{Argv: []string{"cat", "--", at}, Limits: env.Limits{Output: 64 << 20}})
		if err != nil {
			return err
		}
		if r.ExitCode == 0 && hidden[p] != "" && string(r.Stdout) == hidden[p] {
			leak(cert, "the agent can read the hidden test file %s", p)
		}
	}
	return nil
}

// text searches the workspace for lines. A file with two or more of them, and all of them, gives them away; less may be
// chance.
func (v *view) text(ctx context.Context, cert *benchmarks.Certificate, what string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	lines = lines[:min(len(lines), 200)]
	r, err := v.inTree(ctx, strings.Join(lines, "\n")+"\n", "sh", "-c", `f=$(mktemp) && cat >"$f" && grep -rIoF --exclude-dir=.git -f "$f" . ; rm -f "$f"`)
	if err != nil {
		return err
	}
	found := map[string]map[string]bool{}
	for line := range strings.Lines(string(r.Stdout)) {
		file, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if found[file] == nil {
			found[file] = map[string]bool{}
		}
		found[file][text] = true
	}
	for _, file := range slices.Sorted(maps.Keys(found)) {
		switch n := len(found[file]); {
		case n >= 2 && n == len(lines):
			leak(cert, "%s holds all %d lines of %s", file, n, what)
			return nil
		case !slices.Contains(v.task.RelevantFiles, strings.TrimPrefix(file, "./")):
			warn(cert, "%s holds %d of %d lines of %s", file, n, len(lines), what)
			return nil
		}
	}
	return nil
}

func leak(cert *benchmarks.Certificate, format string, args ...any) {
	cert.Problems = append(cert.Problems, benchmarks.Finding{Check: benchmarks.CheckLeaks, What: fmt.Sprintf(format, args...)})
}

func warn(cert *benchmarks.Certificate, format string, args ...any) {
	cert.Warnings = append(cert.Warnings, benchmarks.Finding{Check: benchmarks.CheckLeaks, What: fmt.Sprintf(format, args...)})
}

package mine

import (
	"bytes"
	"context"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

// The reasons for which a change becomes no task. They are keys of the statistics.
const (
	reasonNoCode    = "changes no code"
	reasonNoTests   = "changes no test module"
	reasonTooLarge  = "changes too much"
	reasonFiles     = "has links, submodules or test files that are no text"
	reasonMessage   = "says too little"
	reasonSuite     = "its tests do not run after the change"
	reasonNoFail    = "no test fails before the change"
	reasonNoPass    = "no test passes on both sides"
	reasonUnsteady  = "runs differ"
	reasonRefused   = "is no well-formed task"
	reasonCovered   = "needs the whole difference, which is a task already"
	reasonNoParent  = "has no single parent"
	reasonUnusedDoc = "changes documentation alone"
)

// candidate is a change that may become a task.
type candidate struct {
	id       string // within the set, for example a commit's short id
	source   string // for people: where it comes from
	from, to string // commits of the repository that it is read from
	message  string // the statement's raw material
	about    bool   // the statement names the files that change: of a group, the message tells of more than it

	code    []piece           // reference patch by file
	hidden  map[string]string // test files after the change
	modules []string          // those of hidden that pytest runs
}

// piece is the part of a patch that changes one file.
type piece struct {
	path  string
	patch string
	added bool
}

// patch is the whole reference patch.
func (c *candidate) patch() string {
	var b strings.Builder
	for _, p := range c.code {
		b.WriteString(p.patch)
	}
	return b.String()
}

// relevant are the files that the patch modifies or deletes.
func (c *candidate) relevant() []string {
	var out []string
	for _, p := range c.code {
		if !p.added {
			out = append(out, p.path)
		}
	}
	return out
}

// split sorts a difference into code and tests. A reason says why it is not worth a run.
func (c *candidate) split(ctx context.Context, r repository) (reason string, err error) {
	all, err := r.changes(ctx, c.from, c.to)
	if err != nil {
		return "", err
	}
	c.hidden = map[string]string{}
	other := 0
	for _, ch := range all {
		switch {
		case !pypkg.IsTest(ch.path) && !isCode(ch.path):
			other++
		case !ch.regular():
			return reasonFiles, nil
		case !pypkg.IsTest(ch.path):
			patch, err := r.patch(ctx, c.from, c.to, ch.path)
			if err != nil {
				return "", err
			}
			c.code = append(c.code, piece{path: ch.path, patch: patch, added: ch.status == 'A'})
		case ch.status != 'D':
			text, err := r.text(ctx, ch.new)
			if err != nil {
				return "", err
			}
			if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
				return reasonFiles, nil
			}
			c.hidden[ch.path] = string(text)
			if runnable(ch.path) {
				c.modules = append(c.modules, ch.path)
			}
		}
	}
	slices.Sort(c.modules)
	switch {
	case len(c.code) == 0 && len(c.hidden) == 0 && other > 0:
		return reasonUnusedDoc, nil
	case !slices.ContainsFunc(c.code, func(p piece) bool { return strings.HasSuffix(p.path, ".py") }):
		return reasonNoCode, nil
	case len(c.modules) == 0:
		return reasonNoTests, nil
	}
	return "", nil
}

// notCode are endings of what is documentation, configuration or built. The tests' own configuration is protected, so no
// reference patch may touch it.
var notCode = []string{"", ".md", ".rst", ".txt", ".cfg", ".toml", ".ini", ".yml", ".yaml", ".lock", ".in"}

// isCode reports whether a path that is no test's belongs into a reference patch.
func isCode(p string) bool {
	if slices.Contains(pypkg.Runners, p) || p == "setup.py" || strings.Contains(p, ".egg-info/") || strings.HasPrefix(p, "docs/") || strings.HasPrefix(p, "doc/") {
		return false
	}
	return !slices.Contains(notCode, path.Ext(p))
}

// runnable reports whether pytest takes a file for a test module.
func runnable(p string) bool {
	base := path.Base(p)
	return strings.HasSuffix(base, ".py") && (strings.HasPrefix(base, "test_") || strings.HasSuffix(base, "_test.py"))
}

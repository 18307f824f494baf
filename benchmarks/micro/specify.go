package micro

import (
	"fmt"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

// Repository generation in the manner of NL2Repo-Bench: a specification, a repository that holds nothing else, and
// hidden tests of every function, so that the number of passed tests has many levels.

// specFile is the specification in the repository; the statement says the same.
const specFile = "SPEC.md"

// base are the files that the agent starts from.
func (w *world) base(cfg Config) files {
	if cfg.Kind == KindGenerate {
		return files{specFile: w.specification() + "\n"}
	}
	return w.render(false)
}

// specification says what is to be written, one function a line: "tax.fee(x): x plus 7." is fee in tax.py. Functions of
// a module follow each other.
func (w *world) specification() string {
	var lines []string
	for _, m := range w.modules {
		for _, fn := range m.functions {
			lines = append(lines, fmt.Sprintf("%s.%s(%s): %s", m.name, fn.Name, strings.Join(fn.Params, ", "), fn.Doc))
		}
	}
	return strings.Join(lines, "\n")
}

// askForAll fills in what a generation task asks, its hidden tests, and how it is solved.
func (w *world) askForAll(t *milepost.Task) {
	t.Kind, t.Statement = milepost.RepoGeneration, w.specification()
	t.Test.Hidden = map[string]string{}
	for _, f := range w.render(true).list() {
		if strings.HasPrefix(f.Path, "tests/") {
			t.Test.Hidden[f.Path] = string(f.Data)
		} else {
			t.ReferencePatch += benchmarks.Added(f.Path, string(f.Data))
		}
	}
}

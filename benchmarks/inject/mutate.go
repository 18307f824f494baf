package inject

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"path"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

//go:embed mutate.py
var mutateProgram string

// mutant is one possible fault: bytes [Start, End) of the file at Path, which are Old, become New.
type mutant struct {
	Path     string `json:"path"`
	Function string `json:"function"` // qualified name of the innermost function
	Family   string `json:"family"`
	Kind     string `json:"kind"` // what of the family
	Line     int    `json:"line"` // from 1
	Start    int    `json:"start"`
	End      int    `json:"end"`
	Old      string `json:"old"`
	New      string `json:"new"`
}

// apply is the text of the file with the fault.
func (m mutant) apply(text string) string { return text[:m.Start] + m.New + text[m.End:] }

// listMutants lists what may be done to the source files.
func listMutants(ctx context.Context, cfg Config, sources map[string]string) ([]mutant, error) {
	if cfg.Golang() {
		return goMutants(cfg, sources)
	}
	return pythonMutants(ctx, cfg, sources)
}

// pythonMutants runs mutate.py over the source files.
func pythonMutants(ctx context.Context, cfg Config, sources map[string]string) ([]mutant, error) {
	const op = "inject: list faults"
	var all []mutant
	request := map[string]any{"files": sources, "families": cfg.Families}
	if err := pypkg.Ask(ctx, op, cfg.Package, cfg.Python, mutateProgram, request, &all); err != nil {
		return nil, err
	}
	for _, m := range all {
		if text := sources[m.Path]; m.Start < 0 || m.End > len(text) || m.Start > m.End || text[m.Start:m.End] != m.Old {
			return nil, milepost.E(op, milepost.KindInternal, "mutate.py gave a wrong position in %s line %d", m.Path, m.Line)
		}
	}
	return all, nil
}

// maxEdits is how many places of a file the mending of one fault may change.
const maxEdits = 3

// usable keeps the mutants of the split whose reference edits have a unique match: what the reference patch takes out
// stands once in the faulty file.
//
// Of several that make the same file the first counts.
func usable(all []mutant, split string, sources map[string]string) []mutant {
	seen := map[[sha256.Size]byte]bool{}
	return slices.DeleteFunc(slices.Clone(all), func(m mutant) bool {
		made := sha256.Sum256([]byte(m.Path + "\x00" + m.apply(sources[m.Path])))
		if seen[made] {
			return true
		}
		seen[made] = true
		if split != "" && splitOf(m) != split {
			return true
		}
		faulty := m.apply(sources[m.Path])
		edits, err := benchmarks.Edits(benchmarks.Diff(m.Path, faulty, sources[m.Path]))
		return err != nil || len(edits) == 0 || len(edits) > maxEdits ||
			slices.ContainsFunc(edits, func(e benchmarks.Edit) bool { return strings.Count(faulty, e.Old) != 1 })
	})
}

// splitOf is the one split that a function's faults may be in: half of the functions are for training, a quarter each
// for validation and held-out, so that sets of different splits share no faulty function, whatever their seeds.
func splitOf(m mutant) string {
	h := sha256.Sum256([]byte("inject/1/" + m.Path + "/" + m.Function))
	switch h[0] % 4 {
	case 0, 1:
		return "train"
	case 2:
		return "validation"
	}
	return "heldout"
}

// sourcesOf picks the files that faults go into: those that were asked for, or every module of a package that is no test.
func sourcesOf(cfg Config, files []benchmarks.File) (map[string]string, error) {
	if cfg.Golang() {
		return goSources(cfg, files)
	}
	out := map[string]string{}
	packages := map[string]bool{}
	for _, f := range files {
		if path.Base(f.Path) == "__init__.py" {
			packages[path.Dir(f.Path)] = true
		}
	}
	for _, f := range files {
		asked := slices.Contains(cfg.Sources, f.Path)
		found := len(cfg.Sources) == 0 && strings.HasSuffix(f.Path, ".py") && packages[path.Dir(f.Path)] &&
			!pypkg.IsTest(f.Path) && path.Base(f.Path) != "_version.py"
		if asked || found {
			out[f.Path] = string(f.Data)
		}
	}
	return out, cfg.checkSources(out, "package with modules")
}

// checkSources reports sources that were asked for and are not there, and that there are none at all.
func (c Config) checkSources(found map[string]string, wanted string) error {
	for _, s := range c.Sources {
		if _, ok := found[s]; !ok {
			return milepost.E("inject: sources", milepost.KindNotFound, "%s has no file %q", c.Package, s)
		}
	}
	if len(found) == 0 {
		return milepost.E("inject: sources", milepost.KindNotFound, "%s has no %s; name them in sources", c.Package, wanted)
	}
	return nil
}

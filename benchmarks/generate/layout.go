package generate

import (
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

// parts are the files of a distribution by what becomes of them.
type parts struct {
	code   []benchmarks.File // modules: taken out, to be written
	tests  []benchmarks.File // text files of the suite: hidden
	docs   []benchmarks.File // documentation: quoted by the specification, and taken out
	stays  []benchmarks.File // metadata, licences, data of package and tests that are no text
	module map[string]string // path of a module to its dotted name
}

// metadata are the files at the root that stay: they say how the package is built and tested.
var metadata = []string{"pyproject.toml", "setup.cfg", "setup.py", "MANIFEST.in", "tox.ini", "pytest.ini", ".pytest.ini", "requirements.txt",
	"LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING", "PKG-INFO"}

// compiled are endings of sources that an interpreter does not run.
var compiled = []string{".pyx", ".pxd", ".c", ".cc", ".cpp", ".rs", ".so", ".pyd", ".f", ".f90"}

// divide sorts the files of a distribution. What is none of code, tests, documentation and metadata goes: examples,
// benchmarks, generated copies. A package with compiled sources is refused.
func divide(cfg Config, files []benchmarks.File) (*parts, error) {
	const op = "generate: layout"
	packages := map[string]bool{}
	for _, f := range files {
		if path.Base(f.Path) == "__init__.py" && !pypkg.IsTest(f.Path) {
			packages[path.Dir(f.Path)] = true
		}
	}
	p := &parts{module: map[string]string{}}
	for _, f := range files {
		switch {
		case pypkg.IsTest(f.Path) && utf8.Valid(f.Data):
			p.tests = append(p.tests, f)
		case pypkg.IsTest(f.Path) || slices.Contains(metadata, f.Path):
			p.stays = append(p.stays, f)
		case isModule(cfg, packages, f.Path):
			p.code = append(p.code, f)
			p.module[f.Path] = moduleName(f.Path)
		case isDocumentation(cfg, f.Path) && utf8.Valid(f.Data):
			p.docs = append(p.docs, f)
		case inPackage(packages, f.Path) && slices.Contains(compiled, path.Ext(f.Path)):
			return nil, milepost.E(op, milepost.KindInvalid, "%s: %s is compiled code; only packages of pure Python make tasks", cfg.Package, f.Path)
		case inPackage(packages, f.Path) && path.Ext(f.Path) != ".py" && path.Ext(f.Path) != ".pyi":
			p.stays = append(p.stays, f) // data that the package reads
		}
	}
	if len(p.code) == 0 {
		return nil, milepost.E(op, milepost.KindNotFound, "%s has no module to be written; name them in sources", cfg.Package)
	}
	if len(p.tests) == 0 {
		return nil, milepost.E(op, milepost.KindNotFound, "%s brings no tests; a package with its own suite is wanted", cfg.Package)
	}
	return p, nil
}

// isModule reports whether a file is code of the package: asked for, in a package, or a single module at the root.
func isModule(cfg Config, packages map[string]bool, p string) bool {
	if len(cfg.Sources) > 0 {
		return slices.Contains(cfg.Sources, p)
	}
	if path.Ext(p) != ".py" {
		return false
	}
	if packages[path.Dir(p)] {
		return true
	}
	dir, base := path.Dir(p), path.Base(p)
	return (dir == "." || dir == "src") && base != "setup.py" && base != "noxfile.py" && base != "tasks.py" && base != "fabfile.py"
}

func inPackage(packages map[string]bool, p string) bool {
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		if packages[d] {
			return true
		}
	}
	return false
}

func isDocumentation(cfg Config, p string) bool {
	if len(cfg.Docs) > 0 {
		return slices.Contains(cfg.Docs, p)
	}
	ext := strings.ToLower(path.Ext(p))
	if path.Dir(p) == "." {
		return strings.HasPrefix(strings.ToLower(p), "readme")
	}
	folder, _, _ := strings.Cut(p, "/")
	return (folder == "docs" || folder == "doc") && (ext == ".md" || ext == ".rst" || ext == ".txt" && !strings.HasPrefix(path.Base(p), "requirements"))
}

// moduleName is the dotted name of a module's path.
func moduleName(p string) string {
	p = strings.TrimSuffix(strings.TrimPrefix(p, "src/"), ".py")
	return strings.ReplaceAll(strings.TrimSuffix(p, "/__init__"), "/", ".")
}

// tops are the names under which the package is imported.
func (p *parts) tops() []string {
	var out []string
	for _, name := range p.module {
		top, _, _ := strings.Cut(name, ".")
		out = append(out, top)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

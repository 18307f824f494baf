// Package cachepath is the one policy on which files of a repository never count as changes: what interpreters, test
// runners and linters leave behind, and git's own data. It imports nothing so that every layer can ask it.
//
// The policy goes by path alone. It does not read .gitignore, because an agent may write that file. A file that the base
// tree tracks under such a path stays in the tree as the base has it, whatever is done to it later.
package cachepath

import "strings"

// directories are names that make everything at and below them a cache.
var directories = map[string]bool{
	"__pycache__":   true, // CPython byte code
	".pytest_cache": true,
	".mypy_cache":   true,
	".ruff_cache":   true,
	".hypothesis":   true, // example database of the Hypothesis library
	".tox":          true,
	".nox":          true,
	".coverage":     true, // data file of coverage.py
}

// Is reports whether the slash-separated path, relative to the repository root, is a cache or belongs to git's own data.
func Is(path string) bool {
	for rest := path; ; {
		name, after, more := strings.Cut(rest, "/")
		if directories[name] || strings.EqualFold(name, ".git") {
			return true
		}
		if !more {
			return strings.HasSuffix(name, ".pyc") || strings.HasSuffix(name, ".pyo") ||
				strings.HasPrefix(name, ".coverage.")
		}
		rest = after
	}
}

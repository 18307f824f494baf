package env

import (
	"path"
	"strings"
)

// cacheDirs are directories that tools fill by themselves; nothing under them is a change.
var cacheDirs = map[string]bool{
	"__pycache__": true, ".pytest_cache": true, ".mypy_cache": true, ".ruff_cache": true, ".hypothesis": true,
	".tox": true, ".nox": true, ".ipynb_checkpoints": true,
}

// cacheFiles are single files of the same sort.
var cacheFiles = map[string]bool{".coverage": true, ".DS_Store": true}

// IsCache is the one policy on caches: it reports whether a path (relative, slash separated, file or directory) is
// something that tools write by running, which never counts as a change and is in no tree id. What people do commit
// (*.egg-info of a source distribution, .cache, build) is not among them.
func IsCache(p string) bool {
	for rest := p; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		if cacheDirs[part] {
			return true
		}
	}
	base := path.Base(p)
	return cacheFiles[base] || strings.HasSuffix(base, ".pyc") || strings.HasSuffix(base, ".pyo")
}

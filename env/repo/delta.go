package repo

import (
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// Delta turns what a sandbox reports as changed into the difference from the base tree, puts the bytes into blobs and
// returns the difference, sorted by path, with the id of the tree it makes. Caches are left out, and so is a change that
// ends where the base already is. Errors: KindInvalid for a path or mode that git cannot hold, KindUnavailable from the
// blob store.
func Delta(b *Base, changes []env.Change, blobs *Blobs) (delta []milepost.TreeChange, tree string, err error) {
	const op = "repo: delta"
	for _, c := range changes {
		if IsCache(c.Path) {
			continue
		}
		have, inBase := b.Index[c.Path]
		if c.Deleted {
			if inBase {
				delta = append(delta, milepost.TreeChange{Path: c.Path, Deleted: true})
			}
			continue
		}
		if inBase && have.Mode == c.Mode && have.Hash == HashBlob(c.Data) {
			continue
		}
		hash, err := blobs.Put(c.Data)
		if err != nil {
			return nil, "", err
		}
		delta = append(delta, milepost.TreeChange{Path: c.Path, Mode: c.Mode, Blob: hash})
	}
	sortDelta(delta)
	if err := CheckDelta(b, delta); err != nil {
		return nil, "", milepost.Wrap(op, milepost.KindInvalid, err)
	}
	return delta, b.TreeID(delta), nil
}

func sortDelta(delta []milepost.TreeChange) {
	slices.SortFunc(delta, func(a, b milepost.TreeChange) int { return strings.Compare(a.Path, b.Path) })
}

// CheckDelta says whether delta is a well-formed difference from base: sorted, unique, safe paths outside every cache, modes
// and blob ids that git has, deletions of what is there, and no path that is both file and directory afterwards. The
// error is of KindInvalid and names the path. It costs what the delta holds, not what the base does.
func CheckDelta(b *Base, delta []milepost.TreeChange) error {
	const op = "repo: check delta"
	invalid := func(path, format string, args ...any) error {
		return milepost.E(op, milepost.KindInvalid, "path %q: "+format, append([]any{path}, args...)...)
	}
	for i, c := range delta {
		if i > 0 && delta[i-1].Path >= c.Path {
			return invalid(c.Path, "not sorted, or twice: it follows %q", delta[i-1].Path)
		}
		if why := badPath(c.Path); why != "" {
			return invalid(c.Path, "%s", why)
		}
		have, inBase := b.Index[c.Path]
		switch {
		case inBase && have.Mode == ModeSubmodule:
			return invalid(c.Path, "is a submodule, which cannot be changed")
		case c.Deleted && !inBase:
			return invalid(c.Path, "deleted, but the base tree does not have it")
		case c.Deleted && (c.Mode != 0 || c.Blob != ""):
			return invalid(c.Path, "deleted, yet it has a mode or a blob")
		case c.Deleted:
		case c.Mode != ModeFile && c.Mode != ModeExecutable && c.Mode != ModeSymlink:
			return invalid(c.Path, "mode %o is none of 100644, 100755 and 120000", c.Mode)
		case !isObjectID(c.Blob):
			return invalid(c.Path, "blob %q is not 40 lower-case hex digits", c.Blob)
		}
	}
	return checkConflicts(b, delta, invalid)
}

// checkConflicts looks for paths that would be file and directory at once, starting from the added paths only.
func checkConflicts(b *Base, delta []milepost.TreeChange, invalid func(string, string, ...any) error) error {
	changes := make(map[string]*milepost.TreeChange, len(delta))
	gone := map[string]int{} // files deleted below a directory
	for i, c := range delta {
		changes[c.Path] = &delta[i]
		for d, _ := split(c.Path); c.Deleted && d != ""; d, _ = split(d) {
			gone[d]++
		}
	}
	for _, c := range delta {
		if _, inBase := b.Index[c.Path]; c.Deleted || inBase {
			continue
		}
		if was := b.layout()[c.Path]; was != nil && was.files > gone[c.Path] {
			return invalid(c.Path, "is a file and also the directory of files of the base")
		}
		for d, _ := split(c.Path); d != ""; d, _ = split(d) {
			above, changed := changes[d]
			have, inBase := b.Index[d]
			switch {
			case inBase && have.Mode == ModeSubmodule:
				return invalid(c.Path, "lies in the submodule %q, which cannot be changed", d)
			case changed && !above.Deleted, !changed && inBase:
				return invalid(c.Path, "its directory %q is a file", d)
			}
		}
	}
	return nil
}

// badPath says in words why git or a checkout could not hold the path, or "".
func badPath(path string) string {
	switch {
	case path == "":
		return "is empty"
	case strings.HasPrefix(path, "/"):
		return "is absolute; it must be relative to the repository root"
	case strings.ContainsRune(path, 0):
		return "contains a zero byte"
	case IsCache(path):
		return "is a cache or git's own data, which never is part of a change"
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." {
			return "has an empty, \".\" or \"..\" component"
		}
	}
	return ""
}

func isObjectID(s string) bool {
	if len(s) != 40 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

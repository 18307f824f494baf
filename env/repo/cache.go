package repo

import (
	"strings"

	"github.com/milepost-rl/milepost/env"
)

// IsCache reports whether the slash-separated path, relative to the repository root, never counts as a change of the
// repository: what [env.IsCache] says (caches of interpreters, test runners and linters), and git's own data.
//
// The policy goes by path alone. It does not read .gitignore, because an agent may write that file. A file that the base
// tree tracks under such a path stays in the tree as the base has it, whatever is done to it later.
func IsCache(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if strings.EqualFold(name, ".git") {
			return true
		}
	}
	return env.IsCache(path)
}

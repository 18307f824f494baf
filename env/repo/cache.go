package repo

import "github.com/milepost-rl/milepost/env/repo/cachepath"

// IsCache reports whether the slash-separated path (relative to the repository root) never counts as a change of the
// repository. It is the one policy of the project and lives in package cachepath, which imports nothing, so that the
// sandbox can use it too.
func IsCache(path string) bool { return cachepath.Is(path) }

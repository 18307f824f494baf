package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// StateKey is the key of a state, by which estimators compare steps: the repository tree and the set of files read so
// far. It is the first 16 hex digits of the SHA-256 of the tree id and the sorted paths, each ended by a NUL; the order
// of read and repetitions in it do not matter.
func StateKey(tree string, read []string) string {
	paths := slices.Clone(read)
	slices.Sort(paths)
	paths = slices.Compact(paths)
	sum := sha256.Sum256([]byte(tree + "\x00" + strings.Join(append(paths, ""), "\x00")))
	return hex.EncodeToString(sum[:8])
}

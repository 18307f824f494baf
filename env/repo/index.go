package repo

import (
	"crypto/sha1"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost"
)

// The git modes a tree entry can have. ModeSubmodule occurs only in base trees; a delta never touches one.
const (
	ModeFile       uint32 = 0o100644
	ModeExecutable uint32 = 0o100755
	ModeSymlink    uint32 = 0o120000
	ModeSubmodule  uint32 = 0o160000
)

// Entry is one file of a tree.
type Entry struct {
	Mode uint32 // git mode, one of the Mode constants
	Hash string // git blob id, 40 hex digits (the commit id for a submodule)
	Size int64  // bytes; -1 where not known (after Apply)
}

// Index is a whole tree: slash-separated path to entry, one element per file, directories implied.
type Index map[string]Entry

// HashBlob returns the git blob id of data: SHA-1 of "blob <length>\0<data>" in hex.
func HashBlob(data []byte) string { return hashObject("blob", data) }

func hashObject(kind string, data []byte) string {
	h := sha1.New()
	h.Write(objectHeader(kind, len(data)))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}

func objectHeader(kind string, size int) []byte {
	return append(strconv.AppendInt([]byte(kind+" "), int64(size), 10), 0)
}

// TreeID returns the git tree id of the index, as git write-tree would. The paths must be free of conflicts between
// file and directory (a delta that passed CheckDelta leaves none). An empty index has git's empty tree.
func (x Index) TreeID() string {
	// Git orders a tree's entries by name with "/" appended to directories. That is the order in which the full paths
	// sort bytewise, so one sorted list of paths serves every level.
	id, _ := x.subtree(slices.Sorted(maps.Keys(x)), 0)
	return hex.EncodeToString(id)
}

// subtree hashes the tree of the leading paths that share their first skip bytes with paths[0] and returns its id and
// how many paths it took.
func (x Index) subtree(paths []string, skip int) (id []byte, taken int) {
	var body []byte
	for taken < len(paths) {
		p := paths[taken]
		if taken > 0 && p[:min(skip, len(p))] != paths[0][:skip] {
			break
		}
		name, _, isDir := strings.Cut(p[skip:], "/")
		var hash []byte
		if isDir {
			sub, n := x.subtree(paths[taken:], skip+len(name)+1)
			body = append(body, "40000 "...)
			hash, taken = sub, taken+n
		} else {
			e := x[p]
			body = append(strconv.AppendUint(body, uint64(e.Mode), 8), ' ')
			hash, _ = hex.DecodeString(e.Hash)
			taken++
		}
		body = append(append(append(body, name...), 0), hash...)
	}
	h := sha1.New()
	h.Write(objectHeader("tree", len(body)))
	h.Write(body)
	return h.Sum(nil), taken
}

// Apply returns the index after the changes; the receiver is not changed.
func (x Index) Apply(delta []milepost.TreeChange) Index {
	out := maps.Clone(x)
	if out == nil {
		out = Index{}
	}
	for _, c := range delta {
		if c.Deleted {
			delete(out, c.Path)
			continue
		}
		out[c.Path] = Entry{Mode: c.Mode, Hash: c.Blob, Size: -1}
	}
	return out
}

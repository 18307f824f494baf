package repo

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/milepost-rl/milepost"
)

// layout is an index directory by directory, by path ("" is the root). It is made once per base, so that the tree id of
// a difference costs the directories that the difference touches, as in git itself, and not a look at every file.
type layout map[string]*directory

// directory is one tree object. It is never changed.
type directory struct {
	entries []treeEntry // in git's order
	files   int         // at and below it
}

const modeDirectory uint32 = 0o040000

type treeEntry struct {
	name string
	mode uint32
	hash string // the 20 bytes of the object id
}

// compare is git's order: by name, a directory as if its name ended in a slash.
func (e treeEntry) compare(o treeEntry) int {
	n := min(len(e.name), len(o.name))
	if c := strings.Compare(e.name[:n], o.name[:n]); c != 0 {
		return c
	}
	return cmp.Compare(e.at(n), o.at(n))
}

func (e treeEntry) at(i int) byte {
	switch {
	case i < len(e.name):
		return e.name[i]
	case e.mode == modeDirectory:
		return '/'
	}
	return 0
}

// treeBody is the object of a tree with these entries.
func treeBody(entries []treeEntry) []byte {
	var body []byte
	for _, e := range entries {
		body = append(strconv.AppendUint(body, uint64(e.mode), 8), ' ')
		body = append(append(append(body, e.name...), 0), e.hash...)
	}
	return body
}

// treeHash is its id, 20 bytes.
func treeHash(body []byte) string {
	h := sha1.New()
	h.Write(objectHeader("tree", len(body)))
	h.Write(body)
	return string(h.Sum(nil))
}

func newLayout(x Index) layout {
	l := layout{}
	l.add(x, slices.Sorted(maps.Keys(x)), "")
	return l
}

// add lays out the directory whose path, with a slash at its end, is prefix: the leading paths that begin with it. It
// returns how many those are, and the id.
func (l layout) add(x Index, paths []string, prefix string) (taken int, id string) {
	d := &directory{}
	for taken < len(paths) && strings.HasPrefix(paths[taken], prefix) {
		name, _, below := strings.Cut(paths[taken][len(prefix):], "/")
		if below {
			n, sub := l.add(x, paths[taken:], prefix+name+"/")
			d.entries = append(d.entries, treeEntry{name, modeDirectory, sub})
			taken += n
			continue
		}
		e := x[paths[taken]]
		d.entries = append(d.entries, treeEntry{name, e.Mode, rawID(e.Hash)})
		taken++
	}
	d.files = taken
	l[strings.TrimSuffix(prefix, "/")] = d
	return taken, treeHash(treeBody(d.entries))
}

func rawID(hash string) string {
	raw, _ := hex.DecodeString(hash) // checked where it came in
	return string(raw)
}

// treeID is the id of the tree after a delta that passed CheckDelta. made, where not nil, is given the object of each tree that
// the delta changes, the root's last.
func (l layout) treeID(delta []milepost.TreeChange, made func(id string, body []byte) error) (string, error) {
	touched := map[string]map[string]*milepost.TreeChange{"": {}} // directory → names of files changed right in it
	for i, c := range delta {
		dir, name := split(c.Path)
		for d := dir; touched[d] == nil; d, _ = split(d) {
			touched[d] = map[string]*milepost.TreeChange{}
		}
		touched[dir][name] = &delta[i]
	}
	below := map[string][]treeEntry{} // directory → its own touched directories that are not empty
	id := ""
	for _, dir := range slices.Backward(slices.Sorted(maps.Keys(touched))) { // what is below comes first, the root last
		entries := l.change(dir, touched, below[dir])
		if len(entries) == 0 && dir != "" {
			continue
		}
		body := treeBody(entries)
		hash := treeHash(body)
		id = hex.EncodeToString([]byte(hash))
		if made != nil {
			if err := made(id, body); err != nil {
				return "", err
			}
		}
		if dir != "" {
			parent, name := split(dir)
			below[parent] = append(below[parent], treeEntry{name, modeDirectory, hash})
		}
	}
	return id, nil
}

// change returns the entries of a touched directory, given those of its own touched directories.
func (l layout) change(dir string, touched map[string]map[string]*milepost.TreeChange, fresh []treeEntry) []treeEntry {
	for name, c := range touched[dir] {
		if !c.Deleted {
			fresh = append(fresh, treeEntry{name, c.Mode, rawID(c.Blob)})
		}
	}
	slices.SortFunc(fresh, treeEntry.compare)
	was := l[dir]
	if was == nil {
		return fresh
	}
	out := make([]treeEntry, 0, len(was.entries)+len(fresh))
	for _, e := range was.entries {
		if e.mode == modeDirectory && touched[join(dir, e.name)] != nil || e.mode != modeDirectory && touched[dir][e.name] != nil {
			continue
		}
		for len(fresh) > 0 && fresh[0].compare(e) < 0 {
			out, fresh = append(out, fresh[0]), fresh[1:]
		}
		out = append(out, e)
	}
	return append(out, fresh...)
}

// split returns the directory of a path, "" for the root, and the name in it.
func split(p string) (dir, name string) {
	i := strings.LastIndexByte(p, '/')
	return p[:max(i, 0)], p[i+1:]
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

package testrun

import (
	"path"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// overlay is what makes the tree that the tests see of the base: the proven delta, and over it the task's hidden files.
type overlay struct {
	delta  []milepost.TreeChange
	hidden map[string][]byte // by blob id
}

// withHidden lays hidden files over a proven delta. Where they meet the tree's they win: a file in the place of one of
// their folders goes, and so does what lies below one of their paths. It does not touch the delta that it is given.
func withHidden(base *repo.Base, delta []milepost.TreeChange, hidden map[string]string) overlay {
	if len(hidden) == 0 {
		return overlay{delta: delta}
	}
	o := overlay{hidden: map[string][]byte{}}
	folders := map[string]bool{}
	for p, text := range hidden {
		hash := repo.HashBlob([]byte(text))
		o.hidden[hash] = []byte(text)
		o.delta = append(o.delta, milepost.TreeChange{Path: p, Mode: repo.ModeFile, Blob: hash})
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			folders[d] = true
		}
	}
	changed := map[string]bool{}
	for _, c := range delta {
		changed[c.Path] = true
		if _, over := hidden[c.Path]; over {
			continue
		}
		if hides(hidden, folders, c.Path) {
			if _, inBase := base.Index[c.Path]; !inBase {
				continue
			}
			c = milepost.TreeChange{Path: c.Path, Deleted: true}
		}
		o.delta = append(o.delta, c)
	}
	for p := range base.Index {
		if _, over := hidden[p]; !over && !changed[p] && hides(hidden, folders, p) {
			o.delta = append(o.delta, milepost.TreeChange{Path: p, Deleted: true})
		}
	}
	slices.SortFunc(o.delta, func(a, b milepost.TreeChange) int { return strings.Compare(a.Path, b.Path) })
	return o
}

// hides reports whether a file of the tree cannot stand beside the hidden files: it is where a folder of theirs goes, or
// below one of them.
func hides(hidden map[string]string, folders map[string]bool, file string) bool {
	if folders[file] {
		return true
	}
	for d := path.Dir(file); d != "."; d = path.Dir(d) {
		if _, ok := hidden[d]; ok {
			return true
		}
	}
	return false
}

// blobs are those of the tree and of the hidden files.
func (o overlay) blobs(tree repo.BlobGetter) repo.BlobGetter {
	if o.hidden == nil {
		return tree
	}
	return overlayBlobs{o.hidden, tree}
}

type overlayBlobs struct {
	hidden map[string][]byte
	tree   repo.BlobGetter
}

func (b overlayBlobs) Get(hash string) ([]byte, error) {
	if data, ok := b.hidden[hash]; ok {
		return data, nil
	}
	return b.tree.Get(hash)
}

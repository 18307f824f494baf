package rollout

import (
	"maps"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// TestIndexFollowsSnapshots goes through states in which files are changed, deleted, brought back and rolled back.
func TestIndexFollowsSnapshots(t *testing.T) {
	entry := func(text string) repo.Entry {
		return repo.Entry{Mode: repo.ModeFile, Hash: repo.HashBlob([]byte(text)), Size: -1}
	}
	set := func(p, text string) milepost.TreeChange {
		return milepost.TreeChange{Path: p, Mode: repo.ModeFile, Blob: repo.HashBlob([]byte(text))}
	}
	gone := func(p string) milepost.TreeChange { return milepost.TreeChange{Path: p, Deleted: true} }
	base := &repo.Base{Index: repo.Index{"a": entry("a"), "b": entry("b"), "d/c": entry("c")}}
	r := newRepository(base, nil, nil)
	for i, delta := range [][]milepost.TreeChange{
		nil, {set("a", "1"), set("new", "n")}, {set("a", "2"), gone("b")}, {set("a", "2"), gone("b"), gone("d/c"), set("d", "file")},
		{set("b", "again")}, nil, {gone("a"), gone("b"), gone("d/c")}, {{Path: "a", Mode: repo.ModeExecutable, Blob: repo.HashBlob([]byte("a"))}},
	} {
		r.now = snapshot{delta: delta}
		for range 2 {
			if got, want := r.Index(), base.Index.Apply(delta); !maps.Equal(got, want) {
				t.Fatalf("state %d: %v, want %v", i, got, want)
			}
		}
	}
	if len(base.Index) != 3 {
		t.Errorf("the base's own index was changed: %v", base.Index)
	}
}

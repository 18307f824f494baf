package repo

import (
	"slices"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

func TestDelta(t *testing.T) {
	b, blobs := sampleBase(t)
	delta, tree, err := Delta(b, []env.Change{
		{Path: "zz/new.py", Mode: ModeFile, Data: []byte("new\n")},
		{Path: "pkg/core.py", Mode: ModeFile, Data: []byte("changed\n")},
		{Path: "pkg/__pycache__/core.cpython-311.pyc", Mode: ModeFile, Data: []byte("code")},
		{Path: "run.sh", Deleted: true},
		{Path: "never.txt", Deleted: true},                                                     // made and deleted again
		{Path: "pkg/data.bin", Mode: ModeFile, Data: []byte(sampleFiles["pkg/data.bin"].data)}, // touched only
	}, blobs)
	if err != nil {
		t.Fatal(err)
	}
	want := []milepost.TreeChange{
		{Path: "pkg/core.py", Mode: ModeFile, Blob: HashBlob([]byte("changed\n"))},
		{Path: "run.sh", Deleted: true},
		{Path: "zz/new.py", Mode: ModeFile, Blob: HashBlob([]byte("new\n"))},
	}
	if !slices.Equal(delta, want) {
		t.Fatalf("delta %+v, want %+v", delta, want)
	}
	if err := b.Prove(delta, tree); err != nil {
		t.Fatal(err)
	}
	if data, err := blobs.Get(want[0].Blob); err != nil || string(data) != "changed\n" {
		t.Fatalf("blob %q, %v", data, err)
	}
	wantKind(t, b.Prove(delta[:2], tree), milepost.KindConflict, tree)
}

func TestDeltaOfNothingIsTheBase(t *testing.T) {
	b, blobs := sampleBase(t)
	delta, tree, err := Delta(b, nil, blobs)
	if err != nil || len(delta) != 0 || tree != b.Tree {
		t.Fatalf("delta %v, tree %s, %v; want none and %s", delta, tree, err, b.Tree)
	}
}

func TestCheckDeltaRefuses(t *testing.T) {
	index := indexOf(map[string]file{"a": {ModeFile, "a"}, "d/x": {ModeFile, "x"}})
	index["sub"] = Entry{Mode: ModeSubmodule, Hash: HashBlob(nil)}
	base, blob := &Base{Index: index}, HashBlob([]byte("new"))
	for name, c := range map[string]struct {
		delta []milepost.TreeChange
		words string
	}{
		"absolute":           {[]milepost.TreeChange{{Path: "/etc/passwd", Mode: ModeFile, Blob: blob}}, "absolute"},
		"outside":            {[]milepost.TreeChange{{Path: "d/../../x", Mode: ModeFile, Blob: blob}}, "component"},
		"empty":              {[]milepost.TreeChange{{Path: "", Mode: ModeFile, Blob: blob}}, "empty"},
		"double slash":       {[]milepost.TreeChange{{Path: "d//y", Mode: ModeFile, Blob: blob}}, "component"},
		"git data":           {[]milepost.TreeChange{{Path: ".GIT/config", Mode: ModeFile, Blob: blob}}, "cache"},
		"cache":              {[]milepost.TreeChange{{Path: "d/__pycache__/x.pyc", Mode: ModeFile, Blob: blob}}, "cache"},
		"zero byte":          {[]milepost.TreeChange{{Path: "a\x00b", Mode: ModeFile, Blob: blob}}, "zero byte"},
		"mode":               {[]milepost.TreeChange{{Path: "n", Mode: 0o644, Blob: blob}}, "mode 644"},
		"blob":               {[]milepost.TreeChange{{Path: "n", Mode: ModeFile, Blob: "xyz"}}, "xyz"},
		"unsorted":           {[]milepost.TreeChange{{Path: "n", Mode: ModeFile, Blob: blob}, {Path: "m", Mode: ModeFile, Blob: blob}}, "not sorted"},
		"twice":              {[]milepost.TreeChange{{Path: "n", Mode: ModeFile, Blob: blob}, {Path: "n", Deleted: true}}, "twice"},
		"delete nothing":     {[]milepost.TreeChange{{Path: "n", Deleted: true}}, "does not have it"},
		"file is directory":  {[]milepost.TreeChange{{Path: "d", Mode: ModeFile, Blob: blob}}, "directory of"},
		"directory is file":  {[]milepost.TreeChange{{Path: "a/b", Mode: ModeFile, Blob: blob}}, "is a file"},
		"submodule":          {[]milepost.TreeChange{{Path: "sub", Deleted: true}}, "submodule"},
		"below submodule":    {[]milepost.TreeChange{{Path: "sub/x", Mode: ModeFile, Blob: blob}}, "in the submodule"},
		"deleted and a blob": {[]milepost.TreeChange{{Path: "a", Deleted: true, Blob: blob}}, "has a mode or a blob"},
	} {
		t.Run(name, func(t *testing.T) {
			wantKind(t, CheckDelta(base, c.delta), milepost.KindInvalid, c.words)
		})
	}
	replaced := []milepost.TreeChange{{Path: "a", Deleted: true}, {Path: "a/b", Mode: ModeFile, Blob: blob}, {Path: "d", Mode: ModeSymlink, Blob: blob}, {Path: "d/x", Deleted: true}}
	if err := CheckDelta(base, replaced); err != nil {
		t.Fatalf("a file may become a directory and the other way round: %v", err)
	}
}

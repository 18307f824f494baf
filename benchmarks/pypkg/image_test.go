package pypkg

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

// TestTheReleaseLeadsToTheBase carries out what the preparation of a task says, on the release's files: they become the base's.
func TestTheReleaseLeadsToTheBase(t *testing.T) {
	release := []benchmarks.File{{Path: "p/a.py", Data: []byte("one\ntwo\n")}, {Path: "p/it's.py", Data: []byte("x\n")},
		{Path: "p/crlf.py", Data: []byte("a\r\nb\r\n")}, {Path: "p/same.bin", Data: []byte{0xff, 0}}, {Path: "p/__pycache__/a.pyc", Data: []byte{1}}}
	base := []benchmarks.File{{Path: "p/a.py", Data: []byte("one\n2\n")}, {Path: "SPEC.md", Data: []byte("write it, MILEPOST_PATCH")},
		{Path: "p/crlf.py", Data: []byte("a\r\nc\r\n")}, release[3]}
	dir := t.TempDir()
	repo, image := filepath.Join(dir, "repo"), filepath.Join(dir, "image")
	commit, tree, err := benchmarks.WriteRepo(repo, base)
	if err != nil {
		t.Fatal(err)
	}
	made := &milepost.Task{ID: "made", Repo: repo, BaseCommit: commit, BaseTree: tree, Image: "local:python3", Test: milepost.TestCommand{Resident: "unittest"}}
	moved, err := InImage(made, release, "img", "/testbed")
	if err != nil {
		t.Fatal(err)
	}
	if moved.Prepared() || moved.Repo != "" || moved.Image != "img" || moved.Workdir != "/testbed" || moved.Test.Resident != "" || made.Repo == "" {
		t.Errorf("moved: %+v", moved)
	}
	if _, _, err := benchmarks.WriteRepo(image, release[:4]); err != nil { // without caches, as images have been cleaned of them
		t.Fatal(err)
	}
	for _, c := range moved.Prepare {
		run := exec.CommandContext(context.Background(), "bash", "-c", c)
		run.Dir = image
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c, err, out)
		}
	}
	add := exec.Command("bash", "-c", "git add -A && git write-tree")
	add.Dir = image
	if out, err := add.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != tree {
		t.Errorf("the release was led to tree %s (%v), not %s", out, err, tree)
	}
	if same, err := InImage(made, base, "img", "/testbed"); err != nil || len(same.Prepare) != 0 {
		t.Errorf("a release that is the base: %v, %v", same, err)
	}
}

func TestWhatCannotBeMovedIntoAnImage(t *testing.T) {
	dir := t.TempDir()
	commit, _, err := benchmarks.WriteRepo(filepath.Join(dir, "repo"), []benchmarks.File{{Path: "a.bin", Data: []byte{0xff}}})
	if err != nil {
		t.Fatal(err)
	}
	for want, task := range map[string]*milepost.Task{
		"its repository lies in an image":                 {ID: "t", Workdir: "/testbed"},
		"a.bin differs from the release's and is no text": {ID: "t", Repo: filepath.Join(dir, "repo"), BaseCommit: commit},
		"task t: repository ":                             {ID: "t", Repo: filepath.Join(dir, "none"), BaseCommit: commit},
		"task t: commit 0123":                             {ID: "t", Repo: filepath.Join(dir, "repo"), BaseCommit: "0123456789012345678901234567890123456789"},
	} {
		if _, err := InImage(task, nil, "img", "/testbed"); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

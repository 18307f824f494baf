package repo

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
)

// file is a working file of a test repository.
type file struct {
	mode uint32
	data string
}

func runGit(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.autocrlf=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(cleanEnv(), "GIT_AUTHOR_DATE=2001-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2001-01-01T00:00:00Z")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func writeFiles(t testing.TB, dir string, files map[string]file) {
	t.Helper()
	for path, f := range files {
		name := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if f.mode == ModeSymlink {
			if err := os.Symlink(f.data, name); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(name, []byte(f.data), os.FileMode(f.mode&0o777)); err != nil {
			t.Fatal(err)
		}
	}
}

var sampleFiles = map[string]file{
	"README.md":          {ModeFile, "# sample\r\nwith carriage return\r\n"},
	".gitattributes":     {ModeFile, "* text=auto eol=crlf\n*.py ident\n"},
	"pkg/__init__.py":    {ModeFile, ""},
	"pkg/core.py":        {ModeFile, "# $Id$\ndef f(x):\n    return x + 1\n"},
	"pkg/data.bin":       {ModeFile, "\x00\x01\xff\xfe binary"},
	"run.sh":             {ModeExecutable, "#!/bin/sh\necho hi\n"},
	"link":               {ModeSymlink, "pkg/core.py"},
	"odd name/ä\"b\n.py": {ModeFile, "x = 1\n"},
}

// sampleTask makes a repository with a history around the base commit and the task that names it.
func sampleTask(t testing.TB, files map[string]file) *milepost.Task {
	t.Helper()
	dir := t.TempDir()
	runGit(t, dir, "init", "-q", "-b", "trunk")
	writeFiles(t, dir, map[string]file{"past.txt": {ModeFile, "earlier\n"}})
	runGit(t, dir, "add", "-A")
	runGit(t, dir, "commit", "-q", "-m", "past")
	runGit(t, dir, "rm", "-q", "past.txt")
	writeFiles(t, dir, files)
	runGit(t, dir, "-c", "core.safecrlf=false", "add", "-A")
	runGit(t, dir, "commit", "-q", "-m", "base")
	task := &milepost.Task{ID: "sample", Repo: dir, BaseCommit: runGit(t, dir, "rev-parse", "HEAD"), BaseTree: runGit(t, dir, "rev-parse", "HEAD^{tree}")}
	writeFiles(t, dir, map[string]file{"future.txt": {ModeFile, "the fix\n"}})
	runGit(t, dir, "add", "-A")
	runGit(t, dir, "commit", "-q", "-m", "future")
	runGit(t, dir, "tag", "v2")
	return task
}

func sampleBase(t testing.TB) (*Base, *Blobs) {
	t.Helper()
	store, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := store.Base(t.Context(), sampleTask(t, sampleFiles))
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := NewBlobs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return b, blobs
}

func wantKind(t testing.TB, err error, kind milepost.Kind, words ...string) {
	t.Helper()
	if milepost.KindOf(err) != kind {
		t.Fatalf("kind %q, want %q: %v", milepost.KindOf(err), kind, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("error %q does not name %q", err, w)
		}
	}
}

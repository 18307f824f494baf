package envtest

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

var ctx = context.Background()

func (s *suite) testFiles(t *testing.T) {
	sb := s.open(t)
	data, mode, err := sb.ReadFile(ctx, "run.sh")
	if err != nil || string(data) != "#!/bin/sh\n" || mode.Perm() != 0o755 {
		t.Errorf("ReadFile of the base: %q %v %v", data, mode, err)
	}
	for _, w := range []struct {
		path, text string
		mode, want fs.FileMode
	}{
		{"a/b/c.txt", "new", 0, 0o644},          // makes directories
		{"a/b/x", "new", 0o755, 0o755},          //
		{"run.sh", "#!/bin/true\n", 0, 0o755},   // keeps the mode
		{"run.sh", "", 0o644, 0o644},            // sets it
		{"./a//b/../b2/d", "", 0, 0},            // refused: ".."
		{"./a//b/c.txt", "again", 0, 0o644},     // cleaned
		{"ü/ñ \n\"", "odd names", 0o600, 0o600}, //
	} {
		err := sb.WriteFile(ctx, w.path, []byte(w.text), w.mode)
		if w.want == 0 {
			wantKind(t, w.path, err, milepost.KindInvalid)
			continue
		}
		must(t, "WriteFile "+w.path, err)
		data, mode, err := sb.ReadFile(ctx, w.path)
		if err != nil || string(data) != w.text || mode != w.want {
			t.Errorf("%s: read %q %v %v, want %q %v", w.path, data, mode, err, w.text, w.want)
		}
		info, err := sb.Stat(ctx, w.path)
		if err != nil || info.Size != int64(len(w.text)) || info.Mode != w.want {
			t.Errorf("%s: stat %+v %v", w.path, info, err)
		}
	}
	for _, p := range []string{"pkg/core.py", "dir", "link"} {
		must(t, "Remove "+p, sb.Remove(ctx, p))
		_, err := sb.Stat(ctx, p)
		wantKind(t, "Stat of the removed "+p, err, milepost.KindNotFound)
	}
	_, _, err = sb.ReadFile(ctx, "dir/one.txt")
	wantKind(t, "ReadFile below a removed directory", err, milepost.KindNotFound)
	wantKind(t, "Remove twice", sb.Remove(ctx, "dir"), milepost.KindNotFound)
	_, _, err = sb.ReadFile(ctx, "pkg")
	wantKind(t, "ReadFile of a directory", err, milepost.KindInvalid)
	wantKind(t, "WriteFile over a directory", sb.WriteFile(ctx, "pkg", nil, 0), milepost.KindInvalid)
	wantKind(t, "WriteFile below a file", sb.WriteFile(ctx, "README.md/x", nil, 0), milepost.KindInvalid)
	_, _, err = sb.ReadFile(ctx, "README.md/x")
	wantKind(t, "ReadFile below a file", err, milepost.KindInvalid)
	if info, err := sb.Stat(ctx, ""); err != nil || !info.Mode.IsDir() {
		t.Errorf("Stat of the root: %+v %v", info, err)
	}
}

func (s *suite) testPaths(t *testing.T) {
	sb := s.open(t)
	for _, p := range []string{"/etc/passwd", "..", "../x", "a/../../x", "pkg/..", "a\x00b", strings.Repeat("x", 256), strings.Repeat("x/", 3000)} {
		_, _, err := sb.ReadFile(ctx, p)
		wantKind(t, "ReadFile", err, milepost.KindInvalid)
		wantKind(t, "WriteFile", sb.WriteFile(ctx, p, nil, 0), milepost.KindInvalid)
		wantKind(t, "Remove", sb.Remove(ctx, p), milepost.KindInvalid)
		wantKind(t, "Symlink", sb.Symlink(ctx, "x", p), milepost.KindInvalid)
		_, err = sb.Stat(ctx, p)
		wantKind(t, "Stat", err, milepost.KindInvalid)
		wantKind(t, "Walk", sb.Walk(ctx, p, func(env.FileInfo) error { return nil }), milepost.KindInvalid)
		_, err = sb.Exec(ctx, env.Command{Argv: s.Argv("echo", "x"), Dir: p})
		wantKind(t, "Exec", err, milepost.KindInvalid)
	}
	for _, p := range []string{"", ".", "./", "./."} {
		wantKind(t, "Remove of the root", sb.Remove(ctx, p), milepost.KindInvalid)
		wantKind(t, "WriteFile of the root", sb.WriteFile(ctx, p, nil, 0), milepost.KindInvalid)
	}
}

func (s *suite) testLinks(t *testing.T) {
	sb := s.open(t)
	for name, target := range map[string]string{
		"abs": "/etc/passwd", "absdir": "/etc", "up": "../../../../../../etc/passwd", "updir": "..", "in": "pkg/core.py",
		"indir": "pkg", "loop": "loop", "dangling": "nowhere/x", "pkg/back": "../README.md",
	} {
		must(t, "Symlink "+name, sb.Symlink(ctx, target, name))
		info, err := sb.Stat(ctx, name)
		if err != nil || info.Target != target || info.Mode&fs.ModeSymlink == 0 {
			t.Errorf("Stat %s: %+v %v", name, info, err)
		}
	}
	for _, p := range []string{"abs", "up", "absdir/passwd", "updir/x"} {
		_, _, err := sb.ReadFile(ctx, p)
		wantKind(t, "ReadFile "+p, err, milepost.KindDenied)
		wantKind(t, "WriteFile "+p, sb.WriteFile(ctx, p, []byte("x"), 0), milepost.KindDenied)
	}
	wantKind(t, "Remove absdir/passwd", sb.Remove(ctx, "absdir/passwd"), milepost.KindDenied)
	wantKind(t, "Symlink absdir/x", sb.Symlink(ctx, "y", "absdir/x"), milepost.KindDenied)
	_, _, err := sb.ReadFile(ctx, "loop")
	wantKind(t, "ReadFile of a loop", err, milepost.KindInvalid)
	_, _, err = sb.ReadFile(ctx, "dangling")
	wantKind(t, "ReadFile of a dangling link", err, milepost.KindNotFound)
	wantKind(t, "Symlink over a file", sb.Symlink(ctx, "x", "README.md"), milepost.KindInvalid)
	for p, want := range map[string]string{"in": "x = 1\n", "indir/core.py": "x = 1\n", "pkg/back": "readme\n", "indir/back": "readme\n"} {
		if data, _, err := sb.ReadFile(ctx, p); err != nil || string(data) != want {
			t.Errorf("ReadFile %s: %q %v", p, data, err)
		}
	}
	must(t, "WriteFile through a link", sb.WriteFile(ctx, "in", []byte("through"), 0))
	if info, err := sb.Stat(ctx, "in"); err != nil || info.Mode&fs.ModeSymlink == 0 {
		t.Errorf("the link did not survive a write through it: %+v %v", info, err)
	}
	if data, _, err := sb.ReadFile(ctx, "pkg/core.py"); err != nil || string(data) != "through" {
		t.Errorf("the target of the link: %q %v", data, err)
	}
	for _, p := range []string{"absdir", "indir"} {
		must(t, "Remove "+p, sb.Remove(ctx, p))
	}
	if _, err := sb.Stat(ctx, "pkg/core.py"); err != nil {
		t.Errorf("removing a link to a directory removed the directory: %v", err)
	}
}

func (s *suite) testWalk(t *testing.T) {
	sb := s.open(t)
	must(t, "Symlink", sb.Symlink(ctx, "pkg", "zlink"))
	walk := func(dir string, fn func(env.FileInfo) error) []string {
		var seen []string
		must(t, "Walk", sb.Walk(ctx, dir, func(fi env.FileInfo) error {
			seen = append(seen, fi.Path)
			return fn(fi)
		}))
		return seen
	}
	noGit := func(fi env.FileInfo) error {
		if fi.Path == ".git" || fi.Path == "old" {
			return fs.SkipDir
		}
		return nil
	}
	want := []string{".git", "README.md", "dir", "dir/one.txt", "dir/two.txt", "link", "old", "pkg", "pkg/__init__.py",
		"pkg/core.py", "pkg/sub", "pkg/sub/deep.py", "pkg/sub/other.py", "run.sh", "zlink"}
	if got := walk("", noGit); !slices.Equal(got, want) {
		t.Errorf("Walk of the root:\n got %q\nwant %q", got, want)
	}
	got := walk("pkg", func(fi env.FileInfo) error {
		if fi.Path == "pkg/core.py" {
			return fs.SkipAll
		}
		return nil
	})
	if want := []string{"pkg/__init__.py", "pkg/core.py"}; !slices.Equal(got, want) {
		t.Errorf("Walk with SkipAll: %q, want %q", got, want)
	}
	mine := errors.New("mine")
	if err := sb.Walk(ctx, "dir", func(env.FileInfo) error { return mine }); err != mine {
		t.Errorf("Walk returned %v, want the function's own error", err)
	}
	wantKind(t, "Walk of nothing", sb.Walk(ctx, "nothing", noGit), milepost.KindNotFound)
	wantKind(t, "Walk of a file", sb.Walk(ctx, "README.md", noGit), milepost.KindInvalid)
}

func (s *suite) testReadLimit(t *testing.T) {
	sb := s.open(t, env.WithMaxRead(10))
	must(t, "WriteFile", sb.WriteFile(ctx, "ten", []byte("0123456789"), 0))
	must(t, "WriteFile", sb.WriteFile(ctx, "eleven", []byte("0123456789a"), 0))
	if data, _, err := sb.ReadFile(ctx, "ten"); err != nil || len(data) != 10 {
		t.Errorf("ReadFile at the limit: %q %v", data, err)
	}
	_, _, err := sb.ReadFile(ctx, "eleven")
	wantKind(t, "ReadFile beyond the limit", err, milepost.KindLimit)
}

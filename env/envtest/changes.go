package envtest

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
)

// describeChanges gives one short line a change.
func describeChanges(list []env.Change) []string {
	var out []string
	for _, c := range list {
		if c.Deleted {
			out = append(out, "D "+c.Path)
		} else {
			out = append(out, fmt.Sprintf("%o %s %s", c.Mode, c.Path, c.Data))
		}
	}
	return out
}

func (s *suite) wantChanges(t *testing.T, sb *env.Sandbox, want ...string) {
	t.Helper()
	got, err := sb.Changes(ctx)
	must(t, "Changes", err)
	if d := describeChanges(got); !slices.Equal(d, want) {
		t.Errorf("Changes:\n got %q\nwant %q", d, want)
	}
}

// changeCases are edits and what Changes says of them.
var changeCases = []struct {
	name string
	do   func(e editor)
	want []string
}{
	{"nothing", func(editor) {}, nil},
	{"new file", func(e editor) { e.write("a/new", "n", 0) }, []string{"100644 a/new n"}},
	{"changed", func(e editor) { e.write("pkg/core.py", "x = 2\n", 0) }, []string{"100644 pkg/core.py x = 2\n"}},
	{"changed, same size", func(e editor) { e.write("pkg/sub/deep.py", "y = 3\n", 0) }, []string{"100644 pkg/sub/deep.py y = 3\n"}},
	{"written with the same content", func(e editor) { e.write("pkg/core.py", "x = 1\n", 0) }, nil},
	{"changed and changed back", func(e editor) { e.write("run.sh", "", 0); e.write("run.sh", "#!/bin/sh\n", 0) }, nil},
	{"made executable", func(e editor) { e.write("README.md", "readme\n", 0o755) }, []string{"100755 README.md readme\n"}},
	{"no longer executable", func(e editor) { e.write("run.sh", "#!/bin/sh\n", 0o644) }, []string{"100644 run.sh #!/bin/sh\n"}},
	{"permissions git does not know", func(e editor) { e.write("README.md", "readme\n", 0o600) }, nil},
	{"deleted", func(e editor) { e.remove("README.md") }, []string{"D README.md"}},
	{"deleted and made again", func(e editor) { e.remove("README.md"); e.write("README.md", "readme\n", 0) }, nil},
	{"made and deleted", func(e editor) { e.write("a/b", "", 0); e.remove("a") }, nil},
	{"directory deleted", func(e editor) { e.remove("pkg/sub") }, []string{"D pkg/sub/deep.py", "D pkg/sub/other.py"}},
	{"directory deleted and part made again", func(e editor) { e.remove("pkg"); e.write("pkg/core.py", "x = 1\n", 0) },
		[]string{"D pkg/__init__.py", "D pkg/sub/deep.py", "D pkg/sub/other.py"}},
	{"directory replaced, deeper", func(e editor) { e.remove("pkg/sub"); e.write("pkg/sub/x/deep.py", "", 0) },
		[]string{"D pkg/sub/deep.py", "D pkg/sub/other.py", "100644 pkg/sub/x/deep.py "}},
	{"file becomes directory", func(e editor) { e.remove("README.md"); e.write("README.md/x", "in", 0) },
		[]string{"D README.md", "100644 README.md/x in"}},
	{"directory becomes file", func(e editor) { e.remove("dir"); e.write("dir", "flat", 0) },
		[]string{"100644 dir flat", "D dir/one.txt", "D dir/two.txt"}},
	{"directory becomes link", func(e editor) { e.remove("dir"); e.link("pkg", "dir") },
		[]string{"120000 dir pkg", "D dir/one.txt", "D dir/two.txt"}},
	{"link aimed elsewhere", func(e editor) { e.remove("link"); e.link("run.sh", "link") }, []string{"120000 link run.sh"}},
	{"link replaced by its like", func(e editor) { e.remove("link"); e.link("README.md", "link") }, nil},
	{"link becomes file of the same bytes", func(e editor) { e.remove("link"); e.write("link", "README.md", 0) }, []string{"100644 link README.md"}},
	{"link to outside", func(e editor) { e.link("/etc/passwd", "out") }, []string{"120000 out /etc/passwd"}},
	{"caches", func(e editor) {
		e.write("pkg/__pycache__/core.cpython-311.pyc", "c", 0)
		e.write(".pytest_cache/v/x", "c", 0)
		e.write("x.pyc", "c", 0)
		e.remove("old/__pycache__")
	}, nil},
	{"a directory with caches only", func(e editor) { e.remove("old"); e.write("dir/.mypy_cache/x/y.json", "", 0) }, nil},
	{".git", func(e editor) {
		e.write(".git/index", "other", 0)
		e.write("sub/.git/HEAD", "x", 0)
		e.remove(".git/objects")
	}, nil},
	{"sorted by bytes", func(e editor) { e.write("b", "", 0); e.write("B", "", 0); e.write("a/z", "", 0); e.write("a.z", "", 0) },
		[]string{"100644 B ", "100644 a.z ", "100644 a/z ", "100644 b "}},
}

// editor makes edits and fails the test where one does not work.
type editor struct {
	t  *testing.T
	sb *env.Sandbox
}

func (e editor) write(p, text string, mode fs.FileMode) {
	e.t.Helper()
	must(e.t, "WriteFile "+p, e.sb.WriteFile(ctx, p, []byte(text), mode))
}
func (e editor) remove(p string) {
	e.t.Helper()
	must(e.t, "Remove "+p, e.sb.Remove(ctx, p))
}
func (e editor) link(target, p string) {
	e.t.Helper()
	must(e.t, "Symlink "+p, e.sb.Symlink(ctx, target, p))
}

func (s *suite) testChanges(t *testing.T) {
	for _, c := range changeCases {
		t.Run(c.name, func(t *testing.T) {
			sb := s.open(t)
			c.do(editor{t, sb})
			s.wantChanges(t, sb, c.want...)
			s.wantChanges(t, sb, c.want...) // looking changes nothing
		})
	}
	t.Run("by a command", func(t *testing.T) {
		sb := s.open(t)
		s.run(t, sb, "write", "pkg/core.py", "cmd")
		s.run(t, sb, "write", "dir/one.txt", "1\n")
		s.wantChanges(t, sb, "100644 pkg/core.py cmd")
	})
}

func (s *suite) testChangesLimit(t *testing.T) {
	sb := s.open(t, env.WithMaxRead(10))
	e := editor{t, sb}
	e.write("a", "01234", 0)
	e.write("b", "56789", 0)
	s.wantChanges(t, sb, "100644 a 01234", "100644 b 56789")
	e.write("c", "x", 0)
	_, err := sb.Changes(ctx)
	wantKind(t, "Changes beyond the limit", err, milepost.KindLimit)
}

func (s *suite) testReset(t *testing.T) {
	sb := s.open(t)
	e := editor{t, sb}
	p, err := sb.Start(ctx, env.Command{Argv: s.Argv("serve")})
	must(t, "Start", err)
	e.remove("pkg")
	e.write("README.md", "changed", 0)
	e.write(".git/HEAD", "elsewhere", 0)
	must(t, "Reset", sb.Reset(ctx))
	s.wantChanges(t, sb)
	if moved, err := sb.GitMoved(ctx); moved || err != nil {
		t.Errorf("GitMoved after Reset: %v %v", moved, err)
	}
	if data, _, err := sb.ReadFile(ctx, "pkg/core.py"); err != nil || string(data) != "x = 1\n" {
		t.Errorf("a removed file after Reset: %q %v", data, err)
	}
	if _, err := p.Wait(); err != nil {
		t.Errorf("Wait for a process that Reset ended: %v", err)
	}
	e.write("new", "n", 0)
	s.wantChanges(t, sb, "100644 new n")
	if r := s.run(t, sb, "read", "new"); string(r.Stdout) != "n" {
		t.Errorf("a command after Reset read %q", r.Stdout)
	}
}

// gitCases are edits below .git and whether they move the repository.
var gitCases = []struct {
	name  string
	do    func(e editor)
	moved bool
}{
	{"nothing", func(editor) {}, false},
	{"index, objects, logs", func(e editor) {
		e.write(".git/index", "other", 0)
		e.write(".git/objects/22/22", "o", 0)
		e.write(".git/logs/HEAD", "l", 0)
		e.write(".git/ORIG_HEAD", "o", 0)
		e.write(".git/COMMIT_EDITMSG", "m", 0)
	}, false},
	{"same HEAD written again", func(e editor) { e.write(".git/HEAD", "ref: refs/heads/main\n", 0) }, false},
	{"HEAD", func(e editor) { e.write(".git/HEAD", "ref: refs/heads/next\n", 0) }, true},
	{"HEAD removed", func(e editor) { e.remove(".git/HEAD") }, true},
	{"HEAD a link", func(e editor) { e.remove(".git/HEAD"); e.link("refs/heads/main", ".git/HEAD") }, true},
	{"branch", func(e editor) { e.write(".git/refs/heads/main", strings.Repeat("2", 40)+"\n", 0) }, true},
	{"new branch", func(e editor) { e.write(".git/refs/heads/x/y", "1", 0) }, true},
	{"tag", func(e editor) { e.write(".git/refs/tags/v1", "1", 0) }, true},
	{"refs a link to outside", func(e editor) { e.remove(".git/refs"); e.link("/etc", ".git/refs") }, true},
	{"packed refs", func(e editor) { e.write(".git/packed-refs", "# pack-refs\n1 refs/heads/z\n", 0) }, true},
	{"configuration", func(e editor) { e.write(".git/config", "[core]\n\tbare = true\n", 0) }, true},
	{"hook", func(e editor) { e.write(".git/hooks/post-checkout", "#!/bin/sh\n", 0o755) }, true},
	{"hook made executable", func(e editor) { e.write(".git/hooks/x.sample", "#!/bin/sh\n", 0o644) }, true},
	{"info", func(e editor) { e.write(".git/info/attributes", "* -text\n", 0) }, true},
	{"alternates", func(e editor) { e.write(".git/objects/info/alternates", "/x\n", 0) }, true},
	{".git removed", func(e editor) { e.remove(".git") }, true},
	{".git a file", func(e editor) { e.remove(".git"); e.write(".git", "gitdir: /x\n", 0) }, true},
	{".git a link to outside", func(e editor) { e.remove(".git"); e.link("/etc", ".git") }, true},
}

func (s *suite) testGit(t *testing.T) {
	for _, c := range gitCases {
		t.Run(c.name, func(t *testing.T) {
			sb := s.open(t)
			e := editor{t, sb}
			e.write("pkg/core.py", "kept", 0)
			c.do(e)
			if moved, err := sb.GitMoved(ctx); moved != c.moved || err != nil {
				t.Errorf("GitMoved: %v %v, want %v", moved, err, c.moved)
			}
			must(t, "RestoreGit", sb.RestoreGit(ctx))
			if moved, err := sb.GitMoved(ctx); moved || err != nil {
				t.Errorf("GitMoved after RestoreGit: %v %v", moved, err)
			}
			for _, p := range []string{".git/objects/11/11", ".git/hooks/x.sample", ".git/refs/heads/main"} {
				if _, err := sb.Stat(ctx, p); err != nil {
					t.Errorf("after RestoreGit: %v", err)
				}
			}
			s.wantChanges(t, sb, "100644 pkg/core.py kept")
		})
	}
}

package repo_test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
)

// A tree as these tests write it: path to content, with "x:" before an executable's, "l:" before a link's target and
// "f:" before any other file's.
type tree map[string]string

var long = strings.Repeat("d", 255) + "/" + strings.Repeat(strings.Repeat("e", 200)+"/", 12) + strings.Repeat("f", 255)

// captureBase has every kind of file that a git tree can hold.
var captureBase = tree{
	"plain.txt": "f:one\ntwo\n", "bin": "f:\x00\x01\xff\xfe\r\n\x00", "run.sh": "x:#!/bin/sh\n", "link": "l:plain.txt", "dangling": "l:/nowhere/at all",
	"crlf.txt": "f:one\r\ntwo\r\n", "mixed.txt": "f:one\r\ntwo\n", "id.py": "f:# $Id$\n", "utf16.txt": "f:\xff\xfeh\x00i\x00", "large.dat": "f:not really a pointer\n",
	".gitattributes": "f:* text=auto eol=crlf\n*.py ident\nutf16.txt working-tree-encoding=UTF-16\n*.dat filter=lfs diff=lfs merge=lfs -text\n*.sub export-subst\n",
	".gitignore":     "f:*.log\nbuild/\n", "tracked.log": "f:ignored, yet tracked\n",
	"caf\xe9.py": "f:latin one\n", "new\nline\"quote\\back\ttab": "f:odd\n", " lead and trail ": "f:blanks\n", "-rf": "f:dash\n", ":(glob)*": "f:magic\n",
	"README": "f:upper\n", "readme": "f:lower\n", "moved/a.py": "f:a\n", "moved/sub/b.py": "f:b\n", "gone/x": "f:x\n", "empty": "f:", "sort": "f:1\n", "sort.d/x": "f:2\n", "sort-x": "f:3\n",
	long: "f:deep\n",
}

func (x tree) write(t testing.TB, dir string) {
	t.Helper()
	for p, c := range x {
		name := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch c[:2] {
		case "l:":
			err = os.Symlink(c[2:], name)
		case "x:":
			err = os.WriteFile(name, []byte(c[2:]), 0o755)
		default:
			err = os.WriteFile(name, []byte(c[2:]), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// readTree is what lies in a folder, .git of the root left out.
func readTree(t testing.TB, dir string) tree {
	t.Helper()
	x := tree{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		p := strings.TrimPrefix(strings.TrimPrefix(name, dir), "/")
		switch {
		case err != nil:
			return err
		case p == ".git":
			return filepath.SkipDir
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(name)
			x[p] = "l:" + target
			return err
		case !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if x[p] = "f:" + string(data); err == nil && info.Mode()&0o100 != 0 {
			x[p] = "x:" + string(data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// id is the tree's id as git computes it in a repository where nothing is converted.
func (x tree) id(t testing.TB, gitlinks ...string) string {
	t.Helper()
	dir := t.TempDir()
	x.write(t, dir)
	runGit(t, dir, "init", "-q")
	if err := os.WriteFile(filepath.Join(dir, ".git/info/attributes"), []byte("* -text -eol -ident -filter -working-tree-encoding\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	runGit(t, dir, "add", "--force", "--all")
	for _, g := range gitlinks {
		runGit(t, dir, "update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("ab", 20)+","+g)
	}
	return runGit(t, dir, "write-tree")
}

func runGit(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@t"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// captures are what an agent does and what the tree is afterwards, as changes of the base: "" removes.
var captures = map[string]struct {
	script string
	want   tree
}{
	"nothing":         {"touch plain.txt && cp bin b && mv b bin && git status >/dev/null && git add -A && git stash -q; git stash pop -q || true", tree{}},
	"text":            {"printf 'one\\nthree\\n' >plain.txt", tree{"plain.txt": "f:one\nthree\n"}},
	"binary":          {"printf '\\0\\377\\r\\n\\0new' >bin; printf '\\0\\1' >bin2", tree{"bin": "f:\x00\xff\r\n\x00new", "bin2": "f:\x00\x01"}},
	"modes":           {"chmod -x run.sh && chmod +x plain.txt && chmod 600 bin", tree{"run.sh": "f:#!/bin/sh\n", "plain.txt": "x:one\ntwo\n"}},
	"links":           {"ln -sf run.sh link && ln -s ../../etc/passwd out && rm dangling && printf file >dangling && rm bin && ln -s plain.txt bin", tree{"link": "l:run.sh", "out": "l:../../etc/passwd", "dangling": "f:file", "bin": "l:plain.txt"}},
	"hard link":       {"ln plain.txt twin", tree{"twin": "f:one\ntwo\n"}},
	"rename":          {"mv plain.txt 'other name'", tree{"plain.txt": "", "other name": "f:one\ntwo\n"}},
	"rename a folder": {"mv moved there && printf c >there/c", tree{"moved/a.py": "", "moved/sub/b.py": "", "there/a.py": "f:a\n", "there/sub/b.py": "f:b\n", "there/c": "f:c"}},
	"swap folders":    {"mv moved m && mv gone moved && mv m gone", tree{"moved/a.py": "", "moved/sub/b.py": "", "gone/x": "", "moved/x": "f:x\n", "gone/a.py": "f:a\n", "gone/sub/b.py": "f:b\n"}},
	"case only":       {"mv plain.txt Plain.TXT && mv readme ReadMe", tree{"plain.txt": "", "Plain.TXT": "f:one\ntwo\n", "readme": "", "ReadMe": "f:lower\n"}},
	"delete":          {"rm -r gone empty && rm moved/a.py", tree{"gone/x": "", "empty": "", "moved/a.py": ""}},
	"delete and make": {"rm -r gone && mkdir gone && printf y >gone/y", tree{"gone/x": "", "gone/y": "f:y"}},
	"file to folder":  {"rm sort && mkdir sort && printf in >sort/x", tree{"sort": "", "sort/x": "f:in"}},
	"folder to file":  {"rm -r sort.d && printf f >sort.d", tree{"sort.d/x": "", "sort.d": "f:f"}},
	"ignored":         {"printf l >new.log && mkdir build && printf o >build/out && printf t >tracked.log", tree{"new.log": "f:l", "build/out": "f:o", "tracked.log": "f:t"}},
	"line ends":       {"printf 'a\\r\\nb\\n' >crlf.txt && printf 'u\\n' >mixed.txt && printf 'n\\r\\n' >new.txt && printf '# $Id$\\nx\\n' >id.py", tree{"crlf.txt": "f:a\r\nb\n", "mixed.txt": "f:u\n", "new.txt": "f:n\r\n", "id.py": "f:# $Id$\nx\n"}},
	"encodings":       {"printf 'plain' >utf16.txt && printf 'v' >large.dat && printf '$Format:%%H$' >a.sub", tree{"utf16.txt": "f:plain", "large.dat": "f:v", "a.sub": "f:$Format:%H$"}},
	"odd names":       {"printf 1 >\"$(printf 'caf\\351.py')\" && rm \"$(printf 'new\\nline\"quote\\\\back\\ttab')\" && printf 2 >\"$(printf '\\376\\nz')\" && printf 3 >./-x && printf 4 >' ' && rm ./-rf ./:*", tree{"caf\xe9.py": "f:1", "new\nline\"quote\\back\ttab": "", "\xfe\nz": "f:2", "-x": "f:3", " ": "f:4", "-rf": "", ":(glob)*": ""}},
	"deep":            {"cd d*/e*/e*/e* && rm -r e* && d=$(printf '%0250d' 1) && mkdir \"$d\" && printf x >\"$d/x\"", tree{long: "", strings.Join(strings.Split(long, "/")[:4], "/") + "/" + strings.Repeat("0", 249) + "1/x": "f:x"}},
	"attributes":      {"printf '* filter=evil\\n*.txt eol=crlf\\n' >.gitattributes && printf 'x\\n' >y.txt && git config filter.evil.clean 'tr x z' && git add -A", tree{".gitattributes": "f:* filter=evil\n*.txt eol=crlf\n", "y.txt": "f:x\n"}},
	"own repository":  {"mkdir lib && cd lib && git init -q && printf x >x && git add x && git -c user.name=t -c user.email=t@t commit -q -m x", tree{"lib/x": "f:x"}},
	"commits":         {"printf x >x && git add x && git -c user.name=t -c user.email=t@t commit -q -m x && rm gone/x", tree{"x": "f:x", "gone/x": ""}},
	"caches":          {"mkdir -p __pycache__ .pytest_cache && printf x >__pycache__/x.pyc && printf y >.pytest_cache/y", tree{}},
	"pipe":            {"rm empty && mkfifo empty fresh", tree{"empty": ""}},
	"empty folders":   {"mkdir -p e/f && rm gone/x", tree{"gone/x": ""}},
	"everything":      {"rm -rf -- * && printf x >x", nil},
}

func TestCaptureInLocalSandbox(t *testing.T) {
	for _, mode := range []local.WorkspaceMode{local.WorkspaceOverlay, local.WorkspaceCopy} {
		t.Run(string(mode), func(t *testing.T) {
			d, err := local.New(local.Config{Root: t.TempDir(), Workspace: mode})
			if err != nil {
				t.Skip(err)
			}
			testCapture(t, env.New(d), mode == local.WorkspaceOverlay)
		})
	}
}

func TestCaptureInContainer(t *testing.T) {
	d, err := docker.New(t.Context(), dockertest.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	testCapture(t, env.New(d), false)
}

// testCapture lets an agent change the base in every way, and rebuilds each result as a worker does; with patches, as other
// harnesses do, too.
func testCapture(t *testing.T, e *env.Env, patches bool) {
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	store, blobs := newStores(t)
	src := t.TempDir()
	captureBase.write(t, src)
	base, err := store.Base(t.Context(), &milepost.Task{ID: "capture", Repo: src, BaseTree: captureBase.id(t)})
	if err != nil {
		t.Fatal(err)
	}
	if got := readTree(t, base.Dir); !maps.Equal(got, captureBase) {
		t.Fatalf("the base is %q", got)
	}
	box, err := e.Create(t.Context(), env.Spec{Base: base.Dir, Image: imageOf(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(captures)) {
		c := captures[name]
		t.Run(name, func(t *testing.T) {
			want := maps.Clone(captureBase)
			if c.want == nil {
				clear(want)
				for p, text := range captureBase {
					if strings.HasPrefix(p, ".") {
						want[p] = text
					}
				}
				want["x"] = "f:x"
			}
			for p, text := range c.want {
				if want[p] = text; text == "" {
					delete(want, p)
				}
			}
			defer func() {
				if err := box.Reset(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			res, err := box.Exec(t.Context(), env.Command{Argv: []string{"sh", "-c", "set -e\n" + c.script}, Env: map[string]string{"HOME": "/tmp"}})
			if err != nil || res.ExitCode != 0 {
				t.Fatalf("exit %d, %v\n%s", res.ExitCode, err, res.Stderr)
			}
			changes, err := box.Changes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			wantTree(t, base, blobs, changes, want)
			if patches {
				wantPatch(t, base, blobs, changes, want)
			}
		})
	}
}

func newStores(t testing.TB) (*repo.Store, *repo.Blobs) {
	t.Helper()
	store, err := repo.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := repo.NewBlobs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return store, blobs
}

// imageOf is the image that the test's driver knows; the local one takes none.
func imageOf(t *testing.T) string {
	if strings.HasPrefix(t.Name(), "TestCaptureInContainer") {
		return dockertest.Image
	}
	return ""
}

// wantTree rebuilds the changes as a worker does and compares ids and bytes.
func wantTree(t *testing.T, base *repo.Base, blobs *repo.Blobs, changes []env.Change, want tree, gitlinks ...string) {
	t.Helper()
	delta, id, err := repo.Delta(base, changes, blobs)
	if err != nil {
		t.Fatal(err)
	}
	if wanted := want.id(t, gitlinks...); id != wanted {
		t.Errorf("tree %s, git says %s; delta %+v", id, wanted, delta)
	}
	if err := base.Prove(delta, id); err != nil {
		t.Error(err)
	}
	dir := filepath.Join(t.TempDir(), "rebuilt")
	if err := repo.Materialise(t.Context(), base, delta, blobs, dir); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, "rebuilt", readTree(t, dir), want)
}

// wantPatch is the same by way of the patch: ApplyPatch, and git apply as another harness calls it.
func wantPatch(t *testing.T, base *repo.Base, blobs *repo.Blobs, changes []env.Change, want tree) {
	t.Helper()
	delta, id, err := repo.Delta(base, changes, blobs)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := repo.Patch(t.Context(), base, delta, blobs)
	if err != nil {
		t.Fatal(err)
	}
	again, tree, err := repo.ApplyPatch(t.Context(), base, patch, blobs)
	if err != nil || tree != id || !slices.Equal(again, delta) {
		t.Errorf("by the patch: tree %s, delta %+v, %v\n%s", tree, again, err, patch)
	}
	wantFiles(t, "git apply", applied(t, base, patch), want)
}

// applied is a copy of the base after git apply, as another harness calls it, on files alone.
func applied(t *testing.T, base *repo.Base, patch string) tree {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "applied")
	if err := repo.Materialise(t.Context(), base, nil, nil, dir); err != nil {
		t.Fatal(err)
	}
	if patch == "" {
		return readTree(t, dir)
	}
	if err := os.Remove(filepath.Join(dir, ".gitattributes")); err != nil { // its eol would be applied to what is patched
		t.Fatal(err)
	}
	runGit(t, dir, "init", "-q")
	runGit(t, dir, "config", "core.attributesFile", "/dev/null")
	if err := os.WriteFile(filepath.Join(dir, ".git/info/attributes"), []byte("* -text -eol -ident -filter -working-tree-encoding\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".gitattributes"), []byte(captureBase[".gitattributes"][2:]), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "-C", dir, "apply", "--binary", "--whitespace=nowarn")
	cmd.Stdin = bytes.NewReader([]byte(patch))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v: %s\n%s", err, out, patch)
	}
	return readTree(t, dir)
}

func wantFiles(t *testing.T, what string, got, want tree) {
	t.Helper()
	for p, text := range want {
		if have, ok := got[p]; !ok || have != text {
			t.Errorf("%s: %q is %q, want %q", what, p, have, text)
		}
	}
	for p := range got {
		if _, ok := want[p]; !ok {
			t.Errorf("%s: %q should not be there", what, p)
		}
	}
}

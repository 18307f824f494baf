package repo

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
)

// secret is in no commit but later ones: whoever reads it has read the solution.
const secret = "def solution(): return 42\n"

// leaky is a repository with a past, a base commit that is checked out, and nothing else yet.
func leaky(t testing.TB) (dir, base string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "repo")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	runGit(t, dir, "init", "-q", "-b", "trunk", "--template=")
	for _, text := range []string{"past\n", "base\n"} {
		writeFiles(t, dir, map[string]file{"a.py": {ModeFile, text}, "run.sh": {ModeExecutable, "#!/bin/sh\n"}})
		runGit(t, dir, "add", "-A")
		runGit(t, dir, "commit", "-q", "-m", strings.TrimSpace(text))
	}
	for _, left := range []string{"logs", "COMMIT_EDITMSG"} {
		if err := os.RemoveAll(filepath.Join(dir, ".git", left)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, runGit(t, dir, "rev-parse", "HEAD")
}

// future makes a commit with the secret on top of HEAD without moving a ref or a file, and returns its id.
func future(t testing.TB, dir string, env ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	index := "GIT_INDEX_FILE=" + filepath.Join(t.TempDir(), "index")
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@t"}, args...)...)
		cmd.Dir, cmd.Env = dir, append(cleanEnv(), append([]string{index, "GIT_COMMITTER_DATE=2030-01-01T00:00:00Z"}, env...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("read-tree", "HEAD")
	git("update-index", "--add", "--cacheinfo", "100644,"+git("hash-object", "-w", name)+",fix.py")
	return git("commit-tree", "-p", "HEAD", "-m", "the fix", git("write-tree"))
}

func put(t testing.TB, text string, parts ...string) {
	t.Helper()
	name := filepath.Join(parts...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// leaks are the ways in which a later commit, or the way to one, can lie in a repository. Each returns what the proof
// must name.
var leaks = map[string]func(t *testing.T, dir string) string{
	"unreachable": func(t *testing.T, dir string) string { return "commit " + future(t, dir) },
	"backdated": func(t *testing.T, dir string) string {
		return "commit " + future(t, dir, "GIT_AUTHOR_DATE=1999-01-01T00:00:00Z", "GIT_COMMITTER_DATE=1999-01-01T00:00:00Z")
	},
	"blob alone": func(t *testing.T, dir string) string {
		put(t, secret, dir, "..", "s")
		return "blob " + runGit(t, dir, "hash-object", "-w", "../s")
	},
	"branch": func(t *testing.T, dir string) string {
		runGit(t, dir, "branch", "fixed", future(t, dir))
		return "refs/heads/fixed"
	},
	"tag": func(t *testing.T, dir string) string {
		runGit(t, dir, "tag", "v2", future(t, dir))
		return "refs/tags/v2"
	},
	"annotated tag of the base": func(t *testing.T, dir string) string {
		runGit(t, dir, "tag", "-a", "-m", secret, "v1")
		return "tag " + runGit(t, dir, "rev-parse", "v1")
	},
	"packed refs": func(t *testing.T, dir string) string {
		runGit(t, dir, "tag", "v2", future(t, dir))
		runGit(t, dir, "pack-refs", "--all")
		return "refs/tags/v2"
	},
	"remote": func(t *testing.T, dir string) string {
		runGit(t, dir, "remote", "add", "origin", "https://example.org/x.git")
		runGit(t, dir, "update-ref", "refs/remotes/origin/main", future(t, dir))
		return "remote.origin.url"
	},
	"reflog": func(t *testing.T, dir string) string {
		base := runGit(t, dir, "rev-parse", "HEAD")
		runGit(t, dir, "reset", "-q", "--hard", future(t, dir))
		runGit(t, dir, "reset", "-q", "--hard", base)
		return ".git/logs/HEAD"
	},
	"stash": func(t *testing.T, dir string) string {
		writeFiles(t, dir, map[string]file{"a.py": {ModeFile, secret}})
		runGit(t, dir, "stash", "-q")
		return "refs/stash"
	},
	"staged": func(t *testing.T, dir string) string {
		writeFiles(t, dir, map[string]file{"staged.py": {ModeFile, secret}})
		runGit(t, dir, "add", "staged.py")
		if err := os.Remove(filepath.Join(dir, "staged.py")); err != nil {
			t.Fatal(err)
		}
		return "blob " + HashBlob([]byte(secret))
	},
	"notes": func(t *testing.T, dir string) string {
		runGit(t, dir, "notes", "add", "-m", secret)
		return "refs/notes/commits"
	},
	"replacement": func(t *testing.T, dir string) string {
		runGit(t, dir, "replace", "HEAD", future(t, dir))
		return "refs/replace/"
	},
	"graft": func(t *testing.T, dir string) string { // git itself now believes that the fix is the base's past
		fix := future(t, dir)
		put(t, runGit(t, dir, "rev-parse", "HEAD")+" "+fix+"\n", dir, ".git", "info", "grafts")
		return "commit " + fix
	},
	"pack": func(t *testing.T, dir string) string {
		fix := future(t, dir)
		runGit(t, dir, "branch", "x", fix)
		runGit(t, dir, "repack", "-q", "-a", "-d")
		runGit(t, dir, "update-ref", "-d", "refs/heads/x")
		return "commit " + fix
	},
	"pack without index": func(t *testing.T, dir string) string {
		leakIntoPack(t, dir)
		for _, ext := range []string{"idx", "rev"} {
			names, _ := filepath.Glob(filepath.Join(dir, ".git/objects/pack/extra-*."+ext))
			for _, n := range names {
				if err := os.Remove(n); err != nil {
					t.Fatal(err)
				}
			}
		}
		return ".git/objects/pack/extra-"
	},
	"alternates": func(t *testing.T, dir string) string {
		other, _ := leaky(t)
		fix := future(t, other)
		put(t, filepath.Join(other, ".git", "objects")+"\n", dir, ".git", "objects", "info", "alternates")
		return "commit " + fix
	},
	"worktree": func(t *testing.T, dir string) string {
		runGit(t, dir, "worktree", "add", "-q", "--detach", filepath.Join(t.TempDir(), "other"), future(t, dir))
		return ".git/worktrees/other/HEAD"
	},
	"fetch head": func(t *testing.T, dir string) string {
		put(t, secret, dir, ".git", "FETCH_HEAD")
		return ".git/FETCH_HEAD"
	},
	"orig head": func(t *testing.T, dir string) string {
		put(t, future(t, dir)+"\n", dir, ".git", "ORIG_HEAD")
		return ".git/ORIG_HEAD"
	},
	"hook": func(t *testing.T, dir string) string {
		put(t, secret, dir, ".git", "hooks", "pre-commit")
		return ".git/hooks/pre-commit"
	},
	"large file cache": func(t *testing.T, dir string) string {
		put(t, secret, dir, ".git", "lfs", "objects", "ab", "cd", "abcd")
		return ".git/lfs/objects/"
	},
	"commit graph": func(t *testing.T, dir string) string {
		runGit(t, dir, "commit-graph", "write", "--reachable")
		return ".git/objects/info/commit-graph"
	},
	"included settings": func(t *testing.T, dir string) string {
		runGit(t, dir, "config", "include.path", "/x")
		return "include.path"
	},
	"bundle": func(t *testing.T, dir string) string {
		runGit(t, dir, "branch", "x", future(t, dir))
		runGit(t, dir, "bundle", "create", "-q", ".git/x.bundle", "x")
		return ".git/x.bundle"
	},
	"store of a submodule": func(t *testing.T, dir string) string {
		other, _ := leaky(t)
		runGit(t, dir, "clone", "-q", "--bare", other, ".git/modules/sub")
		return ".git/modules/sub/HEAD"
	},
	"repository inside": func(t *testing.T, dir string) string {
		other, _ := leaky(t)
		runGit(t, dir, "clone", "-q", other, "vendor/sub")
		return "./vendor/sub/.git"
	},
	"bare one inside": func(t *testing.T, dir string) string {
		other, _ := leaky(t)
		runGit(t, dir, "clone", "-q", "--bare", other, "cache/sub")
		return "./cache/sub"
	},
	"link in .git": func(t *testing.T, dir string) string {
		other, _ := leaky(t)
		if err := os.Symlink(filepath.Join(other, ".git", "objects"), filepath.Join(dir, ".git", "objects", "aa")); err != nil {
			t.Fatal(err)
		}
		return ".git/objects/aa"
	},
}

// leakIntoPack leaves a pack of the future beside the store's own, under a name that git does not read.
func leakIntoPack(t *testing.T, dir string) {
	t.Helper()
	fix := future(t, dir)
	cmd := exec.Command("git", "pack-objects", "-q", "--revs", ".git/objects/pack/extra")
	cmd.Dir, cmd.Env, cmd.Stdin = dir, cleanEnv(), strings.NewReader(fix+"\n^HEAD\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runGit(t, dir, "prune", "--expire=now")
}

// TestScrubEndsEveryLeak makes each leak, sees it named, scrubs it, and looks for the secret the way an agent would.
func TestScrubEndsEveryLeak(t *testing.T) {
	for name, leak := range leaks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, base := leaky(t)
			if p, err := ProveScrubbed(t.Context(), Host{}, dir, base); err != nil || p.Commits != 2 || p.Objects != 7 || p.Base != base {
				t.Fatalf("before the leak: %+v, %v", p, err)
			}
			names := leak(t, dir)
			p, err := ProveScrubbed(t.Context(), Host{}, dir, base)
			wantKind(t, err, milepost.KindInvalid, "not scrubbed", "milepost tasks scrub")
			found := false
			for _, f := range p.Findings {
				found = found || strings.HasPrefix(f.Name, names) && f.Detail != ""
			}
			if !found {
				t.Fatalf("no finding names %q: %+v", names, p.Findings)
			}
			for range 2 { // a second time changes nothing
				if p, err = Scrub(t.Context(), Host{}, dir, base); err != nil || p.Commits != 2 || p.Objects != 7 {
					t.Fatalf("scrubbed: %+v, %v", p, err)
				}
			}
			wantNoSecret(t, dir, base)
		})
	}
}

// wantNoSecret looks for the secret with git and, past git, in every file of the repository.
func wantNoSecret(t *testing.T, dir, base string) {
	t.Helper()
	if got := runGit(t, dir, "log", "--all", "--format=%H", "--max-count=1"); got != base {
		t.Errorf("git log --all begins at %s", got)
	}
	if got := runGit(t, dir, "fsck", "--lost-found", "--full", "--strict"); strings.Contains(got, "dangling") {
		t.Errorf("git fsck: %s", got)
	}
	for _, args := range []string{"reflog --all", "stash list", "tag", "remote", "notes", "replace -l", "status --porcelain --untracked-files=no"} {
		if got := runGit(t, dir, strings.Fields(args)...); got != "" {
			t.Errorf("git %s: %s", args, got)
		}
	}
	if got := runGit(t, dir, "worktree", "list"); strings.Count(got, "\n") != 0 {
		t.Errorf("git worktree list: %s", got)
	}
	blob := HashBlob([]byte(secret))
	if err := exec.Command("git", "-C", dir, "cat-file", "-e", blob).Run(); err == nil {
		t.Error("the secret can be read by its id")
	}
	err := filepath.WalkDir(filepath.Join(dir, ".git"), func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if strings.Contains(string(data), strings.TrimSpace(secret)) {
			t.Errorf("%s holds the secret", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestScrubbedRepositoryWorks uses the new repository as an agent would.
func TestScrubbedRepositoryWorks(t *testing.T) {
	dir, base := leaky(t)
	runGit(t, dir, "config", "user.name", "someone")
	runGit(t, dir, "branch", "fixed", future(t, dir))
	writeFiles(t, dir, map[string]file{"a.py": {ModeFile, "changed\n"}, "untracked": {ModeFile, "u\n"}})
	runGit(t, dir, "add", "a.py")
	if _, err := Scrub(t.Context(), Host{Dir: dir}, "", ""); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"rev-parse HEAD": base, "branch --show-current": "main", "log --format=%s": "base\npast", "config --local user.name": "someone",
		"status --porcelain": "M a.py\n?? untracked", "show HEAD~1:a.py": "past", "diff --name-only": "a.py",
	} {
		if got := runGit(t, dir, strings.Fields(args)...); got != want {
			t.Errorf("git %s: %q, want %q", args, got, want)
		}
	}
	runGit(t, dir, "stash", "-q")
	runGit(t, dir, "stash", "pop", "-q")
	runGit(t, dir, "commit", "-q", "-a", "-m", "mine")
	runGit(t, dir, "checkout", "-q", "-b", "other", base)
}

// TestProofGoesByReachability: a clock that went wrong is no leak.
func TestProofGoesByReachability(t *testing.T) {
	dir, _ := leaky(t)
	late := runGit(t, dir, "rev-parse", future(t, dir)) // dated 2030
	runGit(t, dir, "reset", "-q", "--hard", late)
	writeFiles(t, dir, map[string]file{"b.py": {ModeFile, "b\n"}})
	runGit(t, dir, "add", "-A")
	runGit(t, dir, "commit", "-q", "-m", "dated 2001, after one dated 2030")
	p, err := Scrub(t.Context(), Host{}, dir, "")
	if err != nil || p.Commits != 4 {
		t.Fatalf("%+v, %v", p, err)
	}
}

func TestScrubRefuses(t *testing.T) {
	dir, base := leaky(t)
	past := runGit(t, dir, "rev-parse", "HEAD~1")
	scrub := func(dir, base string) error { _, err := Scrub(t.Context(), Host{}, dir, base); return err }
	wantKind(t, scrub(dir, past), milepost.KindInvalid, "HEAD is not at "+past)
	wantKind(t, scrub(dir, HashBlob(nil)), milepost.KindInvalid, "no commit "+HashBlob(nil))
	wantKind(t, scrub(dir, "--help"), milepost.KindInvalid, "--help")
	wantKind(t, scrub(filepath.Join(dir, "gone"), ""), milepost.KindInvalid, "gone")
	wantKind(t, scrub(t.TempDir(), ""), milepost.KindInvalid, "no git repository")
	_, err := ProveScrubbed(t.Context(), Host{}, dir, past)
	wantKind(t, err, milepost.KindInvalid, "HEAD is at "+base)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = ProveScrubbed(ctx, Host{}, dir, base)
	wantKind(t, err, milepost.KindCanceled)
	plain := t.TempDir()
	if p, err := ProveScrubbed(t.Context(), Host{}, plain, ""); err != nil || p.Base != "" || p.Objects != 0 {
		t.Fatalf("a plain folder: %+v, %v", p, err)
	}
	runGit(t, dir, "config", "core.sparseCheckout", "true")
	wantKind(t, scrub(dir, base), milepost.KindInvalid, "sparse")
}

// TestScrubOfALinkedWorktree: the checkout becomes a repository of its own, the main one is left alone.
func TestScrubOfALinkedWorktree(t *testing.T) {
	main, base := leaky(t)
	fix := future(t, main)
	runGit(t, main, "branch", "fixed", fix)
	dir := filepath.Join(t.TempDir(), "linked")
	runGit(t, main, "worktree", "add", "-q", "--detach", dir, base)
	_, err := ProveScrubbed(t.Context(), Host{}, dir, base)
	wantKind(t, err, milepost.KindInvalid, "elsewhere")
	if _, err := Scrub(t.Context(), Host{}, dir, base); err != nil {
		t.Fatal(err)
	}
	wantNoSecret(t, dir, base)
	if got := runGit(t, main, "rev-parse", "fixed"); got != fix {
		t.Errorf("the main repository lost its branch")
	}
}

// TestScrubOfAShallowClone: the clone stays shallow, at the base's own end and no other.
func TestScrubOfAShallowClone(t *testing.T) {
	from, base := leaky(t)
	runGit(t, from, "branch", "fixed", future(t, from))
	dir := filepath.Join(t.TempDir(), "clone")
	runGit(t, t.TempDir(), "clone", "-q", "--depth=1", "--no-single-branch", "file://"+from, dir)
	p, err := ProveScrubbed(t.Context(), Host{}, dir, base)
	wantKind(t, err, milepost.KindInvalid)
	if !slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Name == ".git/shallow" }) {
		t.Errorf("the ends of other branches are not found: %+v", p.Findings)
	}
	p, err = Scrub(t.Context(), Host{}, dir, base)
	if err != nil || p.Commits != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	wantNoSecret(t, dir, base)
}

// TestScrubGoesOnWhereItWasEnded: .git was removed and its successor is ready.
func TestScrubGoesOnWhereItWasEnded(t *testing.T) {
	dir, base := leaky(t)
	if err := os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, ".git.milepost-ready")); err != nil {
		t.Fatal(err)
	}
	put(t, "half", dir, ".git.milepost-new", "HEAD")
	if _, err := Scrub(t.Context(), Host{}, dir, base); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".git.*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	wantNoSecret(t, dir, base)
}

package repo_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/docker"
	"github.com/milepost-rl/milepost/env/docker/dockertest"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
)

// leakyRepository has a base commit checked out, and a later one with the solution in every place an agent would look.
func leakyRepository(t *testing.T) (dir, base, solution string) {
	t.Helper()
	dir = t.TempDir()
	runGit(t, dir, "init", "-q", "-b", "trunk")
	runGit(t, dir, "config", "user.email", "t@t")
	for _, text := range []string{"past\n", "base\n"} {
		tree{"a.py": "f:" + text}.write(t, dir)
		runGit(t, dir, "add", "-A")
		runGit(t, dir, "commit", "-q", "-m", strings.TrimSpace(text))
	}
	base = runGit(t, dir, "rev-parse", "HEAD")
	tree{"a.py": "f:the solution\n"}.write(t, dir)
	runGit(t, dir, "commit", "-q", "-a", "-m", "a first fix")
	runGit(t, dir, "commit", "-q", "--amend", "-m", "the fix")
	solution = repo.HashBlob([]byte("the solution\n"))
	runGit(t, dir, "tag", "v2")
	runGit(t, dir, "notes", "add", "-m", "see v2")
	runGit(t, dir, "worktree", "add", "-q", "--detach", filepath.Join(t.TempDir(), "other"), "v2")
	runGit(t, dir, "update-ref", "refs/remotes/origin/main", "v2")
	runGit(t, dir, "remote", "add", "origin", "https://example.org/x.git")
	runGit(t, dir, "gc", "-q")
	runGit(t, dir, "checkout", "-q", base)
	tree{"a.py": "f:the solution, stashed\n"}.write(t, dir)
	runGit(t, dir, "stash", "-q")
	return dir, base, solution
}

// attempts are what an agent tries: each prints nothing where there is nothing to find.
var attempts = map[string]string{
	"log of all":           `git log --all --format=%s | grep -vxE 'base|past'`,
	"lost and found":       `git fsck --lost-found --no-reflogs 2>&1 | grep dangling; ls -A .git/lost-found/* 2>/dev/null`,
	"reflog":               `git reflog --all | grep -v 'HEAD@{0}.*: $'; cat .git/logs/HEAD 2>/dev/null`,
	"stash":                `git stash list; git show stash@{0} 2>/dev/null`,
	"tags":                 `git tag; cat .git/packed-refs 2>/dev/null`,
	"every object":         `git cat-file --batch-all-objects --batch-check='%(objectname)' | git cat-file --batch | grep -a solution`,
	"by id":                `git cat-file -p $SOLUTION 2>/dev/null`,
	"alternates":           `cat .git/objects/info/alternates 2>/dev/null`,
	"worktrees":            `git worktree list | tail -n +2; ls .git/worktrees 2>/dev/null`,
	"remotes":              `git remote -v; git config --get-regexp '^remote|^branch'; git branch -r`,
	"notes, replacements":  `git notes list 2>/dev/null; git replace -l`,
	"saved heads":          `cat .git/ORIG_HEAD .git/FETCH_HEAD .git/COMMIT_EDITMSG 2>/dev/null`,
	"fetch from elsewhere": `git fetch -q --all 2>/dev/null; git log --all --format=%s | grep -vxE 'base|past'`,
	"repository of origin": `cat "$ORIGIN/a.py" "$ORIGIN/.git/HEAD" 2>/dev/null`,
}

// uses are what an agent needs git for; each must end well, in a workspace whose a.py is as the base has it.
var uses = []string{
	`git log -1 --format=%s | grep -x base`, `test -z "$(git status --porcelain)"`, `git diff --quiet`,
	`echo mine >>a.py && git diff | grep '^+mine'`, `git stash -q && grep -x base a.py && git stash pop -q && grep mine a.py`,
	`git checkout -q a.py && grep -x base a.py`, `git blame a.py | grep base`, `git show HEAD:a.py | grep -x base`, `git grep -q base`,
}

func TestAgentFindsNoSolutionLocally(t *testing.T) {
	d, err := local.New(local.Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	testNoSolution(t, env.New(d), "")
}

func TestAgentFindsNoSolutionInContainer(t *testing.T) {
	d, err := docker.New(t.Context(), dockertest.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	testNoSolution(t, env.New(d), dockertest.Image)
}

// testNoSolution lets an agent look for the solution in a sandbox of the base that the store makes, and in one of the
// repository itself after it was scrubbed there.
func testNoSolution(t *testing.T, e *env.Env, image string) {
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	origin, commit, solution := leakyRepository(t)
	store, _ := newStores(t)
	base, err := store.Base(t.Context(), &milepost.Task{ID: "leaky", Repo: origin, BaseCommit: commit, BaseTree: runGit(t, origin, "rev-parse", commit+"^{tree}")})
	if err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"base": base.Dir, "scrubbed": origin} {
		t.Run(name, func(t *testing.T) {
			box, err := e.Create(t.Context(), env.Spec{Base: dir, Image: image})
			if err != nil {
				t.Fatal(err)
			}
			sh := func(script string) env.Result {
				t.Helper()
				res, err := box.Exec(t.Context(), env.Command{Argv: []string{"sh", "-c", script},
					Env: map[string]string{"HOME": "/tmp", "ORIGIN": origin, "SOLUTION": solution, "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t", "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t"}})
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			if name == "scrubbed" {
				for what, script := range attempts { // what finds nothing here would prove nothing below
					if res := sh(script); len(res.Stdout) == 0 && what != "alternates" && what != "repository of origin" {
						t.Errorf("before the scrub, %s finds nothing: %s", what, res.Stderr)
					}
				}
				_, err := repo.ProveScrubbed(t.Context(), box, "", commit)
				wantError(t, err, milepost.KindInvalid, "is not reachable from the base commit")
				if p, err := repo.Scrub(t.Context(), box, "", commit); err != nil || p.Commits != 2 || p.Base != commit {
					t.Fatalf("%+v, %v", p, err)
				}
			}
			if p, err := repo.ProveScrubbed(t.Context(), box, box.Root(), ""); err != nil || p.Objects == 0 {
				t.Fatalf("%+v, %v", p, err)
			}
			for what, script := range attempts {
				if res := sh(script); len(res.Stdout) > 0 {
					t.Errorf("%s: %s", what, res.Stdout)
				}
			}
			for _, script := range uses {
				if res := sh(script); res.ExitCode != 0 {
					t.Errorf("%s: exit %d\n%s%s", script, res.ExitCode, res.Stdout, res.Stderr)
				}
			}
		})
	}
}

func wantError(t *testing.T, err error, kind milepost.Kind, words ...string) {
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

// TestSubmodules: the entry is carried, its content is not in the tree; whoever writes there is told.
func TestSubmodules(t *testing.T) {
	files := tree{"a.py": "f:a\n", ".gitmodules": "f:[submodule \"lib\"]\n\tpath = lib\n\turl = https://example.org/lib.git\n"}
	origin := t.TempDir()
	files.write(t, origin)
	runGit(t, origin, "init", "-q")
	runGit(t, origin, "add", "-A")
	runGit(t, origin, "update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("ab", 20)+",lib")
	runGit(t, origin, "commit", "-q", "-m", "base")
	store, blobs := newStores(t)
	base, err := store.Base(t.Context(), &milepost.Task{ID: "sub", Repo: origin, BaseCommit: runGit(t, origin, "rev-parse", "HEAD"), BaseTree: files.id(t, "lib")})
	if err != nil {
		t.Fatal(err)
	}
	d, err := local.New(local.Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	e := env.New(d)
	defer e.Close()
	box, err := e.Create(t.Context(), env.Spec{Base: base.Dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.WriteFile(t.Context(), "a.py", []byte("b\n"), 0); err != nil {
		t.Fatal(err)
	}
	changes, err := box.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files["a.py"] = "f:b\n"
	wantTree(t, base, blobs, changes, files, "lib")
	for p, words := range map[string]string{"lib/x.py": `lies in the submodule "lib"`, "lib": "is a submodule"} {
		_, _, err := repo.Delta(base, []env.Change{{Path: p, Mode: 0o100644, Data: []byte("x")}}, blobs)
		wantError(t, err, milepost.KindInvalid, p, words)
	}
}

// TestScrubOfACheckedOutSubmodule: its files stay, its store and the file that leads there go.
func TestScrubOfACheckedOutSubmodule(t *testing.T) {
	lib, _, _ := leakyRepository(t)
	dir := t.TempDir()
	runGit(t, dir, "init", "-q")
	runGit(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", lib, "lib")
	runGit(t, dir, "commit", "-q", "-m", "base")
	p, err := repo.ProveScrubbed(t.Context(), repo.Host{}, dir, "")
	wantError(t, err, milepost.KindInvalid)
	var names []string
	for _, f := range p.Findings {
		names = append(names, f.Name)
	}
	if all := strings.Join(names, "\n"); !strings.Contains(all, ".git/modules/lib/") || !strings.Contains(all, "./lib/.git") {
		t.Errorf("found:\n%s", all)
	}
	if _, err := repo.Scrub(t.Context(), repo.Host{}, dir, ""); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "lib/a.py")); err != nil || len(data) == 0 {
		t.Errorf("the submodule's files are gone: %v", err)
	}
	if got := runGit(t, dir, "status", "--porcelain"); got != "" {
		t.Errorf("git status: %s", got)
	}
	if got := runGit(t, dir, "rev-parse", "HEAD:lib"); got != runGit(t, lib, "rev-parse", "HEAD") {
		t.Errorf("the entry is %s", got)
	}
}

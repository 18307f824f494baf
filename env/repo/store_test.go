package repo

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/milepost-rl/milepost"
)

func TestBaseIsScrubbedAndExact(t *testing.T) {
	task := sampleTask(t, sampleFiles)
	store, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := store.Base(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	if b.Tree != task.BaseTree || b.Index.TreeID() != task.BaseTree {
		t.Fatalf("tree %s, index %s, want %s", b.Tree, b.Index.TreeID(), task.BaseTree)
	}
	if b.Commit == task.BaseCommit || runGit(t, b.Dir, "rev-list", "--all") != b.Commit {
		t.Fatalf("commits %q, want only %s", runGit(t, b.Dir, "rev-list", "--all"), b.Commit)
	}
	objects := runGit(t, b.Dir, "cat-file", "--batch-all-objects", "--batch-check")
	if n := strings.Count(objects, " commit "); n != 1 {
		t.Fatalf("%d commit objects:\n%s", n, objects)
	}
	for _, secret := range []string{"the fix\n", "earlier\n"} {
		if strings.Contains(objects, HashBlob([]byte(secret))) {
			t.Fatalf("the base holds the blob %q of another commit", secret)
		}
	}
	if refs := runGit(t, b.Dir, "for-each-ref"); strings.Count(refs, "\n") != 0 || !strings.Contains(refs, "refs/heads/main") {
		t.Fatalf("refs:\n%s", refs)
	}
	if status := runGit(t, b.Dir, "status", "--porcelain"); status != "" {
		t.Fatalf("the checkout is not clean:\n%s", status)
	}
	if logs, _ := filepath.Glob(filepath.Join(b.Dir, ".git", "logs")); len(logs) > 0 {
		t.Fatal("the base has a reflog")
	}
	again, err := store.Base(t.Context(), task)
	if err != nil || again != b {
		t.Fatalf("a second call made another base (%v)", err)
	}
}

func TestBaseErrors(t *testing.T) {
	store, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	good := sampleTask(t, sampleFiles)
	get := func(change func(*milepost.Task)) error {
		task := *good
		change(&task)
		_, err := store.Base(t.Context(), &task)
		return err
	}
	other := HashBlob([]byte("other"))
	wantKind(t, get(func(x *milepost.Task) { x.BaseTree = other }), milepost.KindInvalid, "sample", good.BaseTree, other)
	wantKind(t, get(func(x *milepost.Task) { x.BaseTree = "" }), milepost.KindInvalid, "40 lower-case hex digits")
	wantKind(t, get(func(x *milepost.Task) { x.BaseCommit = other }), milepost.KindInvalid, "no commit", other)
	wantKind(t, get(func(x *milepost.Task) { x.BaseCommit = "--help" }), milepost.KindInvalid, "base commit")
	wantKind(t, get(func(x *milepost.Task) { x.Repo = filepath.Join(x.Repo, "gone") }), milepost.KindNotFound, "gone")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = store.Base(ctx, good)
	wantKind(t, err, milepost.KindCanceled)
	if left, _ := filepath.Glob(filepath.Join(store.dir, "*.tmp")); len(left) > 1 { // the cancelled one may still be building
		t.Fatalf("half-made bases left: %v", left)
	}
	if _, err := store.Base(t.Context(), good); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedBaseIsNoticed(t *testing.T) {
	task := sampleTask(t, sampleFiles)
	for name, damage := range map[string]func(dir string) error{
		"changed": func(dir string) error { return os.WriteFile(filepath.Join(dir, "pkg/core.py"), []byte("evil"), 0o644) },
		"added":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "conftest.py"), nil, 0o644) },
		"removed": func(dir string) error { return os.Remove(filepath.Join(dir, "run.sh")) },
		"mode":    func(dir string) error { return os.Chmod(filepath.Join(dir, "run.sh"), 0o644) },
		"fetched": func(dir string) error { future(t, dir); return nil },
		"remote": func(dir string) error {
			runGit(t, dir, "remote", "add", "origin", "https://example.org/x.git")
			return nil
		},
		"reflog": func(dir string) error { runGit(t, dir, "reset", "-q", "--hard"); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first, err := NewStore(dir)
			if err != nil {
				t.Fatal(err)
			}
			b, err := first.Base(t.Context(), task)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(b.Dir); err != nil {
				t.Fatal(err)
			}
			second, err := NewStore(dir)
			if err != nil {
				t.Fatal(err)
			}
			_, err = second.Base(t.Context(), task)
			wantKind(t, err, milepost.KindCorrupt, b.Dir)
		})
	}
}

func TestExportImport(t *testing.T) {
	b, _ := sampleBase(t)
	from, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var pack bytes.Buffer
	if err := from.Export(t.Context(), b, &pack); err != nil {
		t.Fatal(err)
	}
	to, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, err = to.Import(t.Context(), b.Tree, bytes.NewReader(pack.Bytes()[:pack.Len()/2]))
	wantKind(t, err, milepost.KindCorrupt)
	if to.Has(b.Tree) {
		t.Fatal("half a pack made a base")
	}
	var more bytes.Buffer // a pack that holds the tree, and something else
	future(t, b.Dir)
	objects := runGit(t, b.Dir, "rev-list", "--objects", "--no-object-names", b.Tree) + "\n" + HashBlob([]byte(secret)) + "\n"
	err = gitCommand{dir: b.Dir, stdin: strings.NewReader(objects), args: []string{"pack-objects", "--stdout", "-q"}}.stream(t.Context(), "test", milepost.KindInternal, &more)
	if err != nil {
		t.Fatal(err)
	}
	_, err = to.Import(t.Context(), b.Tree, &more)
	wantKind(t, err, milepost.KindCorrupt, "not scrubbed", HashBlob([]byte(secret)))
	if to.Has(b.Tree) {
		t.Fatal("a pack with more than the tree made a base")
	}
	got, err := to.Import(t.Context(), b.Tree, bytes.NewReader(pack.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if got.Tree != b.Tree || got.Commit != b.Commit {
		t.Fatalf("imported %s %s, want %s %s", got.Tree, got.Commit, b.Tree, b.Commit)
	}
	remote := &milepost.Task{ID: "remote", Repo: "/nowhere", BaseTree: b.Tree}
	if again, err := to.Base(t.Context(), remote); err != nil || again != got {
		t.Fatalf("Base does not use the imported one: %v", err)
	}
}

// TestManyBuildersOneBase lets goroutines of several stores and several processes ask for one tree at once, with the
// remains of a dead builder in the way.
func TestManyBuildersOneBase(t *testing.T) {
	if dir := os.Getenv("MILEPOST_TEST_STORE"); dir != "" { // in the child process
		store, err := NewStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		task := &milepost.Task{ID: "sample", Repo: os.Getenv("MILEPOST_TEST_REPO"), BaseCommit: os.Getenv("MILEPOST_TEST_COMMIT"), BaseTree: os.Getenv("MILEPOST_TEST_TREE")}
		if _, err := store.Base(t.Context(), task); err != nil {
			t.Fatal(err)
		}
		return
	}
	task, dir := sampleTask(t, sampleFiles), t.TempDir()
	writeFiles(t, filepath.Join(dir, task.BaseTree+".tmp"), map[string]file{"half": {ModeFile, "dead builder"}})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestManyBuildersOneBase$")
			cmd.Env = append(os.Environ(), "MILEPOST_TEST_STORE="+dir, "MILEPOST_TEST_REPO="+task.Repo,
				"MILEPOST_TEST_COMMIT="+task.BaseCommit, "MILEPOST_TEST_TREE="+task.BaseTree)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("child: %v\n%s", err, out)
			}
		})
		wg.Go(func() {
			store, err := NewStore(dir)
			if err != nil {
				t.Error(err)
				return
			}
			var inner sync.WaitGroup
			for range 4 {
				inner.Go(func() {
					if _, err := store.Base(t.Context(), task); err != nil {
						t.Error(err)
					}
				})
			}
			inner.Wait()
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != task.BaseTree && e.Name() != task.BaseTree+".lock" {
			t.Fatalf("%s is left in the store", e.Name())
		}
	}
}

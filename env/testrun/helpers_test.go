package testrun

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/driver"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
)

// bench is a Runner with what it needs.
type bench struct {
	*Runner
	t     testing.TB
	blobs *repo.Blobs
	store *repo.Store
}

func newBench(t testing.TB, change func(*Config)) *bench {
	t.Helper()
	return newBenchOn(t, local.Config{Root: t.TempDir()}, change)
}

func newBenchOn(t testing.TB, where local.Config, change func(*Config)) *bench {
	t.Helper()
	d, err := local.New(where)
	if err != nil {
		t.Fatal(err)
	}
	return newBenchWith(t, d, change)
}

func newBenchWith(t testing.TB, d driver.Driver, change func(*Config)) *bench {
	t.Helper()
	e := env.New(d)
	b := &bench{t: t}
	var err error
	if b.store, err = repo.NewStore(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if b.blobs, err = repo.NewBlobs(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Scratch = filepath.Join("/dev/shm", filepath.Base(t.TempDir())+"-"+strings.ReplaceAll(t.Name(), "/", "-"))
	cfg.Slots = 1
	cfg.Grace = 2 * time.Second
	if change != nil {
		change(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	b.Runner = New(cfg, e, b.store, b.blobs)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(cfg.Scratch); err == nil && len(left) > 0 {
			t.Errorf("%d folders left in the scratch folder", len(left))
		}
		_ = os.RemoveAll(cfg.Scratch)
	})
	return b
}

// task makes a repository of the files and a task of the tests on it.
func (b *bench) task(files map[string]string, tests ...string) *milepost.Task {
	b.t.Helper()
	dir := b.t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@t"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	for path, text := range files {
		name := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	git("add", "-A")
	git("commit", "-q", "--allow-empty", "-m", "base")
	slices.Sort(tests)
	return &milepost.Task{
		ID: "sample", Repo: dir, BaseCommit: git("rev-parse", "HEAD"), BaseTree: git("rev-parse", "HEAD^{tree}"), Tests: tests,
		Test: milepost.TestCommand{Argv: []string{"python3", "-m", "unittest", "discover", "-v"}, Format: "unittest", Resident: "unittest", Timeout: 20 * time.Second},
	}
}

// delta makes the difference that the changes are from the task's base; data nil deletes.
func (b *bench) delta(task *milepost.Task, files map[string]*string) ([]milepost.TreeChange, string) {
	b.t.Helper()
	base, err := b.store.Base(b.t.Context(), task)
	if err != nil {
		b.t.Fatal(err)
	}
	var changes []env.Change
	for path, text := range files {
		if text == nil {
			changes = append(changes, env.Change{Path: path, Deleted: true})
		} else {
			changes = append(changes, env.Change{Path: path, Mode: repo.ModeFile, Data: []byte(*text)})
		}
	}
	delta, tree, err := repo.Delta(base, changes, b.blobs)
	if err != nil {
		b.t.Fatal(err)
	}
	return delta, tree
}

// run runs the task's tests on its base and wants the status and the states, one letter a test.
func (b *bench) run(task *milepost.Task, status milepost.ProbeStatus, states string) Outcome {
	b.t.Helper()
	return b.runOn(task, task.BaseTree, nil, status, states)
}

func (b *bench) runOn(task *milepost.Task, tree string, delta []milepost.TreeChange, status milepost.ProbeStatus, states string) Outcome {
	b.t.Helper()
	out, err := b.Run(b.t.Context(), task, tree, delta)
	if err != nil {
		b.t.Fatal(err)
	}
	letters, err := out.Report.MarshalText()
	if err != nil {
		b.t.Fatal(err)
	}
	if out.Status != status || string(letters) != states {
		b.t.Fatalf("%s %s (%s), want %s %s\n%s", out.Status, letters, out.Reason, status, states, out.Log)
	}
	return out
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

func text(s string) *string { return &s }

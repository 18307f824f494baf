package shadow

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// gitRepo makes a repository with one commit and sets the task's repository, commit and tree to it.
func gitRepo(t testing.TB, task *milepost.Task) {
	t.Helper()
	dir := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	must(t, os.WriteFile(filepath.Join(dir, "m.py"), []byte("def f():\n    return 1\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "test_m.py"), []byte("import unittest\nimport m\n\nclass T(unittest.TestCase):\n    def test_one(self):\n        self.assertEqual(m.f(), 1)\n\n    def test_two(self):\n        self.assertEqual(m.f(), 2)\n"), 0o644))
	git("add", ".")
	git("commit", "-q", "-m", "base")
	task.Repo, task.BaseCommit, task.BaseTree = dir, git("rev-parse", "HEAD"), git("rev-parse", "HEAD^{tree}")
}

func newStore(t testing.TB) *repo.Store {
	t.Helper()
	s, err := repo.NewStore(t.TempDir())
	must(t, err)
	return s
}

func TestRemoteWorkerFetchesTheBase(t *testing.T) {
	r := newRig(t, true)
	gitRepo(t, r.task)
	p := r.newProber(WithBases(newStore(t)))
	here := r.task.Repo
	far := newStore(t)
	f := &fakeRunner{fn: func(ctx context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		b, err := far.Base(ctx, task)
		if err != nil {
			return Outcome{}, err
		}
		if _, err := os.Stat(filepath.Join(b.Dir, "m.py")); err != nil {
			return Outcome{}, err
		}
		return passed(task, tree), nil
	}}
	r.task.Repo = "/not/on/this/machine"
	r.startWorker(f, WithBaseStore(far))
	// The prober knows the task by the repository on its own disk, the worker sees a path that it has not.
	onDisk := *r.task
	onDisk.Repo = here
	p.mu.Lock()
	print, err := newTaskPrint(r.task)
	must(t, err)
	p.prints[r.task.ID], p.tasks[r.task.ID] = print, &onDisk
	p.mu.Unlock()
	if got := one(t, p, r.step("e1", 0, 1)); !got.Trusted {
		t.Fatalf("probe %+v", got)
	}
	if !far.Has(r.task.BaseTree) {
		t.Error("the base did not arrive")
	}
	must(t, os.RemoveAll(here)) // from now on nobody needs it
	if got := one(t, p, r.step("e1", 1, 2)); !got.Trusted {
		t.Errorf("probe %+v", got)
	}
}

func TestBaseThatNobodyHas(t *testing.T) {
	r := newRig(t, false)
	r.task.Repo = "/not/on/this/machine"
	r.prober.MaxAttempts = 2
	p := r.newProber() // without WithBases
	_, stop := r.startWorker(&fakeRunner{}, WithBaseStore(newStore(t)))
	got := one(t, p, r.step("e1", 0, 1))
	if got.Status != milepost.ProbeInfra || !strings.Contains(got.Reason, "WithBases") {
		t.Errorf("probe %+v", got)
	}
	stop()
	r.startWorker(&fakeRunner{}) // without a store
	got = one(t, p, r.step("e1", 1, 2))
	if got.Status != milepost.ProbeInfra || !strings.Contains(got.Reason, r.task.Repo) {
		t.Errorf("probe %+v", got)
	}
	must(t, p.Close())
	q := r.newProberEpoch(2, WithBases(failingBases{}))
	r.startWorker(&fakeRunner{}, WithBaseStore(newStore(t)))
	if got := one(t, q, r.step("e1", 0, 1)); got.Status != milepost.ProbeInfra || got.Trusted {
		t.Errorf("probe %+v", got)
	}
}

// failingBases has no base, as an orchestrator whose disk broke.
type failingBases struct{ BaseExporter }

func (failingBases) Base(context.Context, *milepost.Task) (*repo.Base, error) {
	return nil, errors.New("disk")
}

func TestListWorkers(t *testing.T) {
	r := newRig(t, false)
	w, _ := r.startWorker(&fakeRunner{})
	got, err := ListWorkers(t.Context(), r.connect(), r.worker.Streams.Prefix, 3*r.worker.Heartbeat)
	if err != nil || len(got) != 1 || got[0].Name != w.Name() || got[0].Slots != 2 || got[0].Drains {
		t.Errorf("%+v %v", got, err)
	}
}

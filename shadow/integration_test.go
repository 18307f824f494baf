package shadow

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/env/testrun"
)

// realRunner is the production runner on the local sandbox.
func realRunner(t testing.TB, store *repo.Store, blobs *repo.Blobs) *testrun.Runner {
	t.Helper()
	d, err := local.New(local.Config{Root: filepath.Join(t.TempDir(), "sandboxes")})
	if milepost.KindOf(err) == milepost.KindUnavailable {
		t.Skipf("no sandbox on this machine: %v", err)
	}
	must(t, err)
	e := env.New(d)
	t.Cleanup(func() { must(t, e.Close()) })
	cfg := testrun.Default()
	cfg.Timeout = time.Minute
	runner := testrun.New(cfg, e, store, blobs)
	t.Cleanup(func() { must(t, runner.Close()) })
	return runner
}

// A worker with nothing on its disk serves a real repository with real tests in a real sandbox; both ways to run tests.
func TestRealTestsInRealSandboxes(t *testing.T) {
	t.Parallel()
	for _, resident := range []string{"", "unittest"} {
		t.Run("resident="+resident, func(t *testing.T) {
			r := newRig(t, true)
			gitRepo(t, r.task)
			r.task.Test = milepost.TestCommand{Argv: []string{"python3", "-m", "unittest", "-v"}, Format: "unittest", Resident: resident, Timeout: 60 * time.Second}
			r.task.Tests = []string{"test_m.T.test_one", "test_m.T.test_two"}
			store := newStore(t)
			p := r.newProber(WithBases(store))
			base, err := store.Base(t.Context(), r.task)
			must(t, err)
			here, far := r.blobs, newStore(t)
			r.blobs, err = repo.NewBlobs(t.TempDir())
			must(t, err)
			r.startWorker(realRunner(t, far, r.blobs), WithBaseStore(far))
			r.blobs = here

			b, err := p.Baseline(t.Context(), r.task)
			must(t, err)
			expect(t, "baseline", b, true, milepost.ProbeCompleted, "PF")
			edit := func(i int, files map[string]string) milepost.ProbeRequest {
				var changes []env.Change
				for path, text := range files {
					changes = append(changes, env.Change{Path: path, Mode: 0o100644, Data: []byte(text)})
				}
				delta, tree, err := repo.Delta(base, changes, here)
				must(t, err)
				req := r.step("e1", i, 0)
				req.Tree, req.Delta = tree, delta
				return req
			}
			expect(t, "fix", one(t, p, edit(0, map[string]string{"m.py": "def f():\n    return 2\n"})), true, milepost.ProbeCompleted, "FP")
			expect(t, "same again", one(t, p, edit(1, map[string]string{"m.py": "def f():\n    return 2\n"})), true, milepost.ProbeCompleted, "FP")
			hangs := edit(2, map[string]string{"m.py": "def f():\n    while True: pass\n"})
			impatient := *r.task
			impatient.Test.Timeout = 2 * time.Second
			hangs.Task = &impatient
			expect(t, "hangs", one(t, p, hangs), false, milepost.ProbeTimeout, "")
			wrong := edit(3, map[string]string{"m.py": "def f():\n    return 3\n"})
			wrong.Tree = treeID(12345)
			expect(t, "tree and difference disagree", one(t, p, wrong), false, milepost.ProbeTreeWrong, "")
			if s := p.Stats(); s.Cached != 1 || s.Lost != 1 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func expect(t *testing.T, what string, p *milepost.Probe, trusted bool, status milepost.ProbeStatus, report string) {
	t.Helper()
	got, err := p.Report.MarshalText()
	if err != nil || p.Trusted != trusted || p.Status != status || string(got) != report {
		t.Errorf("%s: report %q, probe %+v, %v", what, got, p, err)
	}
}

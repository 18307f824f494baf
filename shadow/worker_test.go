package shadow

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

// A worker on which nothing works must not eat the probes of one that works: it fails fastest and is always free.
func TestBrokenWorkerDoesNotEatTheQueue(t *testing.T) {
	r := newRig(t, false)
	r.worker.Slots = 1
	p := r.newProber()
	var failed atomic.Int32
	r.startWorker(&fakeRunner{fn: func(context.Context, *milepost.Task, string, int) (Outcome, error) {
		failed.Add(1)
		return Outcome{}, milepost.E("test", milepost.KindUnavailable, "no space left on device")
	}})
	r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		time.Sleep(10 * time.Millisecond)
		return passed(task, tree), nil
	}})
	var ids []string
	for i := range 40 {
		req := r.step("e1", i, i+1)
		ids = append(ids, req.ID)
		must(t, p.Publish(t.Context(), req))
	}
	for id, got := range p.Await(t.Context(), ids, 30*time.Second) {
		if !got.Trusted {
			t.Errorf("%s: %+v", id, got)
		}
	}
	if n := failed.Load(); n > 12 {
		t.Errorf("the broken worker took %d of 40 probes", n)
	}
	eventually(t, "it says that it fails", func() bool {
		for _, w := range p.Workers() {
			if w.Failing > 0 && w.Failed == w.Served {
				return true
			}
		}
		return false
	})
}

func TestProbeThatNeverEnds(t *testing.T) {
	r := newRig(t, false)
	r.worker.MaxRun, r.prober.MaxAttempts = 50*time.Millisecond, 2
	p := r.newProber()
	r.startWorker(&fakeRunner{fn: func(ctx context.Context, task *milepost.Task, tree string, n int) (Outcome, error) {
		if tree == treeID(2) && n > 0 {
			return passed(task, tree), nil
		}
		<-ctx.Done()
		return Outcome{}, milepost.Wrap("test", milepost.KindCanceled, ctx.Err())
	}})
	if got := one(t, p, r.step("e1", 0, 1)); got.Status != milepost.ProbeInfra || got.Attempt != 2 || !strings.Contains(got.Reason, "max_run") {
		t.Errorf("probe %+v", got)
	}
	if got := one(t, p, r.step("e1", 1, 2)); !got.Trusted || got.Attempt != 2 {
		t.Errorf("probe %+v", got)
	}
}

// Tests print what they like; a result must reach the prober whatever they print.
func TestResultsAreBounded(t *testing.T) {
	r := newRig(t, false)
	p := r.newProber()
	long := strings.Repeat("é", 1<<20)
	r.startWorker(&fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		out := passed(task, tree)
		switch tree {
		case treeID(1):
			out.Extra = make([]string, 1000)
			for i := range out.Extra {
				out.Extra[i] = long
			}
		case treeID(2):
			out.Status, out.Reason, out.Log = milepost.ProbeUnparsed, long, []byte(long)
		case treeID(3):
			out.Report = make(milepost.TestReport, 2<<20)
		}
		return out, nil
	}})
	if got := one(t, p, r.step("e1", 0, 1)); got.Trusted || got.Status != milepost.ProbeCompleted || len(got.Reason) > 4<<10 {
		t.Errorf("foreign ids: %+v", got)
	}
	if got := one(t, p, r.step("e1", 1, 2)); got.Trusted || got.Status != milepost.ProbeUnparsed || len(got.Reason) > 4<<10 {
		t.Errorf("unparsed: %d bytes of reason, %+v", len(got.Reason), got)
	}
	if got := one(t, p, r.step("e1", 2, 3)); got.Trusted || got.Status != milepost.ProbeInfra || !strings.Contains(got.Reason, "max_payload") {
		t.Errorf("huge report: %s %s", got.Status, got.Reason)
	}
}

package shadow

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/milepost-rl/milepost"
)

func TestShareOfKeysDrawn(t *testing.T) {
	for _, share := range []float64{0, .02, .5, 1} {
		n := 0
		for i := range 20000 {
			sum := sha256.Sum256([]byte(fmt.Sprint(i)))
			if drawn(hex.EncodeToString(sum[:]), share) {
				n++
			}
		}
		if got := float64(n) / 20000; math.Abs(got-share) > .01 || share == 0 && n > 0 || share == 1 && n < 20000 {
			t.Errorf("share %v: %v were drawn", share, got)
		}
	}
}

// One test gives another answer whenever it is run again: it is named, and nobody's probe changes.
func TestFlakyTestsAreFound(t *testing.T) {
	r := newRig(t, false)
	r.prober.Recheck, r.prober.FlakyFile = 1, filepath.Join(t.TempDir(), "flaky.jsonl")
	f := &fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, n int) (Outcome, error) {
		out := passed(task, tree)
		switch {
		case tree == treeID(1) && n > 0, tree == treeID(2) && n > 0:
			out.Report[1] = milepost.Failed
		case tree == treeID(3) && n > 0:
			return Outcome{Status: milepost.ProbeTimeout, Tree: tree}, nil
		}
		return out, nil
	}}
	p := r.newProber()
	r.startWorker(f)
	for i := range 5 {
		if got := one(t, p, r.step("e1", i, i)); !got.Trusted || !got.Report.AllPassed() { // tree 0 is the baseline
			t.Errorf("probe %+v", got)
		}
	}
	eventually(t, "all second runs are back", func() bool { s := p.Stats(); return s.Rechecked+s.RecheckFailed == 5 && s.InFlight == 0 })
	s := p.Stats()
	if s.Rechecked != 4 || s.Disagreed != 2 || s.RecheckFailed != 1 || s.FlakyShare() != .5 || s.Trusted != 5 || s.AfterBarrier != 0 {
		t.Errorf("stats %+v", s)
	}
	want := []FlakyTest{{r.task.ID, "b", 2}}
	if got := p.Flaky(); !reflect.DeepEqual(got, want) {
		t.Errorf("flaky %+v, want %+v", got, want)
	}
	if got := one(t, p, r.step("e2", 0, 1)); !got.Cached || !got.Report.AllPassed() || len(f.trees()) != 10 {
		t.Errorf("the first result must stand: %+v after %d runs", got, len(f.trees()))
	}
	must(t, p.Close())
	file, err := os.OpenFile(r.prober.FlakyFile, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteString("not json\n")
	must(t, err)
	must(t, file.Close())
	q := r.newProberEpoch(2)
	if got := q.Flaky(); !reflect.DeepEqual(got, want) || q.Stats().CacheErrors != 1 {
		t.Errorf("after a restart: %+v, stats %+v", got, q.Stats())
	}
}

func TestSecondRunsGoLast(t *testing.T) {
	r := newRig(t, false)
	r.worker.Slots, r.prober.Recheck = 1, 1
	p := r.newProber()
	hold := make(chan struct{})
	f := &fakeRunner{fn: func(_ context.Context, task *milepost.Task, tree string, _ int) (Outcome, error) {
		<-hold
		return passed(task, tree), nil
	}}
	var ids []string
	for i := range 6 {
		req := r.step("e1", i, i+1)
		ids = append(ids, req.ID)
		must(t, p.Publish(t.Context(), req))
	}
	eventually(t, "all on the stream", func() bool { return p.Stats().Sent == 6 })
	r.startWorker(f)
	close(hold)
	p.Await(t.Context(), ids, 0)
	eventually(t, "the second runs are back", func() bool { return p.Stats().Rechecked == 6 })
	seen := map[string]bool{}
	for _, tree := range f.trees()[:6] {
		if seen[tree] {
			t.Fatalf("a second run came before a first one: %v", f.trees())
		}
		seen[tree] = true
	}
}

func TestSecondRunsDoNotPileUp(t *testing.T) {
	cfg := bookConfig(3)
	cfg.Recheck = 1
	b, pr := newBook(cfg, nil), testPrint(t)
	n := 0
	for i := range 2 * maxRechecks {
		f := b.request(request("e", milepost.ProbeStep, i, i+1), pr, true, t0)
		if b.result(okResult(f, 1, 0), t0).recheck != nil {
			n++
		}
	}
	if n != maxRechecks || b.rechecks != maxRechecks {
		t.Errorf("%d second runs under way, counted %d", n, b.rechecks)
	}
}

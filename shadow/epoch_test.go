package shadow

import (
	"sync"
	"testing"

	"github.com/milepost-rl/milepost"
)

// Several starts of one run at once: the newest epoch owns it, the others fail or stop, whatever the order.
func TestNewestEpochWins(t *testing.T) {
	t.Parallel()
	r := newRig(t, false)
	r.startWorker(&fakeRunner{})
	const epochs = 5
	probers, errs := make([]*Prober, epochs+1), make([]error, epochs+1)
	var starts sync.WaitGroup
	for e := epochs; e >= 1; e-- {
		cfg, nc := r.prober, r.connect()
		cfg.Epoch = uint64(e)
		starts.Go(func() { probers[e], errs[e] = NewProber(t.Context(), nc, cfg, r.blobs) })
	}
	starts.Wait()
	for e, p := range probers {
		if p != nil {
			defer func() { _ = p.Close() }()
		} else if e > 0 && (e == epochs || milepost.KindOf(errs[e]) != milepost.KindConflict) {
			t.Errorf("epoch %d did not start: %v", e, errs[e])
		}
	}
	for e := 1; e < epochs; e++ {
		if p := probers[e]; p != nil {
			eventually(t, "the older epoch stops", func() bool { return milepost.KindOf(p.Err()) == milepost.KindConflict })
		}
	}
	newest := probers[epochs]
	if got := one(t, newest, r.step("e1", 0, 1)); !got.Trusted || newest.Err() != nil {
		t.Errorf("probe %+v, %v", got, newest.Err())
	}
}

package shadow

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
)

// One request ends its worker process each time, with the probes beside it; somebody starts the worker again each time. It
// ends as a dead letter after max_deliveries, and nothing else is taken for deadly: not even what died with it.
func TestRequestThatKillsItsWorkers(t *testing.T) {
	t.Parallel()
	r := newRig(t, true)
	const deliveries = 4
	task := chaosTask(t, t.TempDir())
	store := newStore(t)
	base, err := store.Base(t.Context(), task)
	must(t, err)
	p := r.newProber(WithBases(store))
	var ids []string
	fatal := ""
	for i := range 6 {
		delta, tree, err := repo.Delta(base, []env.Change{{Path: "a.py", Mode: 0o100644, Data: []byte{byte('0' + i), '\n'}}}, r.blobs)
		must(t, err)
		req := r.step("e1", i, 0)
		req.Task, req.Tree, req.Delta = task, tree, delta
		if i == 1 {
			fatal = tree
		}
		must(t, p.Publish(t.Context(), req))
		ids = append(ids, req.ID)
	}
	eventually(t, "all are on the stream", func() bool { return p.Stats().Sent == len(ids) })
	// Probes take half a second and the fatal one ends the process at that moment: whoever runs beside it dies unfinished.
	role := &workerRole{URL: r.srv.URL(), Name: "w", Dir: t.TempDir(), Slots: 3, AckWait: r.worker.Streams.AckWait, Delay: 500 * time.Millisecond,
		Fatal: fatal, MaxDeliveries: deliveries}
	var mu sync.Mutex
	deaths, over := 0, false
	var keeper sync.WaitGroup
	current := startRole(t, chaosRole{Worker: role})
	keeper.Go(func() {
		for {
			mu.Lock()
			w := current
			mu.Unlock()
			<-w.ended
			mu.Lock()
			if over {
				mu.Unlock()
				return
			}
			if ws := w.cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
				t.Errorf("the worker ended with %v: %s", w.cmd.ProcessState, w.said())
				mu.Unlock()
				return
			}
			deaths++
			current = startRole(t, chaosRole{Worker: role})
			mu.Unlock()
		}
	})
	probes := p.Await(t.Context(), ids, time.Minute)
	mu.Lock()
	over = true
	last := current
	mu.Unlock()
	last.end(syscall.SIGTERM)
	keeper.Wait()
	for id, got := range probes {
		switch {
		case id == ids[1]:
			if got.Status != milepost.ProbeInfra || got.Trusted {
				t.Errorf("the deadly one: %+v", got)
			}
		case !got.Trusted:
			t.Errorf("%s died with another: %+v", id, got)
		}
	}
	if deaths != deliveries {
		t.Errorf("%d workers died, want %d", deaths, deliveries)
	}
	d, err := OpenDead(t.Context(), r.connect(), r.worker.Streams.Prefix)
	must(t, err)
	dead, err := d.List(t.Context(), DeadFilter{})
	if err != nil || len(dead) != 1 || dead[0].ID != ids[1] {
		t.Errorf("dead letters %+v, %v", dead, err)
	}
}

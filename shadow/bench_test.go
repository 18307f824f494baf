package shadow

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/repo"
)

// benchRig is a prober on a server of its own; recheck and merging are off, so that a probe is a request is a run.
type benchRig struct {
	p     *Prober
	srv   *Server
	nc    *nats.Conn // the prober's
	blobs *repo.Blobs
}

func newBenchRig(b *testing.B, opts ...ProberOption) *benchRig {
	b.Helper()
	cfg := DefaultServer()
	cfg.Dir = b.TempDir()
	r := &benchRig{}
	var err error
	r.srv, err = StartServer(cfg)
	must(b, err)
	b.Cleanup(r.srv.Close)
	r.nc, err = r.srv.Connect("bench")
	must(b, err)
	b.Cleanup(r.nc.Close)
	r.blobs, err = repo.NewBlobs(b.TempDir())
	must(b, err)
	pc := DefaultProber()
	pc.Run, pc.Epoch, pc.Merge, pc.Recheck = "bench", 1, 1, 0
	r.p, err = NewProber(b.Context(), r.nc, pc, r.blobs, opts...)
	must(b, err)
	b.Cleanup(func() { must(b, r.p.Close()) })
	return r
}

// serve runs a worker on a connection of its own until the benchmark ends.
func (r *benchRig) serve(b *testing.B, slots int, runner TestRunner) *nats.Conn {
	b.Helper()
	nc, err := r.srv.Connect("worker")
	must(b, err)
	cfg := DefaultWorker()
	cfg.Slots = slots
	w, err := NewWorker(b.Context(), nc, cfg, runner, r.blobs)
	must(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	b.Cleanup(func() { cancel(); must(b, <-done); nc.Close() })
	return nc
}

// measure publishes n requests, waits for all and reports probes a second, and bytes a probe on the orchestrator's and the
// worker's connection, both ways: payload and headers of NATS, without its framing and TCP.
func (r *benchRig) measure(b *testing.B, worker *nats.Conn, requests func(i int) milepost.ProbeRequest) {
	b.Helper()
	before, workerBefore := r.nc.Stats(), worker.Stats()
	b.ResetTimer()
	var ids []string
	for i := range b.N {
		req := requests(i)
		must(b, r.p.Publish(b.Context(), req))
		ids = append(ids, req.ID)
	}
	for id, got := range r.p.Await(b.Context(), ids, 10*time.Minute) {
		if !got.Trusted {
			b.Fatal(fmt.Sprint(id, got))
		}
	}
	b.StopTimer()
	after, workerAfter := r.nc.Stats(), worker.Stats()
	n := float64(b.N)
	b.ReportMetric(n/b.Elapsed().Seconds(), "probes/s")
	b.ReportMetric(float64(after.InBytes+after.OutBytes-before.InBytes-before.OutBytes)/n, "wire-B/probe")
	b.ReportMetric(float64(workerAfter.InBytes+workerAfter.OutBytes-workerBefore.InBytes-workerBefore.OutBytes)/n, "worker-wire-B/probe")
}

// BenchmarkProbe is what the messenger costs a probe: everything but rebuilding the tree and testing. The task has 100 tests,
// the step one changed file of 4 kB.
func BenchmarkProbe(b *testing.B) {
	r := newBenchRig(b)
	task := testTask(b.TempDir())
	task.Tests = nil
	for i := range 100 {
		task.Tests = append(task.Tests, fmt.Sprintf("tests.test_module.TestCase.test_%03d", i))
	}
	nc := r.serve(b, 2, &fakeRunner{})
	text := []byte(strings.Repeat("x = 1  # a line of a file\n", 160))
	r.measure(b, nc, func(i int) milepost.ProbeRequest {
		blob, err := r.blobs.Put(append(strconv.AppendInt(nil, int64(i), 10), text...))
		must(b, err)
		req := (&rig{task: task}).step("e", i, i+1)
		req.Delta = []milepost.TreeChange{{Path: "m.py", Mode: 0o100644, Blob: blob}}
		return req
	})
}

// BenchmarkWorker is a whole probe of a small repository: tree rebuilt and proven, tests run in the sandbox by a resident
// process, two slots.
func BenchmarkWorker(b *testing.B) {
	task := testTask("")
	gitRepo(b, task)
	task.Test = milepost.TestCommand{Argv: []string{"python3", "-m", "unittest", "-v"}, Format: "unittest", Resident: "unittest", Timeout: time.Minute}
	task.Tests = []string{"test_m.T.test_one", "test_m.T.test_two"}
	store := newStore(b)
	base, err := store.Base(b.Context(), task)
	must(b, err)
	r := newBenchRig(b, WithBases(store))
	nc := r.serve(b, 2, realRunner(b, store, r.blobs))
	if got, err := r.p.Baseline(b.Context(), task); err != nil || !got.Trusted { // starts the first resident process
		b.Fatal(got, err)
	}
	r.measure(b, nc, func(i int) milepost.ProbeRequest {
		text := fmt.Sprintf("def f():\n    return 2  # %d of %d\n", i, b.N)
		delta, tree, err := repo.Delta(base, []env.Change{{Path: "m.py", Mode: 0o100644, Data: []byte(text)}}, r.blobs)
		must(b, err)
		req := (&rig{task: task}).step("e", i, 0)
		req.Tree, req.Delta = tree, delta
		return req
	})
}

// BenchmarkWaiting is the memory that 2,000 episodes of ten steps take while all of their probes wait: no worker is there.
// The heap is the orchestrator's with the embedded server in it; the steps' own deltas count, their blobs are on disk.
func BenchmarkWaiting(b *testing.B) {
	const episodes, steps = 2000, 10
	for range b.N {
		r := newBenchRig(b)
		task := testTask(b.TempDir())
		blob, err := r.blobs.Put([]byte(strings.Repeat("x = 1  # a line of a file\n", 160)))
		must(b, err)
		before, rss := heap(), resident(b)
		for e := range episodes {
			id := fmt.Sprint("e", e)
			for s := range steps {
				req := (&rig{task: task}).step(id, s, 1+e*steps+s)
				req.Delta = []milepost.TreeChange{{Path: "package/module.py", Mode: 0o100644, Blob: blob}}
				must(b, r.p.Publish(b.Context(), req))
			}
			must(b, r.p.Publish(b.Context(), (&rig{task: task}).verdict(id, e*steps+steps)))
		}
		for end := time.Now().Add(5 * time.Minute); r.p.Stats().Sent < episodes*steps; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				b.Fatalf("not all requests reached the stream: %+v", r.p.Stats())
			}
		}
		b.ReportMetric(float64(heap()-before)/1e6, "heap-MB")
		b.ReportMetric(float64(resident(b)-rss)/1e6, "rss-MB")
		b.ReportMetric(float64(heap()-before)/(episodes*(steps+1)), "heap-B/probe")
		if s := r.p.Stats(); s.InFlight != episodes*steps {
			b.Fatalf("stats %+v", s)
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// resident is the memory of this process as the kernel counts it.
func resident(b *testing.B) int64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	must(b, err)
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	must(b, err)
	return pages * int64(os.Getpagesize())
}

package shadow

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerProcessEnv) != "" {
		workerProcess()
		return
	}
	if role := os.Getenv(chaosRoleEnv); role != "" {
		chaosMain(role)
		return
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // what runs in parallel waits more than it computes
		panic(err)
	}
	goleak.VerifyTestMain(m,
		// The server starts these once per process, for all servers in it.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.init.0.func1"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.periodic"),
		// Of nats.go 1.55: it waits on no channel for ever where its publisher was cleaned up before it began.
		goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

// fakeRunner stands in for testrun.Runner: it answers without a sandbox.
type fakeRunner struct {
	mu   sync.Mutex
	runs []string // trees, in the order in which runs began
	fn   func(ctx context.Context, task *milepost.Task, tree string, n int) (Outcome, error)
}

func (r *fakeRunner) Run(ctx context.Context, task *milepost.Task, tree string, _ []milepost.TreeChange) (Outcome, error) {
	r.mu.Lock()
	n := 0
	for _, t := range r.runs {
		if t == tree {
			n++
		}
	}
	r.runs = append(r.runs, tree)
	fn := r.fn
	r.mu.Unlock()
	if fn == nil {
		return passed(task, tree), nil
	}
	return fn(ctx, task, tree, n)
}

func (r *fakeRunner) trees() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.runs...)
}

func passed(task *milepost.Task, tree string) Outcome {
	rep := make(milepost.TestReport, len(task.Tests))
	for i := range rep {
		rep[i] = milepost.Passed
	}
	return Outcome{Status: milepost.ProbeCompleted, Report: rep, Tree: tree}
}

// rig is a server, a blob store and the means to make probers and workers on them, all ended with the test.
type rig struct {
	t      *testing.T
	srv    *Server
	cfg    ServerConfig
	blobs  *repo.Blobs
	worker WorkerConfig
	prober ProberConfig
	task   *milepost.Task
}

func newRig(t *testing.T, listen bool) *rig {
	t.Helper()
	cfg := DefaultServer()
	cfg.Dir, cfg.Listen = t.TempDir(), listen
	srv, err := StartServer(cfg)
	must(t, err)
	blobs, err := repo.NewBlobs(t.TempDir())
	must(t, err)
	r := &rig{t: t, srv: srv, cfg: cfg, blobs: blobs, worker: DefaultWorker(), prober: DefaultProber()}
	t.Cleanup(func() { r.srv.Close() })
	r.worker.Poll, r.worker.Heartbeat, r.worker.DrainTimeout = 50*time.Millisecond, 100*time.Millisecond, 2*time.Second
	r.worker.Streams.AckWait = time.Second
	r.prober.Streams = r.worker.Streams
	r.prober.Run, r.prober.Epoch = "run-1", 1
	r.prober.RetryDelay, r.prober.Reconcile = 10*time.Millisecond, 100*time.Millisecond
	r.prober.Recheck = 0 // a test that counts runs says so itself
	r.task = testTask(t.TempDir())
	return r
}

func testTask(dir string) *milepost.Task {
	return &milepost.Task{ID: "task-1", Kind: milepost.BugRepair, Repo: dir, BaseTree: treeID(0), Image: "local:test",
		Statement: "secret", ReferencePatch: "secret", Test: milepost.TestCommand{Argv: []string{"test"}, Format: "unittest"},
		Tests: []string{"a", "b", "c"}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func treeID(n int) string { return fmt.Sprintf("%040x", n) }

func (r *rig) connect() *nats.Conn {
	r.t.Helper()
	var nc *nats.Conn
	var err error
	if r.cfg.Listen {
		c := DefaultConnect()
		c.URL = r.srv.URL()
		nc, err = Connect(c)
	} else {
		nc, err = r.srv.Connect("test")
	}
	must(r.t, err)
	r.t.Cleanup(nc.Close)
	return nc
}

func (r *rig) newProber(opts ...ProberOption) *Prober {
	r.t.Helper()
	p, err := NewProber(r.t.Context(), r.connect(), r.prober, r.blobs, opts...)
	must(r.t, err)
	r.t.Cleanup(func() { _ = p.Close() })
	return p
}

// startWorker runs a worker until stop is called or the test ends.
func (r *rig) startWorker(runner TestRunner, opts ...WorkerOption) (w *Worker, stop func()) {
	r.t.Helper()
	w, err := NewWorker(r.t.Context(), r.connect(), r.worker, runner, r.blobs, opts...)
	must(r.t, err)
	stop = runWorker(r.t, w)
	r.t.Cleanup(stop)
	return w, stop
}

// runWorker serves until stop, which may be called again.
func runWorker(t *testing.T, w *Worker) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var once sync.Once
	return func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Logf("worker: %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("the worker did not stop")
			}
		})
	}
}

func (r *rig) step(episode string, i, tree int) milepost.ProbeRequest {
	return milepost.ProbeRequest{ID: fmt.Sprintf("%s/%d", episode, i), Kind: milepost.ProbeStep, Task: r.task, Episode: episode, Step: i, Tree: treeID(tree)}
}

func (r *rig) verdict(episode string, tree int) milepost.ProbeRequest {
	return milepost.ProbeRequest{ID: episode + "/verdict", Kind: milepost.ProbeVerdict, Task: r.task, Episode: episode, Tree: treeID(tree)}
}

// one publishes a request and waits for its probe.
func one(t *testing.T, p *Prober, req milepost.ProbeRequest) *milepost.Probe {
	t.Helper()
	must(t, p.Publish(t.Context(), req))
	return p.Await(t.Context(), []string{req.ID}, time.Minute)[req.ID]
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

func jetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	must(t, err)
	return js
}

// workerProcessEnv makes the test binary a worker that can be killed: its value is the server's URL, and the next
// variable names a file that it creates once it holds a probe, which it never finishes.
const (
	workerProcessEnv = "SHADOW_TEST_WORKER_URL"
	workerHoldsEnv   = "SHADOW_TEST_WORKER_HOLDS"
)

func workerProcess() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	c := DefaultConnect()
	c.URL = os.Getenv(workerProcessEnv)
	nc, err := Connect(c)
	fail(err)
	cfg := DefaultWorker()
	cfg.Name, cfg.Slots, cfg.Streams.AckWait = "doomed", 1, time.Second
	blobs, err := repo.NewBlobs(os.Getenv(workerHoldsEnv) + ".blobs")
	fail(err)
	hold := &fakeRunner{fn: func(ctx context.Context, _ *milepost.Task, tree string, _ int) (Outcome, error) {
		fail(os.WriteFile(os.Getenv(workerHoldsEnv), []byte(tree), 0o644))
		<-ctx.Done()
		return Outcome{}, ctx.Err()
	}}
	w, err := NewWorker(context.Background(), nc, cfg, hold, blobs)
	fail(err)
	fail(w.Run(context.Background()))
}

// startWorkerProcess starts the test binary as a worker and returns once it holds a probe.
func startWorkerProcess(t *testing.T, url string) *exec.Cmd {
	t.Helper()
	holds := t.TempDir() + "/holds"
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerProcessEnv+"="+url, workerHoldsEnv+"="+holds)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, "the worker process holds a probe", func() bool { _, err := os.Stat(holds); return err == nil })
	return cmd
}

func portOf(t *testing.T, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	must(t, err)
	return u.Port()
}

// testClock stands still until it is moved.
type testClock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *testClock { return &testClock{at: time.Now()} }

func (c *testClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *testClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

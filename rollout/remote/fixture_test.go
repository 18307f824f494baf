package remote

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env"
	"github.com/milepost-rl/milepost/env/memory"
	"github.com/milepost-rl/milepost/env/repo"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/rollout/toolcall"
	"github.com/milepost-rl/milepost/shadow"
)

// workerRole makes the test binary a worker process.
type workerRole struct {
	URL, Dir string
	Config   WorkerConfig
	Script   script
}

const workerRoleEnv = "REMOTE_TEST_WORKER"

func TestMain(m *testing.M) {
	if text := os.Getenv(workerRoleEnv); text != "" {
		workerProcess(text)
		return
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil { // what runs in parallel waits more than it computes
		panic(err)
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.init.0.func1"), // once per process, for all servers
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.periodic"),
		// Of nats.go 1.55: it waits on no channel for ever where its publisher was cleaned up before it began.
		goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

// workerProcess ends on SIGTERM, and when the test that holds its standard input dies.
func workerProcess(text string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var role workerRole
	fail(json.Unmarshal([]byte(text), &role))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg := shadow.DefaultConnect()
	cfg.URL = role.URL
	nc, err := shadow.Connect(cfg)
	fail(err)
	defer nc.Close()
	bases, err := repo.NewStore(filepath.Join(role.Dir, "bases"))
	fail(err)
	blobs, err := repo.NewBlobs(filepath.Join(role.Dir, "blobs"))
	fail(err)
	w, err := NewWorker(role.Config, WorkerDeps{NC: nc, Prefix: "milepost", Inline: 256 << 10, Env: env.New(memory.New()), Bases: bases, Blobs: blobs,
		Policy: func(Settings) (Policy, error) { return &fakePolicy{script: role.Script}, nil }})
	fail(err)
	fail(w.Run(ctx))
}

// script is what every episode does: it edits a file Turns times, in a way that depends on the episode's seed alone, and submits.
type script struct {
	Turns  int
	Delay  time.Duration // before each turn
	Tokens int           // sampled each turn
	Bytes  int           // of the file
}

// fakePolicy is a model of scripts.
type fakePolicy struct {
	script
	mu       sync.Mutex
	followed [][]policy.EndpointState
	closed   bool
	gate     chan struct{}                                   // turns after the first wait for it; nil = they do not
	before   func(ctx context.Context, session string) error // what a turn does first; may be nil
}

func (p *fakePolicy) Follow(s []policy.EndpointState) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.followed = append(p.followed, s)
	return nil
}

func (p *fakePolicy) last() (s []policy.EndpointState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.followed); n > 0 {
		s = p.followed[n-1]
	}
	return s
}

func (p *fakePolicy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

func (p *fakePolicy) Open(_ context.Context, o rollout.Opening) (rollout.Conversation, error) {
	format, err := toolcall.New(o.Format, o.Tools)
	return &talk{p: p, o: o, format: format}, err
}

// talk is one conversation of a script.
type talk struct {
	p      *fakePolicy
	o      rollout.Opening
	format toolcall.Format
	said   int
	sample milepost.Sample
}

func (t *talk) Next(ctx context.Context) (rollout.Turn, error) {
	select {
	case <-time.After(t.p.Delay):
	case <-ctx.Done():
		return rollout.Turn{}, ctx.Err()
	}
	if t.said > 0 && t.p.gate != nil {
		select {
		case <-t.p.gate:
		case <-ctx.Done():
			return rollout.Turn{}, ctx.Err()
		}
	}
	if t.p.before != nil {
		if err := t.p.before(ctx, t.o.Session); err != nil {
			return rollout.Turn{}, err
		}
	}
	c := toolcall.Call{Name: "submit", Arguments: json.RawMessage("{}")}
	if t.said < t.p.Turns {
		text := fmt.Sprintf("%d %d\n%s", t.o.Seed, t.said, strings.Repeat("x", t.p.Bytes))
		args, err := json.Marshal(map[string]string{"command": "create", "path": fmt.Sprintf("new%d.txt", t.said), "text": text})
		if err != nil {
			return rollout.Turn{}, err
		}
		c = toolcall.Call{Name: "edit_file", Arguments: args}
	}
	text, err := t.format.Render(c)
	turn := rollout.Turn{Text: text, Finish: rollout.FinishStop, Tokens: t.p.Tokens, TokenStart: len(t.sample.Tokens)}
	for i := range t.p.Tokens {
		t.sample.Tokens = append(t.sample.Tokens, int32(t.o.Seed)*1000+int32(i))
		t.sample.Logprobs = append(t.sample.Logprobs, -float32(i)/7)
		t.sample.Versions = append(t.sample.Versions, 3)
		t.sample.Steps = append(t.sample.Steps, int32(t.said))
	}
	turn.TokenEnd = len(t.sample.Tokens)
	t.said++
	return turn, err
}

func (t *talk) Observe(context.Context, rollout.ToolResult) error { return nil }
func (t *talk) Samples() []milepost.Sample                        { return []milepost.Sample{t.sample} }
func (t *talk) Close() error                                      { return nil }

// passing is a test runner that finds every test passed.
type passing struct{}

func (passing) Run(_ context.Context, task *milepost.Task, tree string, _ []milepost.TreeChange) (shadow.Outcome, error) {
	rep := make(milepost.TestReport, len(task.Tests))
	for i := range rep {
		rep[i] = milepost.Passed
	}
	return shadow.Outcome{Status: milepost.ProbeCompleted, Report: rep, Tree: tree}, nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a server, a task, and the means to make runs and workers on them, all ended with the test.
type rig struct {
	t     *testing.T
	cfg   shadow.ServerConfig
	srv   *shadow.Server
	task  *milepost.Task
	local *repo.Store // knows the task's base
	blobs *repo.Blobs // the run's
	run   Config
	work  WorkerConfig

	elsewhere *shadow.ConnectConfig // in place of srv

	mu    sync.Mutex
	warns []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, cfg: shadow.DefaultServer(), run: Default(), work: Default().Worker}
	r.cfg.Dir, r.cfg.Listen = t.TempDir(), true
	var err error
	r.srv, err = shadow.StartServer(r.cfg)
	must(t, err)
	t.Cleanup(func() { r.srv.Close() })
	r.run.Lease = 10 * time.Second
	r.work.Heartbeat, r.work.Slots, r.work.DrainTimeout, r.work.Orphaned = 100*time.Millisecond, 4, 10*time.Second, 30*time.Second
	r.local, err = repo.NewStore(t.TempDir())
	must(t, err)
	r.blobs, err = repo.NewBlobs(t.TempDir())
	must(t, err)
	r.task = newTask(t)
	return r
}

func newTask(t testing.TB) *milepost.Task {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a.py"), []byte("def add(a, b):\n    return a - b\n"), 0o644))
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t", "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "base")
	return &milepost.Task{ID: "task", Kind: milepost.BugRepair, Statement: "add subtracts", Repo: dir, ReferencePatch: "secret",
		BaseCommit: git("rev-parse", "HEAD"), BaseTree: git("rev-parse", "HEAD^{tree}"), Tests: []string{"t1", "t2"},
		Test: milepost.TestCommand{Hidden: map[string]string{"h": "secret"}, Env: map[string]string{"A": "1"}}}
}

func (r *rig) connect() *nats.Conn {
	r.t.Helper()
	c := shadow.DefaultConnect()
	c.URL = r.srv.URL()
	if r.elsewhere != nil {
		c = *r.elsewhere
	}
	nc, err := shadow.Connect(c)
	must(r.t, err)
	r.t.Cleanup(nc.Close)
	return nc
}

func (r *rig) warn(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warns = append(r.warns, err.Error())
	r.t.Log("warning:", err)
}

// warned reports whether a warning holds text.
func (r *rig) warned(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.warns {
		if strings.Contains(w, text) {
			return true
		}
	}
	return false
}

// endpoints is a pool that a test changes.
type endpoints struct {
	mu      sync.Mutex
	states  []policy.EndpointState
	changed chan struct{}
}

func newEndpoints() *endpoints { return &endpoints{changed: make(chan struct{})} }

func (e *endpoints) Snapshot() []policy.EndpointState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]policy.EndpointState(nil), e.states...)
}

func (e *endpoints) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

func (e *endpoints) set(s ...policy.EndpointState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.states = s
	close(e.changed)
	e.changed = make(chan struct{})
}

// orchestrator is one epoch of the run, with a prober whose tests pass.
type orchestrator struct {
	*Dispatcher
	prober *shadow.Prober
	pool   *endpoints
	crash  func() // ends it without a word
}

func (r *rig) orchestrate(epoch uint64) *orchestrator {
	r.t.Helper()
	nc := r.connect()
	cfg := shadow.DefaultProber()
	cfg.Run, cfg.Epoch, cfg.Recheck, cfg.Merge = "run", epoch, 0, 1
	cfg.Streams.MaxRequests, cfg.Streams.MaxObjects = 64<<20, 256<<20
	prober, err := shadow.NewProber(r.t.Context(), nc, cfg, r.blobs, shadow.WithBases(r.local), shadow.WithErrors(r.warn),
		shadow.WithTasks(func(string) (*milepost.Task, error) { return r.task, nil }))
	must(r.t, err)
	o := &orchestrator{prober: prober, pool: newEndpoints()}
	settings := Settings{Rollout: rollout.Default(), Pool: policy.DefaultPoolConfig(), Token: policy.DefaultTokenConfig()}
	settings.Pool.APIKey = "secret"
	o.Dispatcher, err = NewDispatcher(r.run, Deps{NC: nc, Prefix: "milepost", Run: "run", Epoch: epoch, Settings: settings, Prober: prober, Blobs: r.blobs,
		Endpoints: o.pool, Warn: r.warn})
	must(r.t, err)
	end := sync.OnceFunc(func() {
		o.Close()
		must(r.t, prober.Close())
	})
	o.crash = sync.OnceFunc(func() { nc.Close(); end() })
	r.t.Cleanup(end)
	return o
}

// testers serves the run's probes.
func (r *rig) testers() {
	r.t.Helper()
	cfg := shadow.DefaultWorker()
	cfg.Poll, cfg.DrainTimeout = 50*time.Millisecond, time.Second
	blobs, err := repo.NewBlobs(r.t.TempDir())
	must(r.t, err)
	w, err := shadow.NewWorker(r.t.Context(), r.connect(), cfg, passing{}, blobs, shadow.WithWorkerErrors(r.warn))
	must(r.t, err)
	r.serve(w.Run)
}

// serve runs a worker until the returned function or the test ends it.
func (r *rig) serve(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// worker starts a worker in this process that plays a script.
func (r *rig) worker(p *fakePolicy, with ...func(*Worker)) (stop func()) {
	r.t.Helper()
	bases, err := repo.NewStore(r.t.TempDir())
	must(r.t, err)
	blobs, err := repo.NewBlobs(r.t.TempDir())
	must(r.t, err)
	boxes := env.New(memory.New())
	r.t.Cleanup(func() { must(r.t, boxes.Close()) })
	w, err := NewWorker(r.work, WorkerDeps{NC: r.connect(), Prefix: "milepost", Inline: r.run.InlineLimit, Env: boxes, Bases: bases, Blobs: blobs,
		Policy: func(s Settings) (Policy, error) {
			if s.Pool.APIKey != "" {
				r.t.Error("the API key travelled")
			}
			return p, nil
		}, Warn: r.warn})
	must(r.t, err)
	for _, f := range with {
		f(w)
	}
	return r.serve(w.Run)
}

// process starts a worker process.
func (r *rig) process(name string, s script) *exec.Cmd {
	r.t.Helper()
	role := workerRole{URL: r.srv.URL(), Dir: r.t.TempDir(), Config: r.work, Script: s}
	role.Config.Name = name
	text, err := json.Marshal(role)
	must(r.t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerRoleEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	hold, err := cmd.StdinPipe()
	must(r.t, err)
	must(r.t, cmd.Start())
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = hold.Close()
	})
	return cmd
}

func (r *rig) request(n int) rollout.Request {
	return rollout.Request{Episode: fmt.Sprintf("e%d", n), Group: fmt.Sprintf("g%d", n/4), Task: r.task, Attempt: n % 4, Seed: int64(n)}
}

// answer is what a Run returned.
type answer struct {
	ep  *milepost.Episode
	err error
}

// start runs episodes and sends what they come to.
func (r *rig) start(ctx context.Context, o *orchestrator, from, n int) <-chan answer {
	out := make(chan answer, n)
	for i := range n {
		go func() {
			ep, err := o.Run(ctx, r.request(from+i), true)
			out <- answer{ep, err}
		}()
	}
	return out
}

func receive(t *testing.T, from <-chan answer, within time.Duration) answer {
	t.Helper()
	select {
	case a := <-from:
		return a
	case <-time.After(within):
		t.Fatalf("no episode within %s", within)
	}
	return answer{}
}

func eventually(t *testing.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

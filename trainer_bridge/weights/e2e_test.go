package weights_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/internal/vllm/vllmtest"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// bound is the largest mean |logprob gap| between vLLM and trainer in float32; 1e-7 is usual.
const bound = 1e-5

// e2e is a real server, a real trainer, and what they serve.
type e2e struct {
	ctx     context.Context
	dir     string
	models  [2]string // of different seeds
	spec    supervise.Spec
	process *supervise.Process
	url     string
	client  *vllm.Client
	trainer *trainerbridge.Client
	version int32 // last that was pushed
}

// TestE2EPush pushes weights to a real vLLM from a real trainer, by disk and by transfer. The subtests share the server and
// run in order; the last one kills it and starts it again.
func TestE2EPush(t *testing.T) {
	if os.Getenv("MILEPOST_E2E") != "1" {
		t.Skip("starts a real vLLM server twice, which takes minutes: set MILEPOST_E2E=1")
	}
	e := start(t, func(c *vllm.ServerConfig) { c.Transfer = weights.BackendGloo })
	for _, method := range []string{weights.MethodDisk, weights.MethodTransfer} {
		t.Run(method+"/push", func(t *testing.T) { e.push(t, method) })
		t.Run(method+"/requests under way", func(t *testing.T) { e.inFlight(t, method) })
		t.Run(method+"/a corrupted push is healed", func(t *testing.T) { e.corrupted(t, method) })
	}
	t.Run("transfer is bit for bit the disk", e.equal)
	t.Run("a server hangs in a transfer", e.hangs)
	t.Run("a server is killed in a transfer", e.killed)
}

// start starts a server, with what change makes of the settings, and a trainer.
func start(t *testing.T, change func(*vllm.ServerConfig)) *e2e {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	e := &e2e{ctx: ctx, dir: t.TempDir()}
	python := filepath.Join(environment(t, "trainer"), "bin", "python")
	for i := range e.models {
		e.models[i] = filepath.Join(e.dir, fmt.Sprintf("model%d", i))
		vllmtest.TinyModel(t, python, e.models[i], fmt.Sprint(i))
	}
	path, err := trainerbridge.PythonPath()
	if err != nil {
		t.Fatal(err)
	}
	cfg := vllm.DefaultServerConfig()
	cfg.Model, cfg.MaxModelLen, cfg.Plugins = e.models[0], 2048, path
	change(&cfg)
	if cfg, err = cfg.WithPort(); err != nil {
		t.Fatal(err)
	}
	e.url = cfg.Addresses()[0]
	if e.client, err = vllm.New(vllm.Config{URL: e.url}); err != nil {
		t.Fatal(err)
	}
	if e.spec, err = supervise.VLLM("vllm-e2e", cfg, environment(t, "server"), filepath.Join(e.dir, "server.log")); err != nil {
		t.Fatal(err)
	}
	if e.process, err = supervise.Start(e.spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.process.Stop(context.Background()) })
	e.startTrainer(t, python, path)
	if err := e.process.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return e
}

func environment(t *testing.T, name string) string {
	out, err := exec.Command("../python/envs/install", name).Output()
	if err != nil {
		t.Fatalf("install %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

func (e *e2e) startTrainer(t *testing.T, python, path string) {
	address := filepath.Join(e.dir, "address")
	cmd := exec.Command(python, "-m", "milepost_trainer", "serve", "--listen", "127.0.0.1:0", "--address-file", address, "--threads", "1")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("trainer's log:\n%s", &log)
		}
	})
	var addr []byte
	for deadline := time.Now().Add(3 * time.Minute); len(addr) == 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the trainer does not come up:\n%s", &log)
		}
		addr, _ = os.ReadFile(address) // it is written once the trainer serves
	}
	var err error
	if e.trainer, err = trainerbridge.Dial(e.ctx, strings.TrimSpace(string(addr))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.trainer.Close() })
}

// next gives the trainer a model's weights and exports them as the next version.
func (e *e2e) next(t *testing.T, model string) (version int32, dir string) {
	if _, err := e.trainer.Init(e.ctx, trainerbridge.InitRequest{Model: model}); err != nil {
		t.Fatal(err)
	}
	e.version++
	dir = filepath.Join(e.dir, fmt.Sprint("v", e.version))
	if _, err := e.trainer.Export(e.ctx, dir); err != nil {
		t.Fatal(err)
	}
	return e.version, dir
}

// pusher pushes by a method; hook, where not nil, is called with the path of each request to the server.
func (e *e2e) pusher(t *testing.T, name string, gate weights.Gate, hook func(path string)) *weights.Pusher {
	cfg := weights.DefaultConfig()
	cfg.Method, cfg.PauseTimeout, cfg.Transfer.Timeout, cfg.Transfer.BufferMB = name, 10*time.Second, 5*time.Second, 1
	var err error
	if cfg.Canary.Vocab, err = weights.Vocab(e.models[0]); err != nil {
		t.Fatal(err)
	}
	method, err := weights.NewMethod(cfg, e.trainer)
	if err != nil {
		t.Fatal(err)
	}
	deps := weights.Deps{Scorer: e.trainer, Gate: gate, HTTP: &http.Client{Transport: hooked{hook}}}
	p, err := weights.New(method, cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

type hooked struct{ hook func(string) }

func (h hooked) RoundTrip(r *http.Request) (*http.Response, error) {
	if h.hook != nil {
		h.hook(r.URL.Path)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// gate notes the verdicts.
type gate []string

func (g *gate) Shut(string)                           {}
func (g *gate) Approve(_ string, v int32)             { *g = append(*g, fmt.Sprint("approve ", v)) }
func (g *gate) Quarantine(_ string, v int32, _ error) { *g = append(*g, fmt.Sprint("quarantine ", v)) }

// served pushes, and holds the canary to the bound.
func (e *e2e) served(t *testing.T, p *weights.Pusher, version int32, dir string) weights.Report {
	t.Helper()
	r, err := p.Push(e.ctx, version, dir, []string{e.url})
	if err != nil {
		t.Fatal(err)
	}
	if r.Cold.Mean >= bound || r.Warm.Mean >= bound || r.Cold.Tokens == 0 || r.Endpoints[0].Attempts != 1 {
		t.Errorf("%s: gap %.2g cold, %.2g warm of %d tokens; bound %g; %+v", r.Method, r.Cold.Mean, r.Warm.Mean, r.Cold.Tokens, bound, r.Endpoints)
	}
	return r
}

func (e *e2e) push(t *testing.T, method string) {
	p := e.pusher(t, method, nil, nil)
	for i := range 5 {
		version, dir := e.next(t, e.models[i%2])
		r := e.served(t, p, version, dir)
		t.Logf("%s v%d: pause %.1f ms, load %.1f ms of it, in all %.0f ms; gap %.2g cold, %.2g warm", r.Method, version,
			1e3*r.Pause.Seconds(), 1e3*r.Load.Seconds(), 1e3*r.Total.Seconds(), r.Cold.Mean, r.Warm.Mean)
	}
}

// inFlight pushes other weights under a long request: its answer comes back whole, each token under a version that was
// served.
func (e *e2e) inFlight(t *testing.T, method string) {
	p := e.pusher(t, method, nil, nil)
	before, dir := e.next(t, e.models[0])
	e.served(t, p, before, dir)
	after, dir := e.next(t, e.models[1])
	var g *vllm.Generation
	done := make(chan error, 1)
	begun := time.Now()
	params := vllm.Params{Temperature: 1, TopP: 1, MaxTokens: 1000, IgnoreEOS: true}
	go func() {
		var err error
		g, err = e.client.Generate(e.ctx, "", []int32{1, 88, 201}, params)
		done <- err
	}()
	for { // until it samples
		m, err := e.client.Metrics(e.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if m.Running > 0 && time.Since(begun) > 300*time.Millisecond {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	e.served(t, p, after, dir)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	change := slices.Index(g.Versions, after)
	if len(g.IDs) != params.MaxTokens || change < 1 || !slices.IsSorted(g.Versions) || g.Versions[0] != before || g.Versions[len(g.Versions)-1] != after {
		t.Fatalf("%d tokens, of version %d at first, %d at last, version %d from %d", len(g.IDs), g.Versions[0], g.Versions[len(g.Versions)-1], after, change)
	}
	if i := slices.IndexFunc(g.Versions, func(v int32) bool { return v != before && v != after }); i >= 0 {
		t.Errorf("token %d is of version %d", i, g.Versions[i])
	}
	t.Logf("version %d from token %d of %d", after, change, len(g.IDs))
}

// damage copies a directory and turns the sign and exponent of every weight of the last hundred around.
func damage(t *testing.T, dir string) string {
	out := dir + "-damaged"
	if err := os.CopyFS(out, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(out, "model.safetensors")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 100; i++ {
		data[len(data)-4*i+3] ^= 0x80 // the sign of a little-endian float32
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return out
}

// corrupted pushes weights that are not the trainer's, and once more as they are.
func (e *e2e) corrupted(t *testing.T, method string) {
	var told gate
	p := e.pusher(t, method, &told, nil)
	old, dir := e.next(t, e.models[0])
	e.served(t, p, old, dir)
	version, dir := e.next(t, e.models[1])
	r, err := p.Push(e.ctx, version, damage(t, dir), []string{e.url})
	if milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), "does not serve the trainer's weights") {
		t.Fatalf("a corrupted push: %v", err)
	}
	t.Log(err)
	if x := r.Endpoints[0]; x.Attempts != 2 || !x.Quarantined || r.RolledBack != old {
		t.Errorf("%+v, rolled back to %d, want %d", x, r.RolledBack, old)
	}
	if served, err := e.client.Version(e.ctx); served != old || err != nil {
		t.Errorf("the server says version %d (%v), want the last approved one, %d", served, err, old)
	}
	e.served(t, p, version, dir)
	n := fmt.Sprint(version)
	if want := []string{"approve " + fmt.Sprint(old), "quarantine " + n, "quarantine " + n, "approve " + n}; !slices.Equal(told, want) {
		t.Errorf("the gate was told %v, want %v", told, want)
	}
}

// checksums are the server's own, of every parameter in its memory.
func (e *e2e) checksums(t *testing.T) map[string]string {
	resp, err := http.Post(e.url+"/weight_checker", "application/json", strings.NewReader(`{"action":"checksum"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	var out struct {
		Checksums map[string]string `json:"checksums"`
	}
	if err != nil || json.Unmarshal(data, &out) != nil || len(out.Checksums) < 10 {
		t.Fatalf("checksums: %v: %s", err, data)
	}
	return out.Checksums
}

func (e *e2e) equal(t *testing.T) {
	_, other := e.next(t, e.models[0])
	version, dir := e.next(t, e.models[1])
	var sums []map[string]string
	for _, method := range []string{weights.MethodDisk, weights.MethodTransfer} {
		if err := e.client.Reload(e.ctx, other); err != nil {
			t.Fatal(err)
		}
		e.served(t, e.pusher(t, method, nil, nil), version, dir)
		sums = append(sums, e.checksums(t))
	}
	if !maps.Equal(sums[0], sums[1]) {
		t.Errorf("checksums by disk %v, by transfer %v", sums[0], sums[1])
	}
}

// hangs stops the server's processes as they begin to receive: the push ends within its bounds, the trainer goes on, and so
// does the server once it wakes up.
func (e *e2e) hangs(t *testing.T) {
	group := -e.process.Identity().PID
	var stop atomic.Bool
	p := e.pusher(t, weights.MethodTransfer, nil, func(path string) {
		if path == "/update_weights" && stop.Load() {
			_ = syscall.Kill(group, syscall.SIGSTOP)
		}
	})
	version, dir := e.next(t, e.models[0])
	e.served(t, p, version, dir)
	version, dir = e.next(t, e.models[1])
	stop.Store(true)
	began := time.Now()
	r, err := p.Push(e.ctx, version, dir, []string{e.url})
	took := time.Since(began)
	stop.Store(false)
	if err := syscall.Kill(group, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if milepost.KindOf(err) != milepost.KindUnavailable || took > 60*time.Second || r.Endpoints[0].Attempts != 1 {
		t.Fatalf("after %v: %v (%+v)", took, err, r.Endpoints)
	}
	t.Logf("after %.1f s: %v", took.Seconds(), err)
	e.alive(t)
	e.served(t, p, version, dir)
}

// killed kills the server's processes as they begin to receive, and starts it again: it joins the transfer again.
func (e *e2e) killed(t *testing.T) {
	id := e.process.Identity()
	var armed atomic.Bool
	p := e.pusher(t, weights.MethodTransfer, nil, func(path string) {
		if path == "/update_weights" && armed.Load() {
			_ = syscall.Kill(-id.PID, syscall.SIGKILL)
		}
	})
	version, dir := e.next(t, e.models[0])
	e.served(t, p, version, dir)
	version, dir = e.next(t, e.models[1])
	armed.Store(true)
	began := time.Now()
	_, err := p.Push(e.ctx, version, dir, []string{e.url})
	armed.Store(false)
	if took := time.Since(began); milepost.KindOf(err) != milepost.KindUnavailable || took > 20*time.Second {
		t.Fatalf("after %v: %v", took, err)
	} else {
		t.Logf("after %.1f s: %v", took.Seconds(), err)
	}
	e.alive(t)
	<-e.process.Done()
	if _, err := supervise.Reap(e.ctx, []supervise.Identity{id}, time.Second); err != nil {
		t.Fatal(err)
	}
	if e.process, err = supervise.Start(e.spec); err != nil {
		t.Fatal(err)
	}
	if err := e.process.WaitReady(e.ctx); err != nil {
		t.Fatal(err)
	}
	e.served(t, p, version, dir)
}

// alive asks the trainer for what only its worker thread answers.
func (e *e2e) alive(t *testing.T) {
	ctx, cancel := context.WithTimeout(e.ctx, 20*time.Second)
	defer cancel()
	if _, err := e.trainer.Score(ctx, [][]int32{{1, 2, 3}}); err != nil {
		t.Fatalf("the trainer: %v", err)
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/orchestrator/supervise"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// standInEnv makes the test binary be a server that speaks vLLM's routes of pushes and sampling; its weights are one number.
// The value is a directory: a file PORT.deaf there lets it acknowledge a reload and keep its weights, PORT.other gives it another
// tokenizer, PORT.dies lets it die at the next reload, PORT.waits lets reloads wait until it is gone.
const standInEnv = "MILEPOST_TEST_IS_VLLM"

// standIn serves until it is killed.
func standIn(dir string) {
	port := os.Args[slices.Index(os.Args, "--port")+1]
	s := &standInServer{file: func(what string) bool { _, err := os.Stat(filepath.Join(dir, port+"."+what)); return err == nil }, version: "default"}
	if err := http.ListenAndServe(net.JoinHostPort("127.0.0.1", port), s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type standInServer struct {
	file    func(what string) bool
	mu      sync.Mutex
	weight  float64
	version string
}

// standInLogprob is that of a token at a place.
func standInLogprob(weight float64, at int, id int32) float32 {
	return float32(-1 - float64(id%7)/8 - float64(at)/256 - weight)
}

func (s *standInServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var in struct {
		Kwargs   map[string]string `json:"kwargs"`
		New      string            `json:"new_version"`
		TokenIDs []int32           `json:"token_ids"`
		Sampling struct {
			MaxTokens int `json:"max_tokens"`
		} `json:"sampling_params"`
	}
	_ = json.NewDecoder(r.Body).Decode(&in) // many requests have none
	out := map[string]any{"success": true, "weight_version": s.version}
	switch r.URL.Path {
	case "/collective_rpc":
		if s.file("deaf") {
			break
		}
		if s.file("dies") {
			os.Exit(1)
		}
		for s.file("waits") {
			time.Sleep(10 * time.Millisecond)
		}
		text, _ := os.ReadFile(filepath.Join(in.Kwargs["weights_path"], "model.safetensors"))
		_, _ = fmt.Sscan(string(text), &s.weight)
	case "/update_weight_version":
		s.version = in.New
	case "/tokenize", "/v1/chat/completions/render":
		ids := []int32{1, 2, 3}
		if s.file("other") {
			ids = ids[:2]
		}
		out["tokens"], out["token_ids"], out["max_model_len"] = ids, ids, 4096
	case "/inference/v1/generate":
		var ids []int32
		var content []any
		for i := range in.Sampling.MaxTokens {
			ids = append(ids, int32(i%300))
			content = append(content, map[string]any{"logprob": standInLogprob(s.weight, len(in.TokenIDs)+i, ids[i])})
		}
		out["choices"] = []any{map[string]any{"finish_reason": "length", "token_ids": ids, "logprobs": map[string]any{"content": content},
			"weight_versions": []any{map[string]any{"version": s.version, "start": 0, "end": len(ids)}}}}
	}
	_ = json.NewEncoder(w).Encode(out)
}

// standInTrainer scores by the weights that it holds.
type standInTrainer struct {
	weights.Trainer
	weight atomic.Value
}

func (s *standInTrainer) Score(_ context.Context, sequences [][]int32) ([][]float32, error) {
	out := make([][]float32, len(sequences))
	for i, ids := range sequences {
		out[i] = make([]float32, len(ids))
		for at := 1; at < len(ids); at++ {
			out[i][at] = standInLogprob(s.weight.Load().(float64), at, ids[at])
		}
	}
	return out, nil
}

// replicaRig is a serving of stand-ins with a trainer.
type replicaRig struct {
	*serving
	t       *testing.T
	trainer *standInTrainer
	said    lockedBuffer
	model   string
}

func newReplicaRig(t *testing.T, change func(*configs.Run)) *replicaRig {
	t.Helper()
	r := &replicaRig{t: t, trainer: &standInTrainer{}, model: newTrainable(t).model}
	r.trainer.weight.Store(0.0)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := configs.Default()
	cfg.Server.Replicas, cfg.Server.Command, cfg.Server.Env = 2, []string{self}, map[string]string{standInEnv: dir}
	cfg.Policy.Pool.HealthEvery = 50 * time.Millisecond
	change(&cfg)
	if r.serving, err = startServing(t.Context(), cfg, r.model, dir, func(text string) { _, _ = fmt.Fprintln(&r.said, text) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, identityFiles)); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	if err := r.usePusher(t.Context(), r.trainer, 340); err != nil {
		t.Fatal(err)
	}
	return r
}

// push pushes weights that the trainer holds, too, and returns the figures.
func (r *replicaRig) push(version int32) map[string]float64 {
	r.t.Helper()
	dir := r.t.TempDir()
	weight := 0.01 * float64(version+1)
	write(r.t, filepath.Join(dir, "model.safetensors"), fmt.Sprint(weight))
	write(r.t, filepath.Join(dir, "config.json"), "{}")
	r.trainer.weight.Store(weight)
	figures, err := r.Push(r.t.Context(), version, dir)
	if err != nil {
		r.t.Fatal(err)
	}
	return figures
}

// until waits for the pool to have exactly these states, in any order.
func (r *replicaRig) until(want ...string) {
	r.t.Helper()
	var have []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		have = nil
		for _, s := range r.pool.Snapshot() {
			have = append(have, fmt.Sprintf("%s v%d", s.State, s.Approved))
		}
		if slices.Sort(have); slices.Equal(have, want) {
			return
		}
	}
	r.t.Fatalf("the pool has %q, want %q; it was said:\n%s", have, want, r.said.String())
}

func (r *replicaRig) identity(name string) *serverIdentity {
	r.t.Helper()
	id := readIdentity(filepath.Join(r.dir, name+".json"))
	if id == nil {
		r.t.Fatalf("the identity of %s is not stored", name)
	}
	return id
}

// let makes a stand-in behave in one of the ways of standInEnv until the function it returns is called.
func (r *replicaRig) let(name, what string) (stop func()) {
	r.t.Helper()
	file := filepath.Join(r.dir, fmt.Sprint(r.identity(name).Port)+"."+what)
	write(r.t, file, "")
	return func() {
		r.t.Helper()
		if err := os.Remove(file); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *replicaRig) kill(name string) {
	r.t.Helper()
	if err := syscall.Kill(-r.identity(name).Identity.PID, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
}

func TestReplicasDieAndComeBackWhileOthersServe(t *testing.T) {
	r := newReplicaRig(t, func(*configs.Run) {})
	r.until("joining v-1", "joining v-1")
	if f := r.push(0); f["replicas_open"] != 2 || f["push_quarantined"] != 0 {
		t.Errorf("figures %v, want both open", f)
	}
	r.kill("vllm-0")
	r.until("open v0")
	began := time.Now()
	if f := r.push(1); f["replicas_open"] != 1 {
		t.Errorf("figures %v, want the one that is left", f)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the push took %v: it waited for the replica that is down", took)
	}
	r.until("open v1", "open v1")
	for _, says := range []string{"vLLM vllm-0 ended (signal: killed); starting it again", "vLLM vllm-0 is up again", "weights v1 are served again; canary agrees"} {
		if !strings.Contains(r.said.String(), says) {
			t.Errorf("nobody said %q:\n%s", says, r.said.String())
		}
	}
}

// A push finds no replica up, and waits for the one that is on its way.
func TestAPushWaitsForTheOnlyReplica(t *testing.T) {
	r := newReplicaRig(t, func(c *configs.Run) { c.Server.Replicas = 1 })
	r.until("joining v-1")
	r.push(0)
	r.kill("vllm-0")
	r.until()
	r.push(1)
	r.until("open v1")
}

// A replica that does not take the weights is quarantined alone, and the next push that it takes brings it back.
func TestADeafReplicaIsQuarantinedAlone(t *testing.T) {
	r := newReplicaRig(t, func(*configs.Run) {})
	r.until("joining v-1", "joining v-1")
	r.push(0)
	hears := r.let("vllm-1", "deaf")
	if f := r.push(1); f["replicas_open"] != 1 || f["replicas_quarantined"] != 1 || f["push_quarantined"] != 1 {
		t.Errorf("figures %v, want one quarantined", f)
	}
	hears()
	r.push(2)
	r.until("open v2", "open v2")
	// Older weights, as at the end of a run whose best are not the last: what was sampled of the newer ones is dropped.
	was := r.pool.Snapshot()[0].Term
	r.push(1)
	r.until("open v1", "open v1")
	if r.pool.Snapshot()[0].Term == was {
		t.Error("older weights began no term")
	}
}

// The trainer goes on as soon as a push returns, and then nobody can vouch for what was pushed: a replica that is being brought
// older weights is brought these before.
func TestAPushWaitsForAReplicaThatIsBroughtWeights(t *testing.T) {
	r := newReplicaRig(t, func(*configs.Run) {})
	r.until("joining v-1", "joining v-1")
	r.push(0)
	goOn := r.let("vllm-1", "waits")
	r.kill("vllm-1")
	r.until("open v0")
	r.until("open v0", "shut v-1") // up again, and in the middle of its reload
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.push(1)
		r.trainer.weight.Store(0.5) // the next update
	}()
	r.until("open v1", "shut v-1")
	select {
	case <-done:
		t.Error("the push returned and left a replica behind")
	case <-time.After(200 * time.Millisecond):
	}
	goOn()
	<-done
	r.until("open v1", "open v1")
}

// What a push comes to says nothing of a replica that went down in the middle of it.
func TestAPushToAReplicaThatIsGoneDoesNotReviveIt(t *testing.T) {
	r := newReplicaRig(t, func(*configs.Run) {})
	r.until("joining v-1", "joining v-1")
	r.push(0)
	goOn := r.let("vllm-1", "waits")
	done := make(chan struct{})
	go func() { defer close(done); r.push(1) }()
	r.until("open v1", "shut v0")
	var lost *replica
	r.mu.Lock()
	for _, x := range r.replicas {
		if x.name == "vllm-1" {
			lost = x
		}
	}
	r.mu.Unlock()
	r.down(lost) // as where its worker fell silent and its server lives on
	r.lose(lost, errors.New("silent"))
	goOn()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	if lost.lost == nil || lost.has != 0 {
		t.Errorf("%+v, want it to be lost still", lost)
	}
}

// A push that every replica refuses fails, with the reason.
func TestAPushThatNobodyTakesFails(t *testing.T) {
	r := newReplicaRig(t, func(c *configs.Run) { c.Server.Replicas = 1 })
	r.until("joining v-1")
	r.push(0)
	r.let("vllm-0", "deaf")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "model.safetensors"), "0.5")
	r.trainer.weight.Store(0.5)
	if _, err := r.Push(t.Context(), 1, dir); milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), "does not serve the trainer's weights") {
		t.Errorf("%v, want KindCorrupt by the canary", err)
	}
}

// A server of the user's that was started anew is noticed by its version, joins again and is brought the weights.
func TestAServerStartedAnewBehindOurBack(t *testing.T) {
	url := "http://127.0.0.1:" + startStandIn(t, t.TempDir())
	r := newReplicaRig(t, func(c *configs.Run) { c.Server.URLs = []string{url} })
	r.push(3)
	r.until("open v3")
	client, err := vllm.New(vllm.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(client.Reload(t.Context(), r.model), client.SetVersion(t.Context(), 0)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if v, _ := client.Version(t.Context()); v == 3 {
			break
		}
	}
	r.until("open v3")
	if !strings.Contains(r.said.String(), "serves version 0, pushed was 3: it was started anew") {
		t.Errorf("it was said:\n%s", r.said.String())
	}
}

// startStandIn starts a stand-in that nobody supervises and returns its port.
func startStandIn(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(freePort(t))
	p, err := supervise.Start(supervise.Spec{Name: "stand-in", Argv: []string{self, "--port", port}, Env: map[string]string{standInEnv: dir}, Log: filepath.Join(dir, "log"),
		Ready: func(context.Context) error {
			c, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err == nil {
				err = c.Close()
			}
			return err
		}})
	if err == nil {
		err = p.WaitReady(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return port
}

// The run fails when the last replica is given up, and its reason is theirs.
func TestEveryReplicaGivenUp(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t, func(c *configs.Run) { c.Server.Command = []string{"/bin/false"} })
	guarded, release := r.guard(t.Context())
	defer release()
	if err := r.waitReady(guarded); milepost.KindOf(err) != milepost.KindUnavailable || !strings.Contains(err.Error(), "vllm-0 keeps failing") || !strings.Contains(err.Error(), "vllm-1 keeps failing") {
		t.Errorf("%v, want both replicas' reasons", err)
	}
}

// What an earlier epoch started and this one has no use for is ended.
func TestFewerReplicasThanBefore(t *testing.T) {
	old, err := supervise.Start(supervise.Spec{Name: "vllm-7", Argv: []string{"/bin/sleep", "100"}, Grace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s := &serving{dir: t.TempDir()}
	file := filepath.Join(s.dir, "vllm-7.json")
	if err := errors.Join(writeIdentity(file, serverIdentity{Identity: old.Identity()}), s.reapOthers(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil || old.Identity().Alive() {
		t.Errorf("the server of an earlier epoch lives, or is remembered: %v", err)
	}
}

// A rebirth while the pool is unjudged, as in an evaluation, samples at once.
func TestUnjudgedReplicasSampleAsTheyAre(t *testing.T) {
	r := newReplicaRig(t, func(c *configs.Run) { c.Server.Replicas = 1 })
	r.until("joining v-1")
	r.trust()
	r.kill("vllm-0")
	r.until()
	r.until(fmt.Sprintf("%s v%d", policy.StateOpen, int32(1<<31-1)))
}

// The only replica dies under a push: its end is known after the push failed, which waits for its next start.
func TestTheOnlyReplicaDiesUnderAPush(t *testing.T) {
	r := newReplicaRig(t, func(c *configs.Run) { c.Server.Replicas = 1 })
	r.until("joining v-1")
	r.push(0)
	file := filepath.Join(r.dir, fmt.Sprint(r.identity("vllm-0").Port)+".dies")
	write(t, file, "")
	go func() {
		for !strings.Contains(r.said.String(), "vLLM ended") && t.Context().Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		_ = os.Remove(file)
	}()
	r.push(1)
	r.until("open v1")
	if !strings.Contains(r.said.String(), "vLLM ended") {
		t.Error("the server did not die")
	}
}

// Where others join and none is up, a push waits for one; one that is up and was tried is not waited for.
func TestAPushWaitsForJoiners(t *testing.T) {
	s := &serving{want: order{number: 1}}
	if _, _, coming := s.targets(map[*replica]int{}); !coming {
		t.Error("nobody is up, and others may join: the push does not wait")
	}
	up := &replica{up: true, start: 1}
	s.replicas = []*replica{up}
	if _, _, coming := s.targets(map[*replica]int{up: 1}); coming {
		t.Error("a replica that was tried is waited for")
	}
	s.cfg.Server.Replicas, s.replicas = 1, []*replica{{started: true, lost: errors.New("given up")}}
	if _, _, coming := s.targets(map[*replica]int{}); coming {
		t.Error("a replica that was given up is waited for")
	}
}

// A server that did not take a push serves what nobody knows, which is no sign that it was started anew.
func TestAServerThatRefusedAPushWasNotStartedAnew(t *testing.T) {
	dir := t.TempDir()
	deaf, other := startStandIn(t, dir), startStandIn(t, dir)
	r := newReplicaRig(t, func(c *configs.Run) {
		c.Server.URLs = []string{"http://127.0.0.1:" + deaf, "http://127.0.0.1:" + other}
	})
	r.push(0)
	r.until("open v0", "open v0")
	write(t, filepath.Join(dir, deaf+".deaf"), "")
	if f := r.push(1); f["replicas_quarantined"] != 1 {
		t.Errorf("figures %v, want one quarantined", f)
	}
	r.mu.Lock()
	if r.replicas[0].served != policy.NoVersion || r.replicas[1].served != 1 {
		t.Errorf("served are %d and %d, want none and 1", r.replicas[0].served, r.replicas[1].served)
	}
	r.mu.Unlock()
	time.Sleep(6 * r.cfg.Policy.Pool.HealthEvery)
	if strings.Contains(r.said.String(), "started anew") {
		t.Errorf("it was said:\n%s", r.said.String())
	}
}

// An adapter that a server has is served, whatever the version of its base.
func TestAdaptersAreWhatAServerServes(t *testing.T) {
	listed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = w.Write([]byte(`{"data":[{"id":"m"},{"id":"` + vllm.AdapterName("m", 4) + `"}]}`))
			return
		}
		_, _ = w.Write([]byte(`{"weight_version":"default"}`))
	}))
	defer listed.Close()
	client, err := vllm.New(vllm.Config{URL: listed.URL, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdle()
	cfg := policy.DefaultPoolConfig()
	cfg.Adapters, cfg.Model = true, "m"
	pool, err := policy.NewPool(cfg, policy.PoolDeps{})
	if err != nil {
		t.Fatal(err)
	}
	s := &serving{pool: pool}
	for version, want := range map[int32]bool{0: true, 4: true, 3: false, 5: false} {
		if serves, what, err := s.stillServes(t.Context(), client, version); err != nil || serves != want {
			t.Errorf("version %d: %v (%s), %v; want %v", version, serves, what, err, want)
		}
	}
}

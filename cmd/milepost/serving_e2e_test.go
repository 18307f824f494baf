package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/internal/vllm/vllmtest"
	"github.com/milepost-rl/milepost/rollout"
	"github.com/milepost-rl/milepost/rollout/policy"
	"github.com/milepost-rl/milepost/shadow"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// TestE2EReplicas: two real vLLM servers, one of this machine and one that joins by `milepost worker serve`. One is killed in the
// middle of a batch of conversations: every finished turn is kept, all conversations end, it comes back, is brought the
// weights and serves again; then the other leaves. Prefixes are salted, so the canary judges the salted cache, too.
func TestE2EReplicas(t *testing.T) {
	if os.Getenv("MILEPOST_E2E") != "1" {
		t.Skip("starts real vLLM servers three times, which takes minutes: set MILEPOST_E2E=1")
	}
	e := startE2EReplicas(t)
	e.push(0)
	far := startProcess(t, "e2e-replicas", "worker", "serve", "--nats", e.nats, "--model", e.models[0], "--name", "far", "--dir", t.TempDir(),
		"-c", "reference", "--set", "serve.heartbeat=500ms", "--set", "server.max_model_len=2048", "--set", "server.env={OMP_NUM_THREADS: \"1\", VLLM_CPU_OMP_THREADS_BIND: nobind}")
	far.until("the second server", 8*time.Minute, func() bool { return len(e.open()) == 2 })
	e.push(1)

	batch := e.converse(12, 6)
	for batch.turns() < 20 {
		time.Sleep(5 * time.Millisecond)
	}
	finished := batch.samples()
	killed := time.Now()
	if err := syscall.Kill(-readIdentity(filepath.Join(e.dir, "vllm-0.json")).Identity.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	before := batch.perReplica()
	batch.wait()
	after := batch.perReplica()
	t.Logf("turns by replica when one was killed: %v, at the end: %v; requests run again: %d", before, after, e.pool.Totals().Rerun)
	batch.keeps(finished)
	if n := batch.turns(); n != 12*6 {
		t.Errorf("%d turns, want %d", n, 12*6)
	}
	for end := time.Now().Add(8 * time.Minute); len(e.open()) < 2 && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("the killed server is approved again after %v", time.Since(killed).Round(time.Second))
	again := e.converse(8, 3)
	again.wait()
	if per := again.perReplica(); len(per) != 2 {
		t.Errorf("turns by replica after its return: %v, want both", per)
	}
	e.push(2)
	if open := e.open(); len(open) != 2 || open[0].Approved != 2 || open[1].Approved != 2 {
		t.Errorf("after the last push: %+v", open)
	}

	last := e.converse(8, 3)
	far.interrupt()
	last.wait()
	if code := far.wait(90 * time.Second); code != exitDone {
		t.Errorf("worker serve: exit code %d; it said:\n%s", code, far.out.String())
	}
	if open := e.open(); len(open) != 1 || last.turns() != 24 {
		t.Errorf("after one left: %+v, %d turns, want 24", open, last.turns())
	}
}

type e2eReplicas struct {
	*serving
	t      *testing.T
	models []string // of the versions
	scorer *vllmtest.Scorer
	nats   string
}

func startE2EReplicas(t *testing.T) *e2eReplicas {
	trainer, err := trainerbridge.Environment(trainerbridge.EnvTrainer)
	if err != nil {
		t.Fatal(err)
	}
	python, dir := filepath.Join(trainer, "bin", "python"), t.TempDir()
	e := &e2eReplicas{t: t}
	for i, nudge := range []string{"0", "1e-3", "2e-3"} {
		e.models = append(e.models, filepath.Join(dir, fmt.Sprintf("v%d", i)))
		vllmtest.TinyModel(t, python, e.models[i], "0", "--nudge", nudge)
	}
	cfg := configs.Default()
	cfg.Server.MaxModelLen = 2048
	cfg.Server.Env = map[string]string{"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
	cfg.Serve.Heartbeat = 500 * time.Millisecond
	cfg.Policy.Token.PrefixCache, cfg.Weights.Salted = policy.PrefixSalt, true
	if e.serving, err = startServing(t.Context(), cfg, e.models[0], filepath.Join(dir, "logs"), func(text string) { t.Log(text) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
	e.scorer = vllmtest.StartScorer(t, python)
	e.messenger()
	vocab, err := weights.Vocab(e.models[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.waitReady(t.Context()), e.usePusher(t.Context(), e2eTrainer{Scorer: e.scorer}, vocab)); err != nil {
		t.Fatal(err)
	}
	return e
}

// messenger opens a NATS server over which others join.
func (e *e2eReplicas) messenger() {
	cfg := shadow.DefaultServer()
	cfg.Dir, cfg.Listen = e.t.TempDir(), true
	server, err := shadow.StartServer(cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(server.Close)
	nc, err := server.Connect("test")
	if err != nil {
		e.t.Fatal(err)
	}
	stop, err := e.accept(nc, "r", 1, e.models[0])
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { stop(); nc.Close() })
	e.nats = server.URL()
}

func (e *e2eReplicas) push(version int32) {
	e.t.Helper()
	e.scorer.Hold(e.models[version])
	figures, err := e.Push(e.t.Context(), version, e.models[version])
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Logf("push of version %d: pause %.3f s, gap %.2g cold, %.2g warm, %v open", version, figures["push_pause_seconds"], figures["canary_gap_cold"], figures["canary_gap_warm"], figures["replicas_open"])
}

func (e *e2eReplicas) open() (out []policy.EndpointState) {
	for _, s := range e.pool.Snapshot() {
		if s.State == policy.StateOpen {
			out = append(out, s)
		}
	}
	return out
}

// e2eBatch is a batch of conversations.
type e2eBatch struct {
	e    *e2eReplicas
	wg   sync.WaitGroup
	mu   sync.Mutex
	done [][]int32 // by conversation: the sequence up to its last finished turn
	by   map[string]int
	all  int
}

// converse starts conversations of that many turns.
func (e *e2eReplicas) converse(conversations, turns int) *e2eBatch {
	b := &e2eBatch{e: e, done: make([][]int32, conversations), by: map[string]int{}}
	for i := range conversations {
		b.wg.Go(func() {
			if err := b.run(i, turns); err != nil {
				e.t.Errorf("conversation %d: %v", i, err)
			}
		})
	}
	return b
}

func (b *e2eBatch) run(i, turns int) error {
	ctx := b.e.t.Context()
	c, err := b.e.model.Open(ctx, rollout.Opening{Session: fmt.Sprintf("%p-%d", b, i), Sampling: rollout.Sampling{Temperature: 1, TopP: 1, MaxTurnTokens: 60},
		Messages: []rollout.Message{{Role: rollout.RoleUser, Content: fmt.Sprintf("The tests of module %d fail.", i)}}})
	if err != nil {
		return err
	}
	for range turns {
		turn, err := c.Next(ctx)
		if err != nil {
			return err
		}
		if turn.Tokens < 1 {
			return errors.New("a turn without tokens")
		}
		sample := c.Samples()[0]
		b.mu.Lock()
		b.all++
		b.by[c.(rollout.Endpointer).Endpoint()]++
		b.done[i] = slices.Clone(sample.Tokens)
		b.mu.Unlock()
		if err := c.Observe(ctx, rollout.ToolResult{Tool: "bash", Text: "Found 3 matches in 2 files."}); err != nil {
			return err
		}
	}
	return c.Close()
}

func (b *e2eBatch) wait() { b.wg.Wait() }

func (b *e2eBatch) turns() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}

func (b *e2eBatch) perReplica() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]int{}
	for url, n := range b.by {
		out[url] = n
	}
	return out
}

func (b *e2eBatch) samples() [][]int32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.done)
}

// keeps holds the batch to what was finished before: each sequence goes on from there, id for id.
func (b *e2eBatch) keeps(finished [][]int32) {
	for i, was := range finished {
		if now := b.samples()[i]; len(now) < len(was) || !slices.Equal(now[:len(was)], was) {
			b.e.t.Errorf("conversation %d lost what it had sampled", i)
		}
	}
}

// e2eTrainer judges pushes, and sends nothing.
type e2eTrainer struct {
	weights.Sender
	*vllmtest.Scorer
}

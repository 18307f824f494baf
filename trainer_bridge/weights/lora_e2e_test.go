package weights_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/internal/vllm"
	"github.com/milepost-rl/milepost/rollout/policy"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// loraE2E trains an adapter on what a real server samples with it, through a pool whose requests name adapters.
type loraE2E struct {
	*e2e
	options trainerbridge.Options
	pool    *policy.Pool
	pusher  *weights.Pusher
	method  *mixedUp
}

// TestE2ELora trains, exports and pushes adapters to a real vLLM. The subtests share the server and run in order.
func TestE2ELora(t *testing.T) {
	if os.Getenv("MILEPOST_E2E") != "1" {
		t.Skip("starts a real vLLM server, which takes two minutes: set MILEPOST_E2E=1")
	}
	e := &loraE2E{options: trainerbridge.Options{Lora: trainerbridge.DefaultLoraConfig()}, method: &mixedUp{}}
	e.options.Lora.Enabled, e.options.Lora.Rank = true, 8
	e.e2e = start(t, func(c *vllm.ServerConfig) { c.Lora.Rank = e.options.Lora.Rank })
	var cancel context.CancelFunc
	e.ctx, cancel = context.WithTimeout(t.Context(), 10*time.Minute) // from here: on a busy machine the start alone takes as long
	defer cancel()
	if _, err := e.trainer.Init(e.ctx, trainerbridge.InitRequest{Model: e.models[0], Seed: 1, Options: e.options}); err != nil {
		t.Fatal(err)
	}
	pc := policy.DefaultPoolConfig()
	pc.URLs, pc.Model, pc.Adapters = []string{e.url}, "policy", true
	var err error
	if e.pool, err = policy.NewPool(pc, policy.PoolDeps{}); err != nil {
		t.Fatal(err)
	}
	cfg := weights.DefaultConfig()
	cfg.Method = weights.MethodLora
	if cfg.Canary.Vocab, err = weights.Vocab(e.models[0]); err != nil {
		t.Fatal(err)
	}
	deps := weights.Deps{Scorer: e.trainer, Gate: e.pool, Model: pc.Model, HTTP: &http.Client{}}
	if e.pusher, err = weights.New(e.method, cfg, deps); err != nil {
		t.Fatal(err)
	}
	t.Run("push", e.pushes)
	t.Run("a request under way keeps its adapter", e.underWay)
	t.Run("a corrupted adapter is healed", e.healed)
	t.Run("a corrupted adapter is quarantined", e.quarantined)
}

// mixedUp is the method whose first loads, so many, read another adapter than the one they are told.
type mixedUp struct {
	weights.Lora
	times int
	other string
}

func (m *mixedUp) Load(ctx context.Context, server *vllm.Client, w weights.Weights) error {
	if m.times > 0 {
		m.times--
		w.Dir = m.other
	}
	return m.Lora.Load(ctx, server, w)
}

func (e *loraE2E) sample(t *testing.T, prompt []int32, tokens int) *vllm.Generation {
	t.Helper()
	g, _, err := e.pool.Sample(e.ctx, "", func(ctx context.Context, c *vllm.Client, _ string) (*vllm.Generation, error) {
		return c.Generate(ctx, "", prompt, vllm.Params{Temperature: 1, TopP: 1, MaxTokens: tokens, IgnoreEOS: true})
	})
	if err != nil {
		t.Error(err)
		return &vllm.Generation{}
	}
	return g
}

// learn samples with the adapter that is served, trains on the samples, and exports the next version. The update itself
// holds sampler and trainer to the bound.
func (e *loraE2E) learn(t *testing.T) string {
	t.Helper()
	var rows []trainerbridge.Row
	for i := range int32(8) {
		prompt := []int32{5 + i, 60 + i, 200 - i}
		g := e.sample(t, prompt, 24)
		if !slices.Equal(g.Versions, slices.Repeat([]int32{e.version}, len(g.IDs))) {
			t.Fatalf("version %d is served, tokens are of %v", e.version, g.Versions)
		}
		row := trainerbridge.Row{Episode: fmt.Sprint("e", i), Tokens: append(prompt, g.IDs...), Logprobs: append(make([]float32, 3), g.Logprobs...),
			Versions: append([]int32{-1, -1, -1}, g.Versions...), Mask: make([]bool, 27), Advantages: make([]float32, 27)}
		for at := 3; at < 27; at++ {
			row.Mask[at], row.Advantages[at] = true, float32(1-2*(i%2))
		}
		rows = append(rows, row)
	}
	e.version++
	b := trainerbridge.Batch{ID: fmt.Sprint("b", e.version), Path: filepath.Join(e.dir, "batch.arrow")}
	var err error
	if b.SHA256, err = trainerbridge.WriteBatch(b.Path, rows); err != nil {
		t.Fatal(err)
	}
	update := trainerbridge.DefaultUpdateConfig()
	update.Optimizer.LR = 1e-2
	m, err := e.trainer.Update(e.ctx, b, update)
	if err != nil {
		t.Fatal(err)
	}
	if m.LogprobGapMean >= bound {
		t.Errorf("the trainer and the samples of version %d differ by %.2g on average, %.2g at most", e.version-1, m.LogprobGapMean, m.LogprobGapMax)
	}
	dir := filepath.Join(e.dir, fmt.Sprint("adapter", e.version))
	if _, err := e.trainer.ExportAdapter(e.ctx, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (e *loraE2E) pushes(t *testing.T) {
	e.served(t, e.pusher, 0, e.models[0])
	for range 3 {
		dir := e.learn(t)
		r := e.served(t, e.pusher, e.version, dir)
		t.Logf("lora v%d: nothing paused, load %.1f ms, in all %.0f ms; gap %.2g cold, %.2g warm", e.version,
			1e3*r.Load.Seconds(), 1e3*r.Total.Seconds(), r.Cold.Mean, r.Warm.Mean)
	}
	base, err := vllm.New(vllm.Config{URL: e.url, Model: "policy"})
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := base.Adapters(e.ctx)
	if slices.Sort(loaded); err != nil || !slices.Equal(loaded, []int32{e.version - 1, e.version}) {
		t.Errorf("version %d is served, and adapters of %v are loaded (%v)", e.version, loaded, err)
	}
}

// underWay pushes a version beside a long request: its tokens are all of the version that it began with, by name and by
// their logprobs, though the server was told of another meanwhile.
func (e *loraE2E) underWay(t *testing.T) {
	const tokens = 600
	before := e.version
	next := e.learn(t)
	old := filepath.Join(e.dir, fmt.Sprint("adapter", before))
	prompt := []int32{7, 88, 201}
	done := make(chan *vllm.Generation, 1)
	go func() { done <- e.sample(t, prompt, tokens) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if m, err := e.client.Metrics(e.ctx); err != nil || time.Now().After(deadline) {
			t.Fatalf("the request does not run: %v", err)
		} else if m.Running > 0 {
			break
		}
	}
	r := e.served(t, e.pusher, e.version, next)
	if err := e.client.SetVersion(e.ctx, e.version); err != nil { // the server's own word for it must not matter
		t.Fatal(err)
	}
	select {
	case <-done:
		t.Fatal("the request ended before the push did; it has to be longer")
	default:
	}
	if g := e.sample(t, prompt, 4); !slices.Equal(g.Versions, slices.Repeat([]int32{e.version}, 4)) {
		t.Errorf("after the push of version %d a request samples versions %v", e.version, g.Versions)
	}
	g := <-done
	if !slices.Equal(g.Versions, slices.Repeat([]int32{before}, tokens)) {
		t.Fatalf("versions %v, want %d of %d", slices.Compact(g.Versions), tokens, before)
	}
	was, is := e.gap(t, old, prompt, g), e.gap(t, next, prompt, g)
	if was >= bound || is < 100*bound {
		t.Errorf("logprobs differ by %.2g from version %d, which sampled, and by %.2g from version %d", was, before, is, e.version)
	}
	t.Logf("a request of %d tokens over a push (load %.1f ms): gap %.2g to its own version, %.2g to the next", tokens, 1e3*r.Load.Seconds(), was, is)
}

// gap is the mean difference of a sample's logprobs from those of an exported adapter, which the trainer holds afterwards.
func (e *loraE2E) gap(t *testing.T, dir string, prompt []int32, g *vllm.Generation) float64 {
	t.Helper()
	if _, err := e.trainer.Init(e.ctx, trainerbridge.InitRequest{Model: dir, Options: e.options}); err != nil {
		t.Fatal(err)
	}
	scores, err := e.trainer.Score(e.ctx, [][]int32{append(slices.Clone(prompt), g.IDs...)})
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for i, lp := range g.Logprobs {
		sum += math.Abs(float64(lp - scores[0][len(prompt)+i]))
	}
	return sum / float64(len(g.Logprobs))
}

// healed: the server first reads another adapter. The canary notices, and the repeat is right, though names are the same
// and prefixes were cached under the wrong adapter.
func (e *loraE2E) healed(t *testing.T) {
	e.method.other = filepath.Join(e.dir, "adapter1")
	dir := e.learn(t)
	e.method.times = 1
	r, err := e.pusher.Push(e.ctx, e.version, dir, []string{e.url})
	x := r.Endpoints[0]
	if err != nil || x.Attempts != 2 || !x.Approved || r.Cold.Mean >= bound || r.Warm.Mean >= bound {
		t.Fatalf("%+v, %v", r, err)
	}
	t.Logf("caught: %s; then gap %.2g cold, %.2g warm", x.Error, r.Cold.Mean, r.Warm.Mean)
	if g := e.sample(t, []int32{9}, 4); g.Versions[0] != e.version {
		t.Errorf("versions %v", g.Versions)
	}
}

// quarantined: a server that keeps reading another adapter gets no request, and the next push heals it.
func (e *loraE2E) quarantined(t *testing.T) {
	approved := e.version
	dir := e.learn(t)
	e.method.times = 2
	r, err := e.pusher.Push(e.ctx, e.version, dir, []string{e.url})
	if milepost.KindOf(err) != milepost.KindCorrupt || !r.Endpoints[0].Quarantined || r.RolledBack != approved {
		t.Fatalf("%+v, %v", r, err)
	}
	if s := e.pool.Snapshot()[0]; s.State != policy.StateQuarantined {
		t.Errorf("the pool has it %s", s.State)
	}
	e.served(t, e.pusher, e.version, dir)
	if g := e.sample(t, []int32{9}, 4); g.Versions[0] != e.version {
		t.Errorf("versions %v", g.Versions)
	}
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/internal/vllm/vllmtest"
	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/rollout"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// TestE2ERoutingReplay samples from a tiny mixture of experts on a real vLLM, trains on its routes with the real trainer and
// pushes the result: the server's routes are whole over several turns, replaying them leaves no larger gap to the sampler than
// the trainer's own routing, and a reload of experts takes.
func TestE2ERoutingReplay(t *testing.T) {
	if os.Getenv("MILEPOST_E2E") != "1" {
		t.Skip("starts a real vLLM server, which takes minutes: set MILEPOST_E2E=1")
	}
	dir, ctx := t.TempDir(), t.Context()
	model := filepath.Join(dir, "model")
	environment, err := trainerbridge.Environment(trainerbridge.EnvTrainer)
	if err != nil {
		t.Fatal(err)
	}
	write := func(out string, more ...string) {
		t.Helper()
		vllmtest.TinyModel(t, filepath.Join(environment, "bin", "python"), out, append([]string{"--experts", "qwen3_moe"}, more...)...)
	}
	rounded := model + "-bfloat16" // the same weights, rounded: as far off as a trainer of another precision
	write(model)
	write(rounded, "--dtype", "bfloat16")
	cfg, err := configs.Load("quickstart", []string{"trainer.routing_replay=true", "server.max_model_len=2048", "policy.token.tools=none", "trainer.threads=1"})
	if err != nil {
		t.Fatal(err)
	}
	servers, err := startServing(ctx, cfg, model, filepath.Join(dir, "servers"), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	defer servers.close()
	trainer, err := startTrainer(ctx, cfg, filepath.Join(dir, "trainer"))
	if err != nil {
		t.Fatal(err)
	}
	defer trainer.close()
	if err := trainer.Load(ctx, model); err != nil {
		t.Fatal(err)
	}
	vocab, err := weights.Vocab(model)
	if err != nil {
		t.Fatal(err)
	}
	if err := servers.usePusher(ctx, trainer.Client, vocab); err != nil {
		t.Fatal(err)
	}
	if err := servers.waitReady(ctx); err != nil {
		t.Fatal(err)
	}
	push := func(version int32) {
		t.Helper()
		out := filepath.Join(dir, fmt.Sprint("v", version))
		if err := trainer.Export(ctx, out); err != nil {
			t.Fatal(err)
		}
		m, err := servers.Push(ctx, version, out) // the canary tests the effect
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("push %d: pause %.3f s, canary's gap %.3g", version, m["push_pause_seconds"], m["canary_gap_mean"])
	}
	push(1)
	rows := routedRows(t, servers.model, 6, 3)
	for _, start := range []string{rounded, model} { // the latter stays loaded
		replayed, own := trainRouted(t, trainer, rows, dir, start)
		t.Logf("%s: gap to the sampler %.3g with replay (%.3f of the tokens, %.3g of the choices changed), %.3g without", filepath.Base(start),
			replayed["logprob_gap_mean"], replayed["routes_replayed"], replayed["routes_changed"], own["logprob_gap_mean"])
		if replayed["logprob_gap_mean"] > own["logprob_gap_mean"]+1e-8 || start == model && replayed["logprob_gap_mean"] > 1e-5 {
			t.Errorf("replay does not bring the trainer nearer to the sampler")
		}
		if replayed["routes_replayed"] < .95 {
			t.Errorf("%.3f of the tokens were replayed, want all but the last of each row", replayed["routes_replayed"])
		}
	}
	push(2)
	again := routedRows(t, servers.model, 1, 2)
	if v := again[0].Versions[len(again[0].Versions)-1]; v != 2 {
		t.Errorf("the last token is of version %d, want 2", v)
	}
}

// routedRows samples conversations and checks that each token but the last has its experts.
func routedRows(t *testing.T, m rollout.Model, conversations, turns int) []orchestrator.Row {
	t.Helper()
	var rows []orchestrator.Row
	for i := range conversations {
		c, err := m.Open(t.Context(), rollout.Opening{
			Messages: []rollout.Message{{Role: rollout.RoleUser, Content: fmt.Sprintf("Fix naïve 漢字 %d", i*7919)}},
			Sampling: rollout.Sampling{Temperature: 1, TopP: 1, MaxTurnTokens: 40}, Session: fmt.Sprint("s", i)})
		if err != nil {
			t.Fatal(err)
		}
		for turn := range turns {
			if turn > 0 {
				if err := c.Observe(t.Context(), rollout.ToolResult{Text: fmt.Sprintf("observation %d of %d", turn, i)}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := c.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s := c.Samples()[0]
		if n := s.Routes.Tokens(); n != len(s.Tokens)-1 || s.Routes.Layers != 2 || s.Routes.TopK != 2 || s.Routes.Size != 1 {
			t.Fatalf("routes of %d tokens (%+v), the sample has %d", n, milepost.Routes{Layers: s.Routes.Layers, TopK: s.Routes.TopK, Size: s.Routes.Size}, len(s.Tokens))
		}
		row := orchestrator.Row{Episode: fmt.Sprint("e", i), Tokens: s.Tokens, Logprobs: s.Logprobs, Versions: s.Versions, Routes: s.Routes,
			Mask: make([]bool, len(s.Tokens)), Advantages: make([]float32, len(s.Tokens))}
		for k, step := range s.Steps {
			if step >= 0 {
				row.Mask[k], row.Advantages[k] = true, float32(i%2)*2-1
			}
		}
		rows = append(rows, row)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// trainRouted makes the same update without and with replay, and leaves the trainer with the latter.
func trainRouted(t *testing.T, tr *trainer, rows []orchestrator.Row, dir, model string) (replayed, own map[string]float64) {
	t.Helper()
	path := filepath.Join(dir, "b.arrow")
	sum, err := tr.WriteBatch(path, rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, replay := range []bool{false, true} {
		tr.cfg.Trainer.RoutingReplay = replay
		if err := tr.Load(t.Context(), model); err != nil {
			t.Fatal(err)
		}
		m, err := tr.Update(t.Context(), 1, path, sum)
		if err != nil {
			t.Fatal(err)
		}
		if replay {
			replayed = m
		} else {
			own = m
		}
	}
	return replayed, own
}

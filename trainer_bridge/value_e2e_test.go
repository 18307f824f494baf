package trainerbridge_test

import (
	"path/filepath"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
)

// asked writes the rows without values, asks the head for them, and returns the rows of a ppo_gae update with gamma =
// lambda = 1 (advantage = return - value), with these returns a row.
func asked(t *testing.T, s *server, returns []float32) []trainerbridge.Row {
	t.Helper()
	seqs := sequences()
	logprobs := mustScore(t, s, seqs)
	rows := make([]trainerbridge.Row, len(seqs))
	for i, tokens := range seqs {
		n := len(tokens)
		r := trainerbridge.Row{Episode: "e", Tokens: tokens, Logprobs: make([]float32, n), Versions: make([]int32, n), Mask: make([]bool, n), Advantages: make([]float32, n)}
		for k := range n {
			if r.Versions[k] = -1; k >= n/2 {
				r.Versions[k], r.Mask[k], r.Logprobs[k] = 0, true, logprobs[i][k]
			}
		}
		rows[i] = r
	}
	path := filepath.Join(t.TempDir(), "ask.arrow")
	sum, err := trainerbridge.WriteBatch(path, rows)
	if err != nil {
		t.Fatal(err)
	}
	values, err := s.Values(t.Context(), trainerbridge.Batch{Path: path, SHA256: sum}, 64)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		r, n := &rows[i], len(rows[i].Tokens)
		if len(values[i]) != n-n/2 {
			t.Fatalf("row %d: %d values for %d trained tokens", i, len(values[i]), n-n/2)
		}
		r.Values, r.Returns = make([]float32, n), make([]float32, n)
		for k, v := range values[i] {
			at := n/2 + k
			r.Values[at], r.Returns[at], r.Advantages[at] = v, returns[i], returns[i]-v
		}
	}
	return rows
}

func write(t *testing.T, id string, rows []trainerbridge.Row) trainerbridge.Batch {
	t.Helper()
	path := filepath.Join(t.TempDir(), id+".arrow")
	sum, err := trainerbridge.WriteBatch(path, rows)
	if err != nil {
		t.Fatal(err)
	}
	return trainerbridge.Batch{ID: id, Path: path, SHA256: sum}
}

// TestValueHeadTrainsThroughTheBridge: values, updates on them, a checkpoint that goes on with the same values, and the
// refusals, against the real trainer.
func TestValueHeadTrainsThroughTheBridge(t *testing.T) {
	s := sharedServer(t)
	model := initTiny(t, s, writeDemonstrations(t, 40))
	returns := []float32{1, 0, 1, 0, 1, 0}
	config := trainerbridge.DefaultUpdateConfig()
	config.Optimizer.LR, config.Value.LR, config.Value.Coefficient = 3e-3, .4, 1
	plain := batchOf(t, s, "plain", sequences(), []float32{1, -1, 1, -1, 1, -1})
	_, err := s.Values(t.Context(), plain, 64)
	wantKind(t, err, milepost.KindInvalid, "there is no value head")

	info, err := s.Init(t.Context(), trainerbridge.InitRequest{Model: model, Seed: 3, ValueHead: true})
	if err != nil || !info.ValueHead {
		t.Fatalf("info %+v, %v", info, err)
	}
	_, err = s.Update(t.Context(), plain, config)
	wantKind(t, err, milepost.KindInvalid, "no values and returns")
	rows := asked(t, s, returns)
	if rows[0].Values[15] != 0 || rows[0].Advantages[15] != 1 {
		t.Errorf("a head that has not learned gives %v", rows[0].Values)
	}
	var first, last trainerbridge.UpdateMetrics
	for i := range 12 {
		if last, err = s.Update(t.Context(), write(t, string(rune('a'+i)), asked(t, s, returns)), config); err != nil {
			t.Fatal(err)
		}
		if last.ValueLoss == nil || last.ValueClipFraction == nil || last.ExplainedVariance == nil {
			t.Fatalf("metrics %+v", last)
		}
		if i == 0 {
			first = last
		}
	}
	if *first.ExplainedVariance != 0 || *last.ExplainedVariance < .5 || *last.ValueLoss > .5**first.ValueLoss {
		t.Errorf("explained variance %v to %v, value loss %v to %v", *first.ExplainedVariance, *last.ExplainedVariance, *first.ValueLoss, *last.ValueLoss)
	}
	checkHeadInCheckpoint(t, s, model, returns)
}

func checkHeadInCheckpoint(t *testing.T, s *server, model string, returns []float32) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "checkpoint")
	if _, err := s.Save(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	want := asked(t, s, returns)
	if _, err := s.Init(t.Context(), trainerbridge.InitRequest{Model: model}); err != nil {
		t.Fatal(err)
	}
	without := filepath.Join(t.TempDir(), "without")
	if _, err := s.Save(t.Context(), without); err != nil {
		t.Fatal(err)
	}
	_, err := s.Load(t.Context(), trainerbridge.LoadRequest{Dir: dir})
	wantKind(t, err, milepost.KindInvalid, "holds a value head")
	_, err = s.Load(t.Context(), trainerbridge.LoadRequest{Dir: without, ValueHead: true})
	wantKind(t, err, milepost.KindInvalid, "holds no value head", "fresh_value_head")
	info, err := s.Load(t.Context(), trainerbridge.LoadRequest{Dir: without, ValueHead: true, FreshValueHead: true})
	if err != nil || !info.ValueHead {
		t.Errorf("a fresh head: %+v, %v", info, err)
	}
	if info, err = s.Load(t.Context(), trainerbridge.LoadRequest{Dir: dir, ValueHead: true}); err != nil || !info.ValueHead {
		t.Fatalf("%+v, %v", info, err)
	}
	got := asked(t, s, returns)
	values := func(rows []trainerbridge.Row) (out [][]float32) {
		for _, r := range rows {
			out = append(out, r.Values)
		}
		return out
	}
	if !equal(values(got), values(want)) {
		t.Error("the loaded head gives other values")
	}
}

package orchestrator

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// critic is a world whose learner has a value head: a value is its number of updates plus a quarter of the token.
type critic struct {
	*world
	asked int
	spoil func([][]float32) [][]float32
}

func (c *critic) Values(_ context.Context, path, _ string) ([][]float32, error) {
	if err := c.tick(); err != nil {
		return nil, err
	}
	c.asked++
	var rows []Row
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &rows)
	}
	out := make([][]float32, len(rows))
	for i, r := range rows {
		for t, on := range r.Mask {
			if on {
				out[i] = append(out[i], float32(len(c.state))+float32(r.Tokens[t])/4)
			}
		}
	}
	if c.spoil != nil {
		out = c.spoil(out)
	}
	return out, err
}

func gaeEngine(t *testing.T) *credit.Engine {
	t.Helper()
	cfg := credit.Default()
	cfg.Estimator = "ppo_gae"
	engine, err := credit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// newCriticRun is newTestRun with the ppo_gae estimator and this learner.
func newCriticRun(t *testing.T, dir string, w *world, learner Learner) (*Runner, error) {
	t.Helper()
	r := newTestRun(t, dir, w, 3)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	var tasks []*milepost.Task
	for _, id := range []string{"a", "b", "v", "h"} {
		tasks = append(tasks, r.tasks[id])
	}
	split := Tasks{Train: []string{"a", "b"}, Validation: []string{"v"}, Heldout: []string{"h"}}
	return NewRunner(r.cfg, r.folder, 3, split, tasks, gaeEngine(t), Deps{Rollouts: w, Probes: w, Learner: learner, Weights: w, Now: time.Now})
}

func readRows(t *testing.T, path string) (rows []Row) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &rows)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestValuesReachBatchRecordAndRecompute runs a run with a value head, killed at every outside call and resumed: each
// update's values are by the weights that it began with, are in its batch and its records, and give the credit again.
func TestValuesReachBatchRecordAndRecompute(t *testing.T) {
	for crash := 0; crash < 60; crash += 7 {
		dir := t.TempDir()
		w := &world{crash: crash, started: map[string]int{}}
		r, err := newCriticRun(t, dir, w, &critic{world: w})
		if err != nil {
			t.Fatal(err)
		}
		err = r.Run(t.Context())
		if cerr := r.Close(); cerr != nil {
			t.Fatal(cerr)
		}
		if err != nil {
			w = &world{started: map[string]int{}}
			if r, err = newCriticRun(t, dir, w, &critic{world: w}); err != nil {
				t.Fatal(err)
			}
			if err := r.Run(t.Context()); err != nil {
				t.Fatalf("resume after a crash at call %d: %v", crash, err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		checkValues(t, r.folder, crash)
	}
}

func checkValues(t *testing.T, f *Folder, crash int) {
	t.Helper()
	update := 0
	err := f.Recompute(gaeEngine(t), func(batch string, got credit.Result) error {
		update++
		records, err := f.ReadEpisodes(batch)
		rows := readRows(t, f.Path("batches", batch+".arrow"))
		for i, rec := range records {
			want := float32(update-1) + .5 // the token is 2
			if !reflect.DeepEqual(rec.Values, []float32{want}) || !reflect.DeepEqual(*rec.Credit, got.Episodes[i]) {
				t.Errorf("crash %d, %s: values %v, want %v; credit %+v, recomputed %+v", crash, rec.Episode.ID, rec.Values, want, *rec.Credit, got.Episodes[i])
			}
			row, reward := rows[i], float32(rec.Episode.Outcome.Reward)
			a := reward - want + float32(rec.Credit.Steps[0].P)
			if !reflect.DeepEqual(row.Values, []float32{0, want}) || !reflect.DeepEqual(row.Returns, []float32{0, reward}) || row.Advantages[0] != 0 || row.Advantages[1] != a {
				t.Errorf("crash %d: row %+v, want value %v, return %v, advantage %v", crash, row, want, reward, a)
			}
		}
		return err
	})
	if err != nil || update != 4 {
		t.Errorf("crash %d: %d updates, error %v", crash, update, err)
	}
	if left, _ := filepath.Glob(f.Path("batches", "*.values")); len(left) > 0 {
		t.Errorf("crash %d: left %v", crash, left)
	}
}

func TestValuesAreRefused(t *testing.T) {
	w := &world{started: map[string]int{}}
	_, err := newCriticRun(t, t.TempDir(), w, w)
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "ppo_gae, which needs a trainer with a value head") {
		t.Errorf("a learner without values: %v", err)
	}
	for words, spoil := range map[string]func([][]float32) [][]float32{
		"3 rows of values for 4":        func(v [][]float32) [][]float32 { return v[1:] },
		"2 values for 1 trained tokens": func(v [][]float32) [][]float32 { v[0] = append(v[0], 1); return v },
	} {
		w := &world{started: map[string]int{}}
		r, err := newCriticRun(t, t.TempDir(), w, &critic{world: w, spoil: spoil})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRowsOfAnEpisodeInParts: values are counted on over the samples of an episode, samples that train nothing left out.
func TestRowsOfAnEpisodeInParts(t *testing.T) {
	ep := &milepost.Episode{ID: "e", Steps: []milepost.Step{{}, {Index: 1}}, Samples: []milepost.Sample{
		{Tokens: []int32{7, 8, 9}, Steps: []int32{-1, 0, 0}}, {Tokens: []int32{5}, Steps: []int32{-1}},
		{Tokens: []int32{1, 2, 3}, Steps: []int32{-1, 1, -1}},
	}}
	in := credit.Input{Episode: ep, Task: &milepost.Task{ID: "t"}, Values: []float64{.25, .5, .75}}
	ep.Status, ep.Outcome.Reward = milepost.EpisodeCompleted, 1
	ep.Steps[0].Valid, ep.Steps[1].Valid = true, true
	assigned, err := gaeEngine(t).Assign([]credit.Input{in})
	if err != nil {
		t.Fatal(err)
	}
	rows := episodeRows(ep, assigned.Episodes[0], tokenCredit(assigned, 0))
	if len(rows) != 2 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, want := range [][3][]float32{{{0, .25, .5}, {0, 1, 1}, {0, .75, .5}}, {{0, .75, 0}, {0, 1, 0}, {0, .25, 0}}} {
		if got := [3][]float32{rows[i].Values, rows[i].Returns, rows[i].Advantages}; !reflect.DeepEqual(got, want) {
			t.Errorf("row %d: values, returns, advantages %v, want %v", i, got, want)
		}
	}
	if plain := episodeRows(ep, assigned.Episodes[0], nil); plain[0].Values != nil || plain[0].Advantages[2] != plain[0].Advantages[1] {
		t.Errorf("without credit by token: %+v", plain[0])
	}
}

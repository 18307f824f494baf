package orchestrator

import (
	"context"
	"maps"
	"testing"

	"github.com/milepost-rl/milepost/credit"
)

// TestMOGRPORuns: a run knows the objectives that mo_grpo reads; a run of another estimator records none.
func TestMOGRPORuns(t *testing.T) {
	for _, estimator := range []string{"mo_grpo", "grpo"} {
		c := credit.Default()
		c.Estimator = estimator
		engine, err := credit.New(c)
		if err != nil {
			t.Fatal(err)
		}
		r := newTestRun(t, t.TempDir(), &world{started: map[string]int{}}, 1)
		r.engine = engine
		if err := r.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		records, err := r.folder.ReadEpisodes("u0001")
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range records {
			var want map[string]float64
			if estimator == "mo_grpo" { // of the two attempts at a task the first passes its one test
				passes := float64(1 - rec.Episode.Attempt%2)
				want = map[string]float64{"resolved": passes, "verification": passes, "navigation": 0, "format": 1}
			}
			if got := rec.Episode.Outcome.Objectives; !maps.Equal(got, want) {
				t.Errorf("%s: %s has %v, want %v", estimator, rec.Episode.ID, got, want)
			}
			// resolved and verification both differ: twice the one normalised term of grpo
			a := rec.Credit.Steps[0].AOut
			if scale := a / .5 * .70710678; rec.Episode.Attempt == 0 && (scale < .99*float64(max(1, len(want)/2)) || scale > 1.01*float64(max(1, len(want)/2))) {
				t.Errorf("%s: A_out is %v", estimator, a)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

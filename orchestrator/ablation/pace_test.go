package ablation

import "testing"

func TestTimeToEpisodes(t *testing.T) {
	r := Run{Seed: 1, Finished: true, Points: []Point{{Active: 5}, {Update: 1, Episodes: 8, Active: 25}, {Update: 2, Episodes: 8, Active: 30}, {Update: 3, Episodes: 24, Active: 70}}}
	for n, want := range map[int]float64{4: 15, 8: 25, 12: 40, 24: 70} {
		if got, ok := r.timeTo(n); !ok || got != want {
			t.Errorf("to %d episodes: %v %v, want %v", n, got, ok, want)
		}
	}
	for _, n := range []int{0, 25} {
		if got, ok := r.timeTo(n); ok {
			t.Errorf("to %d episodes: %v", n, got)
		}
	}
}

// TestPaceIsPairedBySeed: seed 3 has no partner, and the ratio of the others is their geometric mean.
func TestPaceIsPairedBySeed(t *testing.T) {
	run := func(seed int64, active float64) Run {
		return Run{Seed: seed, Finished: true, Points: []Point{{Update: 1, Episodes: 10, Active: active}}}
	}
	base := Arm{Name: "sync", Runs: []Run{run(1, 100), run(2, 200)}}
	other := Arm{Name: "async", Runs: []Run{run(1, 25), run(2, 200), run(3, 4)}}
	s, r := Study{Reference: "sync", Arms: []Arm{other, base}}, Result{Episodes: 10}
	if got := paceCells(s, r, other); got[0] != "0:01:16" || got[1] != "0.50 (0.25 1.00)" {
		t.Errorf("%q", got)
	}
	if got := paceCells(s, r, base); got[0] != "0:02:30" || got[1] != "reference" {
		t.Errorf("%q", got)
	}
	if got := paceCells(s, Result{Episodes: 11}, other); got[0] != none || got[1] != none {
		t.Errorf("%q", got)
	}
}

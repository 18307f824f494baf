package ablation

import (
	"reflect"
	"testing"
)

func TestCurveByHand(t *testing.T) {
	s := []knot{{0, map[string]float64{"a": 0, "b": .5}}, {10, map[string]float64{"a": 1, "b": .5, "c": 1}}, {20, map[string]float64{"a": 1, "b": 0, "c": 1}}}
	for x, want := range map[float64]map[string]float64{
		0: {"a": 0, "b": .5}, 2.5: {"a": .25, "b": .5}, 5: {"a": .5, "b": .5}, 10: {"a": 1, "b": .5, "c": 1}, 15: {"a": 1, "b": .25, "c": 1}, 17.5: {"a": 1, "b": .125, "c": 1}, 20: {"a": 1, "b": 0, "c": 1}, 21: nil, -1: nil,
	} {
		if got := at(s, x); !reflect.DeepEqual(got, want) {
			t.Errorf("at %v: %v, want %v", x, got, want)
		}
	}
	if got, want := area(s, 20), map[string]float64{"a": .75, "b": .375}; !reflect.DeepEqual(got, want) {
		t.Errorf("area to 20: %v, want %v", got, want)
	}
	near(t, "area of a to 15", area(s, 15)["a"], 10./15, 1e-15) // ½·10 + 5
	if got := area(s, 0); got != nil {
		t.Errorf("area to 0: %v", got)
	}
	if got := area(s[1:], 20); got != nil {
		t.Errorf("area of a curve that begins at 10: %v", got)
	}
}

func TestSeriesBeginsAtTheColdStart(t *testing.T) {
	start := evaluationOf(map[string][]float64{"a": {0, 1}})
	r := Run{Points: []Point{{Update: 1, Episodes: 8, Tokens: 100}, {Update: 2, Episodes: 16, Tokens: 250, Tasks: map[string]float64{"a": 1}}, {Update: 3, Episodes: 16, Tokens: 250, Tasks: map[string]float64{"a": .75}}}}
	if got, want := r.series(AtTokens, start), []knot{{0, map[string]float64{"a": .5}}, {250, map[string]float64{"a": .75}}}; !reflect.DeepEqual(got, want) {
		t.Errorf("by tokens: %v, want %v", got, want)
	}
	if got, want := r.series(AtEpisodes, nil), []knot{{16, map[string]float64{"a": .75}}}; !reflect.DeepEqual(got, want) {
		t.Errorf("by episodes, no cold start: %v, want %v", got, want)
	}
	r.Points = append([]Point{{Tasks: map[string]float64{"a": .25}}}, r.Points...)
	if got := r.series(AtTokens, start); got[0].tasks["a"] != .25 || len(got) != 2 {
		t.Errorf("a run that measured its own start: %v", got)
	}
}

func TestMovingMean(t *testing.T) {
	for width, want := range map[int][]float64{1: {0, 3, 6, 0}, 3: {1.5, 3, 3, 3}, 5: {3, 2.25, 2.25, 3}, 99: {2.25, 2.25, 2.25, 2.25}} {
		for i, got := range movingMean([]float64{0, 3, 6, 0}, width) {
			near(t, "moving mean", got, want[i], 1e-12)
		}
	}
}

package ablation

import (
	"testing"

	"pgregory.net/rapid"
)

func TestCorrectByHand(t *testing.T) {
	p := []float64{.01, .04, .03, .005}
	for rule, want := range map[Correction][]float64{
		CorrectHolm: {.03, .06, .06, .02}, // .005·4, .01·3, .03·2, .04·1 but not below .06
		CorrectBH:   {.02, .04, .04, .02}, // .04·4/4, .03·4/3, .01·4/2, .005·4/1
		CorrectNone: p,
	} {
		for i, got := range correct(p, rule) {
			near(t, string(rule), got, want[i], 1e-15)
		}
	}
	for _, rule := range []Correction{CorrectHolm, CorrectBH, CorrectNone} {
		if got := correct([]float64{.2}, rule); got[0] != .2 {
			t.Errorf("%s of one comparison: %v", rule, got)
		}
		if got := correct(nil, rule); len(got) != 0 {
			t.Errorf("%s of none: %v", rule, got)
		}
	}
}

func TestCorrectProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.Float64Range(0, 1), 0, 12).Draw(t, "p")
		holm, bh := correct(p, CorrectHolm), correct(p, CorrectBH)
		for i := range p {
			if !(holm[i] >= bh[i]-same && holm[i] >= p[i] && bh[i] >= p[i] && holm[i] <= 1) {
				t.Fatalf("p %v: Holm %v, Benjamini-Hochberg %v", p[i], holm[i], bh[i])
			}
			for j := range p {
				if p[i] < p[j] && (holm[i] > holm[j] || bh[i] > bh[j]) {
					t.Fatalf("%v and %v change places: Holm %v, %v; Benjamini-Hochberg %v, %v", p[i], p[j], holm[i], holm[j], bh[i], bh[j])
				}
			}
		}
	})
}

package credit

import (
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
)

func TestLimitReward(t *testing.T) {
	atLimit := func(probes ...*milepost.Probe) Input {
		in := oneEpisode(1, 1, probes...)
		in.Episode.Status, in.Episode.Outcome.Resolved = milepost.EpisodeLimit, true
		return in
	}
	untrusted := seen(t, "PP")
	untrusted.Trusted = false
	counts := seen(t, "")
	counts.Report, counts.Partition = nil, &milepost.Partition{
		F2P: milepost.PartitionCounts{Expected: 1, Passed: 1}, P2P: milepost.PartitionCounts{Expected: 1, Passed: 1}}
	submitted := atLimit(seen(t, "PP"))
	submitted.Episode.Status = milepost.EpisodeCompleted
	failed := atLimit(seen(t, "PP"))
	failed.Episode.Outcome.Resolved = false
	for name, c := range map[string]struct {
		in      Input
		want    float64
		applies bool
	}{
		"second of four":     {atLimit(seen(t, "FP"), seen(t, "PP"), seen(t, "PP"), nil), .5, true},
		"counts":             {atLimit(nil, nil, counts, nil), .75, true},
		"no step known":      {atLimit(untrusted, nil, seen(t, "PPP"), seen(t, "PS")), .6, true},
		"submitted":          {submitted, 0, false},
		"final state failed": {failed, 0, false},
	} {
		if got, applies := LimitReward(c.in); got != c.want || applies != c.applies {
			t.Errorf("%s: %v %v, want %v %v", name, got, applies, c.want, c.applies)
		}
	}
}

func TestOverlong(t *testing.T) {
	o := Overlong{MaxTokens: 100, Buffer: 20, Penalty: .5, MaxTurns: 50, TurnsBefore: 40}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tokens, turns int
		want          float64
	}{{0, 0, 0}, {80, 40, 0}, {90, 0, -.25}, {100, 0, -.5}, {120, 0, -1}, {0, 45, -.5}, {90, 50, -1.25}} {
		if got := o.Term(c.tokens, c.turns); !near(got, c.want) {
			t.Errorf("%d tokens, %d turns: %v, want %v", c.tokens, c.turns, got, c.want)
		}
	}
	if got := (Overlong{}).Term(1e6, 1e6); got != 0 {
		t.Errorf("off: %v", got)
	}
	for words, o := range map[string]Overlong{
		"overlong.buffer is 0": {MaxTokens: 10}, "overlong.buffer is 11": {MaxTokens: 10, Buffer: 11},
		"overlong.turns_before is 5": {MaxTurns: 5, TurnsBefore: 5}, "overlong.penalty is -1": {Penalty: -1},
		"overlong.max_tokens is -1": {MaxTokens: -1}, "overlong.max_turns is -1": {MaxTurns: -1},
	} {
		if err := o.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
}

func TestSampling(t *testing.T) {
	equal, differ := outcomes([]float64{1, 1}), outcomes([]float64{1, 0})
	infra := outcomes([]float64{1, 1, 0})
	infra[2].Episode.Status = milepost.EpisodeInfra
	byOutcome := DefaultSampling(milepost.BugRepair)
	for name, c := range map[string]struct {
		inputs []Input
		want   bool
	}{"equal": {equal, false}, "differ": {differ, true}, "only the excluded one differs": {infra, false}, "none": {nil, false}} {
		if got := byOutcome.Keep(c.inputs, nil); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	byAdvantage := byOutcome
	byAdvantage.Criterion = CriterionAdvantage
	if err := byAdvantage.Validate(); err != nil {
		t.Fatal(err)
	}
	if byAdvantage.Keep(equal, mustAssign(t, Default(), equal).Episodes) {
		t.Error("a group without advantage is kept")
	}
	equal[0].Episode.Steps[0].Valid = false
	if !byAdvantage.Keep(equal, mustAssign(t, Default(), equal).Episodes) {
		t.Error("a group with advantage from format is dropped")
	}
	if err := (Sampling{Criterion: "luck"}).Validate(); err == nil || !strings.Contains(err.Error(), `sampling.criterion is "luck"; allowed: one of outcome, advantage`) {
		t.Errorf("got %v", err)
	}
}

func TestRetirement(t *testing.T) {
	repair, generation := DefaultSampling(milepost.BugRepair), DefaultSampling(milepost.RepoGeneration)
	for _, c := range []struct {
		s          Sampling
		rate       float64
		rejections int
		want       bool
	}{
		{repair, .97, 0, false}, {repair, .97, 1, true}, {repair, .9, 9, false},
		{repair, .03, 1, false}, {repair, .03, 2, true}, {generation, 0, 2, false}, {generation, 0, 3, true},
		{PlainSampling(), 1, 9, false}, {PlainSampling(), 0, 9, false},
	} {
		if got := c.s.Retired(c.rate, c.rejections); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestSamplingNumbers(t *testing.T) {
	repair := DefaultSampling(milepost.BugRepair)
	for needed, want := range map[int]int{1: 2, 2: 3, 3: 5, 12: 18} {
		if got := repair.Dispatch(needed); got != want {
			t.Errorf("%d needed: %d dispatched, want %d", needed, got, want)
		}
	}
	if got := repair.Bound(12); got != 120 {
		t.Errorf("bound %d, want 120", got)
	}
	repair.MaxGroups = 20
	if got := repair.Bound(12); got != 20 {
		t.Errorf("bound %d, want 20", got)
	}
	for field, s := range map[string]Sampling{
		"":                             PlainSampling(),
		"sampling.oversample is 0.5":   {Criterion: CriterionOutcome, Oversample: .5},
		"sampling.max_groups is -1":    {Criterion: CriterionOutcome, Oversample: 1, MaxGroups: -1},
		"sampling.easy_after is -1":    {Criterion: CriterionOutcome, Oversample: 1, EasyAfter: -1},
		"sampling.hard_after is -1":    {Criterion: CriterionOutcome, Oversample: 1, HardAfter: -1},
		"sampling.hard_rate is 1.5":    {Criterion: CriterionOutcome, Oversample: 1, HardRate: 1.5},
		"sampling.easy_rate is -1; al": {Criterion: CriterionOutcome, Oversample: 1, EasyRate: -1},
	} {
		err := s.Validate()
		if (err == nil) != (field == "") || err != nil && !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v, want %q", s, err, field)
		}
	}
	for name, c := range map[string]struct {
		s    Sampling
		want bool
	}{"plain": {PlainSampling(), false}, "paper": {DefaultSampling(milepost.BugRepair), true}, "retiring only": {Sampling{Oversample: 1, HardAfter: 1}, true}, "surplus only": {Sampling{Oversample: 1.1}, true}} {
		if got := c.s.Dynamic(); got != c.want {
			t.Errorf("%s is dynamic: %v", name, got)
		}
	}
}

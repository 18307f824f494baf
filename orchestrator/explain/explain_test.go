package explain

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/mattn/go-runewidth"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// sample is a group of two: the first episode has every kind of step, the second fails at once.
func sample(t *testing.T) Source {
	t.Helper()
	report := func(letters string) *milepost.Probe {
		var r milepost.TestReport
		if err := r.UnmarshalText([]byte(letters)); err != nil {
			t.Fatal(err)
		}
		return &milepost.Probe{Status: milepost.ProbeCompleted, Trusted: true, Report: r}
	}
	task := &milepost.Task{ID: "cart", Kind: milepost.BugRepair, RelevantFiles: []string{"shop/cart.py", "shop/tax.py"},
		Tests: []string{"tests.test_cart.Total.test_rate", "tests.test_cart.Total.test_sum", "tests.test_tax.Tax.test_low"}}
	part := func(k int) *milepost.Probe {
		p := report("PPP")
		p.Merge = &milepost.Merge{ID: "m", Size: 2, Index: k}
		return p
	}
	cached := report("PFF")
	cached.Cached = true
	late := &milepost.Probe{Status: milepost.ProbeLate, Reason: "not back within the barrier", Continuity: milepost.ContinuityKept}
	call := func(tool, arguments string) milepost.Action {
		return milepost.Action{Tool: tool, Arguments: json.RawMessage(arguments), Text: "<call>"}
	}
	first := &milepost.Episode{ID: "u0001/g00/a00", Group: "u0001/g00", Task: "cart", Status: milepost.EpisodeLimit, Stop: milepost.StopTurns,
		Outcome: milepost.Outcome{Graded: true, Resolved: true, Reward: 4. / 7, Verdict: report("PPP")}}
	for _, s := range []milepost.Step{
		{Valid: true, Executed: true, Action: call("search", `{"query": "合計 total"}`), Exposures: []milepost.Exposure{
			{Path: "shop/cart.py", Level: milepost.ExposureSearch, Confidence: "high"}, {Path: "docs/notes.md", Level: milepost.ExposureSearch, Confidence: "high"}}},
		{Valid: true, Executed: true, Action: call("edit_file", `{"path": "shop/cart.py", "old": "- rate\n\u001b[2J", "new": "+ rate"}`), Changed: []string{"shop/cart.py"}, Probe: cached},
		{Valid: true, Executed: true, Action: call("edit_file", `{"path": "shop/tax.py"}`), Changed: []string{"shop/tax.py"}, Probe: late},
		{Valid: true, Executed: true, Action: call("edit_file", `{"path": "shop/tax.py"}`), Probe: part(0)},
		{Valid: true, Executed: true, Action: call("edit_file", `{"path": "shop/tax.py"}`), Probe: part(1)},
		{Violation: milepost.ViolationParse, Action: milepost.Action{Text: "I am <call> done"}},
		{Valid: true, Executed: true, Action: call("edit_file", `[1]`), Probe: &milepost.Probe{Status: milepost.ProbeTimeout, Continuity: milepost.ContinuityLost}},
	} {
		s.Index = len(first.Steps)
		first.Steps = append(first.Steps, s)
	}
	second := &milepost.Episode{ID: "u0001/g00/a01", Group: "u0001/g00", Task: "cart", Status: milepost.EpisodeCompleted, Stop: milepost.StopSubmit,
		Outcome: milepost.Outcome{Graded: true, Verdict: report("FFP")}, Steps: []milepost.Step{{Valid: true, Executed: true, Action: call("submit", `{}`)}}}
	third := &milepost.Episode{ID: "u0001/g00/a02", Group: "u0001/g00", Task: "cart", Status: milepost.EpisodeInfra, Stop: milepost.StopError, Error: "no verdict: late"}
	s := Source{Rules: credit.Default(), KeepGroup: credit.CriterionOutcome, Batch: "u0001"}
	for _, ep := range []*milepost.Episode{first, second, third} {
		s.Inputs = append(s.Inputs, credit.Input{Episode: ep, Task: task, Baseline: report("FFP")})
	}
	s.assign(t)
	return s
}

func (s *Source) assign(t *testing.T) {
	t.Helper()
	engine, err := credit.New(s.Rules)
	if err != nil {
		t.Fatal(err)
	}
	r, err := engine.Assign(s.Inputs)
	if err != nil {
		t.Fatal(err)
	}
	s.Credits = r.Episodes
}

func mustNew(t *testing.T, s Source, i int) Episode {
	t.Helper()
	e, err := New(s, i)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func printed(t *testing.T, e Episode, l Layout) string {
	t.Helper()
	var b strings.Builder
	if err := e.Print(&b, l); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPrint is the whole of a table, worked by hand: F2P 2, P2P 1.
func TestPrint(t *testing.T) {
	const want = `episode   u0001/g00/a00 (u0001)
task      cart, bug_repair
outcome   resolved; stopped at a limit; ended by max_turns; at the end 3 of 3 tests pass
reward    0.5714 = resolved 0.5714 (at a limit; step 3, counted from 0, passed everything first: 4/7)
baseline  trusted: 2 tests fail before (F2P), 1 pass (P2P)
group     u0001/g00: 2 episodes (and 1 in no statistic), rewards 0.5714 0; mean 0.2857, std 0.4041
credit    grpo: A_out = (R - mean) / (std + eps)
          A = 1 A_out + p; p = r + b + 0.25 f
          r = 0.2 (change of φver, normalized) + 0.05 (change of φnav); b = 0.2 of later r, discounted by 0.9 a step

 # action                                                          φver   φnav      r      b      f      p  A_out      A
 0 search query: 合計 total                                           · +0.100 +0.005 +0.027      · +0.032 +0.707 +0.739
     exposed   search shop/cart.py, search docs/notes.md (not counted)
 1 edit_file path: shop/cart.py, old: - rate [2J, new: + rate    −0.100 +0.100 −0.020 +0.034      · +0.014 +0.707 +0.721
     changed   shop/cart.py
     probe     1 of 3 tests pass
     fixed     1: tests.test_cart.Total.test_rate
     broken    1: tests.test_tax.Tax.test_low
     note      cached
 2 edit_file path: shop/tax.py                                   −0.100 +0.100      · +0.038      · +0.038 +0.707 +0.745
     changed   shop/tax.py
     probe     not trusted: late: not back within the barrier
     note      the potential is carried forward; the next trusted probe earns the change since
 3 edit_file path: shop/tax.py                                   +0.450 +0.100 +0.110 +0.020      · +0.130 +0.707 +0.837
     probe     3 of 3 tests pass
     note      part 1 of 2 of one probe shared by consecutive steps; each earns an even share of its change; earns the
               change since 1 probe before it that was not trusted
 4 edit_file path: shop/tax.py                                   +1.000 +0.100 +0.110      ·      · +0.110 +0.707 +0.817
     probe     3 of 3 tests pass
     fixed     2: tests.test_cart.Total.test_sum, tests.test_tax.Tax.test_low
     note      part 2 of 2 of one probe shared by consecutive steps; each earns an even share of its change
 5 no call I am <call> done                                      +1.000 +0.100      ·      · −1.000 −0.250 +0.707 +0.457
     not valid parse
 6 edit_file [1]                                                 +1.000 +0.100      ·      ·      ·      · +0.707 +0.707
     probe     not trusted: timeout
     note      continuity lost: the potential is frozen

group     kept by outcome: outcome rewards differ
`
	if got := printed(t, mustNew(t, sample(t), 0), Layout{Width: 120}); got != want {
		t.Errorf("got:\n%s", got)
	}
}

var ansi = regexp.MustCompile("\x1b\\[[0-9;]*m")

// TestWidth: no line is wider than asked for, wide characters and colours too, and no character of the agent steers the
// terminal.
func TestWidth(t *testing.T) {
	s := sample(t)
	ep := s.Inputs[0].Episode
	ep.Steps[1].Action.Arguments = json.RawMessage(`{"path": "` + strings.Repeat("漢字かな", 30) + `", "old": "\u202egnp.exe\u0007"}`)
	ep.Steps[0].Exposures[0].Path = strings.Repeat("とても長い", 20) + "\x1b]0;title\x07.py"
	s.Inputs[0].Task.Tests[0] = strings.Repeat("テスト", 40) + ".end"
	s.assign(t)
	for _, width := range []int{0, MinWidth, 80, 97, 200} {
		for _, color := range []bool{false, true} {
			text := printed(t, mustNew(t, s, 0), Layout{Width: width, Color: color})
			if color == !ansi.MatchString(text) {
				t.Errorf("colour %v: %q", color, text)
			}
			text = ansi.ReplaceAllString(text, "")
			for l := range strings.Lines(text) {
				if w := runewidth.StringWidth(strings.TrimSuffix(l, "\n")); w > max(width, MinWidth) {
					t.Errorf("width %d: a line of %d: %s", width, w, l)
				}
			}
			if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f || r == '\u202e' }); i >= 0 {
				t.Errorf("width %d: control character %q", width, text[i])
			}
			if !strings.Contains(text, "テスト.end") {
				t.Error("the end of a long test id is not shown")
			}
		}
	}
}

// TestRemarks: a reward that the rules do not give is shown as recorded, and remarked upon.
func TestRemarks(t *testing.T) {
	s := sample(t)
	s.Inputs[0].Episode.Outcome.Reward = .25
	text := printed(t, mustNew(t, s, 0), Layout{Width: 120})
	for _, want := range []string{"reward    0.25 (as recorded)\n", "remarks   the recorded reward is 0.25, the saved configuration gives 0.5714\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
}

func TestPrintExcludedAndOff(t *testing.T) {
	s := sample(t)
	text := printed(t, mustNew(t, s, 2), Layout{Width: 120})
	for _, want := range []string{"outcome   infra_error: in no statistic, without credit: no verdict: late; ended by error", "reward    none"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "φver   φnav") {
		t.Error("an excluded episode has a table")
	}
	s.Batch, s.KeepGroup = "", ""
	s.Rules.Milestone.Navigation, s.Rules.ProcessBaseline, s.Rules.Estimator = false, credit.BaselineGroupMean, "rloo"
	s.assign(t)
	text = printed(t, mustNew(t, s, 1), Layout{Width: 160})
	for _, want := range []string{"reward    0 (as the case gives it)", "; off: navigation", ", less the group's mean", "rloo: A_out = R - mean of the others",
		"group     kept by outcome: outcome rewards differ\n          kept by advantage: the largest |A| of the group is "} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	s.Rules.Milestone.Enabled = false
	s.assign(t)
	if text = printed(t, mustNew(t, s, 1), Layout{}); !strings.Contains(text, "milestone credit is off") {
		t.Errorf("milestone off:\n%s", text)
	}
	s.Rules.Estimator = "mo_grpo"
	for i, in := range s.Inputs {
		in.Episode.Outcome.Objectives = map[string]float64{"format": 1, "resolved": float64(i)}
	}
	s.assign(t)
	if text = printed(t, mustNew(t, s, 1), Layout{}); !strings.Contains(text, "          resolved 0 1; mean 0.5, std 0.7071\n") {
		t.Errorf("objectives:\n%s", text)
	}
}

// TestJSON: the structured form holds all that the table shows.
func TestJSON(t *testing.T) {
	e := mustNew(t, sample(t), 0)
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var back Episode
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	for t := range e.Steps {
		e.Steps[t].Source = nil
	}
	if !reflect.DeepEqual(back, e) {
		t.Errorf("%+v\nis not\n%+v", back, e)
	}
}

func TestNewRefuses(t *testing.T) {
	s := sample(t)
	for name, c := range map[string]struct {
		change func(*Source)
		i      int
		kind   milepost.Kind
	}{
		"no such episode": {func(*Source) {}, 9, milepost.KindInvalid},
		"fewer credits":   {func(s *Source) { s.Credits = s.Credits[:1] }, 0, milepost.KindInvalid},
		"another length":  {func(s *Source) { s.Credits[0].Steps = s.Credits[0].Steps[:2] }, 0, milepost.KindCorrupt},
		"estimator":       {func(s *Source) { s.Rules.Estimator = "luck" }, 0, milepost.KindInvalid},
	} {
		damaged := s
		damaged.Credits = append([]milepost.EpisodeCredit{}, s.Credits...)
		c.change(&damaged)
		if _, err := New(damaged, c.i); milepost.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheck: credit that the rules do not give is remarked upon, by the terms that can be derived here.
func TestCheck(t *testing.T) {
	for estimator, remarked := range map[string]bool{"grpo": true, "reinforce_pp_baseline": false} {
		s := sample(t)
		s.Rules.Estimator = estimator
		s.assign(t)
		if remark, err := s.check(0); remark != "" || err != nil {
			t.Errorf("%s: %q, %v", estimator, remark, err)
		}
		s.Credits[0].Steps[2].AOut += .5 // what whitening would do too
		if remark, err := s.check(0); (remark != "") != remarked || err != nil {
			t.Errorf("%s, another A_out: %q, %v", estimator, remark, err)
		}
		s.Credits[0].Steps[2].R += .5
		if remark, err := s.check(0); !strings.Contains(remark, "at step 2 A is recorded as") || err != nil {
			t.Errorf("%s, another r: %q, %v", estimator, remark, err)
		}
	}
}

func TestArguments(t *testing.T) {
	for raw, want := range map[string]string{
		`{"b": 1, "a": "x\ny"}`: "b: 1, a: x y", `[1]`: "[1]", `{"a": `: `{"a":`, ``: "", `{}`: "",
		fmt.Sprintf(`{"a": %q}`, strings.Repeat("x", 99)): "a: " + strings.Repeat("x", argumentLimit) + "…",
	} {
		if got := arguments(json.RawMessage(raw)); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}

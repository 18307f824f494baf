package evaluate

import (
	"reflect"
	"testing"

	milepost "github.com/milepost-rl/milepost"

	"pgregory.net/rapid"
)

func TestSelectRule(t *testing.T) {
	v := func(failing int) *Visible { return &Visible{Failing: failing, Total: 5} }
	for name, c := range map[string]struct {
		list []Candidate
		want int
	}{
		"none":                    {nil, -1},
		"fewest failing":          {[]Candidate{{0, 10, v(2)}, {1, 90, v(1)}, {2, 20, v(3)}}, 1},
		"then the smallest patch": {[]Candidate{{0, 30, v(1)}, {1, 20, v(1)}, {2, 25, v(1)}}, 1},
		"then the earliest":       {[]Candidate{{2, 20, v(1)}, {1, 20, v(1)}}, 1},
		"nothing changed is last": {[]Candidate{{0, 0, v(0)}, {1, 20, v(4)}}, 1},
		"nobody changed anything": {[]Candidate{{0, 0, v(0)}, {1, 0, v(0)}}, 0},
		"without visible tests":   {[]Candidate{{0, 30, &Visible{}}, {1, 20, nil}}, 1},
	} {
		if got := Select(c.list); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestHiddenTestsDoNotSelect: whatever the hidden tests say of the attempts (grade, score, share of tests passed,
// report), the same ones are chosen.
func TestHiddenTestsDoNotSelect(t *testing.T) {
	tasks := tasksOf(3)
	rapid.Check(t, func(t *rapid.T) {
		var h History
		h.Start = startOf(tasks, 4)
		h.Start.Identity.Select = SelectVisible
		for _, task := range tasks {
			for a := range 4 {
				r := recordOf(task.ID, a, false)
				r.PatchBytes = rapid.IntRange(0, 3).Draw(t, "patch")
				r.Visible = &Visible{Failing: rapid.IntRange(0, 2).Draw(t, "failing"), Total: 2}
				h.Records = append(h.Records, r)
			}
		}
		chosen := func() (out []int) {
			r, err := Compute(tasks, h, Prices{})
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range r.Rows {
				out = append(out, *row.Selected)
			}
			return out
		}
		before := chosen()
		for i := range h.Records {
			r := &h.Records[i]
			r.Resolved = rapid.Bool().Draw(t, "resolved")
			r.Score = rapid.Float64Range(0, 1).Draw(t, "score")
			rate := rapid.Float64Range(0, 1).Draw(t, "rate")
			r.PassRate, r.Outcome = &rate, rapid.SampledFrom([]string{"resolved", "unresolved", "tests_timed_out"}).Draw(t, "outcome")
			r.Report.Resolved = r.Resolved
		}
		if after := chosen(); !reflect.DeepEqual(after, before) {
			t.Fatalf("chosen %v, with other grades %v", before, after)
		}
	})
}

// TestVisibleTaskHidesTheGrading: two tasks that differ in nothing but what the agent cannot see are tested alike.
func TestVisibleTaskHidesTheGrading(t *testing.T) {
	task := func(secret string) *milepost.Task {
		return &milepost.Task{ID: "t", Image: "i", Workdir: "/testbed", BaseCommit: "c", PassToPass: []string{"q", "p"}, FailToPass: []string{secret},
			Tests: []string{"p", "q", secret}, ReferencePatch: secret, RelevantFiles: []string{secret}, Statement: "fix",
			Test: milepost.TestCommand{Argv: []string{"pytest"}, Hidden: map[string]string{"h": secret}},
			Grading: &milepost.Grading{Rule: milepost.GradeStates, TestPatch: secret, Commands: []string{"pytest t.py"}, TestFiles: []string{"t.py"},
				Expected: map[string]string{"h": secret}, Files: map[string]string{"h": secret}, Strip: []string{secret}, Hidden: []string{secret}, Folder: secret, Output: secret}}
	}
	a, b := VisibleTask(task("one")), VisibleTask(task("two"))
	if a == nil || !reflect.DeepEqual(a, b) {
		t.Errorf("visible tasks differ:\n%+v\n%+v", a, b)
	}
	if len(a.Tests) != 2 || a.Test.Hidden != nil || a.Grading.TestPatch != "" || a.Statement != "" {
		t.Errorf("visible task %+v", a)
	}
	blind := task("x")
	blind.Grading.Script = "run everything"
	none := task("x")
	none.PassToPass = nil
	if VisibleTask(blind) != nil || VisibleTask(none) != nil {
		t.Error("a script of hidden and visible tests, or a task without any, has visible tests")
	}
}

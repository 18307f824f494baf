package evaluate

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/predictions"
)

// historyOf has n attempts at each task; the first of them, so many as resolved says, are resolved.
func historyOf(tasks []*milepost.Task, n int, resolved ...int) History {
	h := History{Start: startOf(tasks, n), Sessions: 1}
	for i, t := range tasks {
		for a := range n {
			h.Records = append(h.Records, recordOf(t.ID, a, a < resolved[i]))
		}
	}
	return h
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestComputeByHand(t *testing.T) {
	tasks := tasksOf(3)
	tasks[2].Kind = milepost.RepoGeneration
	h := historyOf(tasks, 4, 0, 1, 4)
	h.Records = h.Records[:11] // the last attempt was lost
	h.Losses, h.Lost = []Loss{{ID: "t02/3", Kind: "verdict: late"}}, 3
	r, err := Compute(tasks, h, Prices{Input: 2, Output: 10, Cached: .5})
	must(t, err)
	// pass@1: (0 + 1/4 + 1)/3; pass@2: (0 + 1/2 + 1)/3; pass@4 without the third task: (0 + 1)/2.
	if !near(r.Rate, 1.25/3) || !near(r.PassAtK[1].Value, .5) || !near(r.PassAtK[3].Value, .5) || r.PassAtK[3].Tasks != 2 || r.PassAtK[2].Tasks != 3 {
		t.Errorf("pass@k %+v", r.PassAtK)
	}
	if len(r.ScoreAtK) != 3 || r.ScoreAtK[0].Tasks != 1 || r.ScoreAtK[0].Value != 1 || r.PassRate == nil || r.PassRate.Value != .5 {
		t.Errorf("score@k %+v, pass rate %+v", r.ScoreAtK, r.PassRate)
	}
	if r.Graded != 11 || r.Infra != 1 || r.Open != 0 || r.Retried != 2 || r.LostBy["verdict: late"] != 1 || len(r.Tasks["t02"]) != 3 {
		t.Errorf("graded %d, lost %d, open %d, retried %d, %v", r.Graded, r.Infra, r.Open, r.Retried, r.LostBy)
	}
	// One attempt: 600 fresh tokens at 2, 400 cached at .5, 100 sampled at 10 a million.
	each := (600*2 + 400*.5 + 100*10) / 1e6
	if r.Cost == nil || !near(r.Cost.Each, each) || !near(r.Cost.Total, 11*each) || !near(r.Cost.Resolved, 11*each/4) || r.Spent.Prompt != 11000 || r.Spent.Turns != 33 {
		t.Errorf("cost %+v, spent %+v", r.Cost, r.Spent)
	}
	if len(r.Repos) != 1 || r.Repos[0].Repo != "micro" || !near(r.Repos[0].AtN, 2./3) || r.Repos[0].Lost != 1 {
		t.Errorf("repositories %+v", r.Repos)
	}
	var b strings.Builder
	must(t, WriteTable(&b, r, nil))
	for _, want := range []string{"pass@1  0.417", "pass@4  0.500", "score@3  1.000", "lost to verdict: late: 1", "cost: ", "11 attempts graded, 1 lost to infrastructure"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

// TestNoCostIsMadeUp: without prices, and where nobody told of tokens, there is none.
func TestNoCostIsMadeUp(t *testing.T) {
	tasks := tasksOf(1)
	h := historyOf(tasks, 1, 1)
	r, err := Compute(tasks, h, Prices{})
	must(t, err)
	h.Records[0].Usage = nil
	untold, err := Compute(tasks, h, Prices{Input: 1, Output: 1})
	must(t, err)
	for _, r := range []*Result{r, untold} {
		b, err := json.Marshal(r)
		must(t, err)
		var table strings.Builder
		must(t, WriteTable(&table, r, nil))
		if r.Cost != nil || bytes.Contains(b, []byte(`"cost"`)) || strings.Contains(table.String(), "cost") {
			t.Errorf("a cost is stated:\n%s\n%s", b, table.String())
		}
	}
	for p, want := range map[Prices]string{{Input: 1}: "prices.output", {Output: 1}: "prices.input", {Input: -1}: "negative"} {
		c := DefaultConfig()
		c.Prices = p
		if err := c.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", p, err, want)
		}
	}
}

func TestComputeRefusesForeignRecords(t *testing.T) {
	h := historyOf(tasksOf(2), 2, 1, 1)
	if _, err := Compute(tasksOf(1), h, Prices{}); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "attempt t01/0") {
		t.Errorf("%v", err)
	}
}

func TestCompare(t *testing.T) {
	tasks := tasksOf(5)
	a, err := Compute(tasks[:4], historyOf(tasks[:4], 2, 0, 1, 2, 1), Prices{})
	must(t, err)
	changed := tasksOf(5)
	changed[3].Statement = "another"
	b, err := Compute(changed, historyOf(changed, 2, 2, 1, 1, 2, 0), Prices{})
	must(t, err)
	c, err := Compare(a, b)
	must(t, err)
	// Common: t00 (0 -> 1), t01 (.5 -> .5), t02 (1 -> .5).
	if c.Common != 3 || c.OnlyA != 0 || c.OnlyB != 1 || len(c.Changed) != 1 || c.Changed[0] != "t03" || len(c.Better) != 1 || len(c.Worse) != 1 || c.Unchanged != 1 {
		t.Errorf("%+v", c)
	}
	d := c.PassAtK[0]
	if !near(d.A, .5) || !near(d.B, 2./3) || !near(d.Difference.Value, 1./6) || d.Difference.Low > d.Difference.Value || d.Difference.High < d.Difference.Value || len(c.PassAtK) != 2 {
		t.Errorf("pass@k %+v", c.PassAtK)
	}
	same, err := Compare(a, a)
	must(t, err)
	if i := same.PassAtK[0].Difference; i.Value != 0 || i.Low != 0 || i.High != 0 {
		t.Errorf("with itself: %+v", i)
	}
	var text strings.Builder
	must(t, WriteComparison(&text, c, nil))
	if !strings.Contains(text.String(), "pass@1  0.500  0.667  +0.167") || !strings.Contains(text.String(), "differs: dataset.fingerprint") {
		t.Errorf("%s", text.String())
	}
	for i := range b.Rows {
		b.Rows[i].ID += "x"
	}
	if _, err := Compare(a, b); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("nothing in common: %v", err)
	}
}

func TestReadResult(t *testing.T) {
	dir := t.TempDir()
	tasks := tasksOf(2)
	r, err := Compute(tasks, historyOf(tasks, 2, 1, 2), Prices{})
	must(t, err)
	b, err := json.Marshal(r)
	must(t, err)
	path := filepath.Join(dir, ResultFile)
	for text, want := range map[string]string{
		"{":  path + " is not a result",
		"{}": "identity.dataset.fingerprint",
		string(bytes.Replace(b, []byte(`"resolved":1,`), []byte(`"resolved":3,`), 1)): `by_task "t00": 3 resolved, 2 graded`,
	} {
		must(t, os.WriteFile(path, []byte(text), 0o644))
		if _, err := ReadResult(dir); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	must(t, os.WriteFile(path, b, 0o644))
	again, err := ReadResult(path)
	must(t, err)
	if c, err := Compare(r, again); err != nil || c.Common != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := ReadResult(filepath.Join(dir, "no")); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no result: %v", err)
	}
}

// TestExportIsReadBack: predictions and reports are read by the readers of their forms, Pro's form where the set is Pro's.
func TestExportIsReadBack(t *testing.T) {
	for _, pro := range []bool{false, true} {
		dir := t.TempDir()
		tasks := tasksOf(3)
		for i, task := range tasks {
			task.Origin = &milepost.Origin{Dataset: "swe-bench-lite", ID: "a__b-" + string(rune('1'+i)), Repo: "a/b"}
			if pro {
				task.Origin.Dataset = proDataset
			}
		}
		h := historyOf(tasks, 2, 1, 0, 2)
		h.Records = h.Records[:5] // t02/1 is missing
		h.Start.Identity.Select = SelectVisible
		r, err := Compute(tasks, h, Prices{})
		must(t, err)
		files, err := Export(dir, tasks, h, r, "org/model", func(rec Record) (string, error) { return "diff of " + rec.ID, nil })
		must(t, err)
		if len(files) != 3 || strings.HasSuffix(files[0].Predictions, ".json") != pro {
			t.Fatalf("files %+v", files)
		}
		f, err := os.Open(files[1].Predictions)
		must(t, err)
		list, err := predictions.Read(f, "p")
		must(t, err, f.Close())
		if len(list) != 2 || list[0].InstanceID != "a__b-1" || list[0].Model != "org/model" || *list[0].Patch != "diff of t00/1" {
			t.Errorf("predictions %+v", list)
		}
		f, err = os.Open(files[1].Report)
		must(t, err)
		report, err := predictions.ReadRun(f, "r")
		must(t, err, f.Close())
		if report.Total != 3 || report.Submitted != 2 || report.Resolved != 0 || len(report.IncompleteIDs) != 1 || report.IncompleteIDs[0] != "a__b-3" {
			t.Errorf("report %+v", report)
		}
	}
}

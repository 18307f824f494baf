package grade

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/grade/internal/referee"
	"github.com/milepost-rl/milepost/benchmarks/grade/logs"
)

const judgeCorpus = "testdata/judge.jsonl.zst"

var record = flag.Bool("record", false, "make the cases of the judge anew and record the referee's answers")

// TestRecordJudge asks the referee and writes the corpus of the judge, made of the logs of package logs.
func TestRecordJudge(t *testing.T) {
	if !*record {
		t.Skip("without -record the corpus stays as it is")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var rows []*referee.Row
	for i, r := range referee.Read(t, "logs/testdata/corpus.jsonl.zst") {
		if r.Answer.Error == "" || i%5 == 0 {
			rows = append(rows, judgeCase(rng, r, len(rows)))
		}
	}
	for i, a := range referee.Ask(t, rows) {
		rows[i].Answer = a
	}
	referee.Write(t, judgeCorpus, rows)
}

// judgeCase puts a log between markers, in one of the ways in which that can go wrong, and picks expected tests from
// what the log says and what it does not.
func judgeCase(rng *rand.Rand, from *referee.Row, n int) *referee.Row {
	row := *from
	row.ID, row.Answer = fmt.Sprintf("judge-%d-%s", n, from.ID), nil
	row.Tests = &referee.Tests{F2P: []string{}, P2P: []string{}, EvalType: "pass_and_fail"}
	if rng.IntN(5) == 0 {
		row.Tests.EvalType = "fail_only"
	}
	if rng.IntN(30) > 0 {
		patch := []string{"diff --git a/x b/x\n", "x"}[rng.IntN(2)]
		row.Tests.Patch = &patch
	}
	onlyPassed := rng.IntN(2) == 0
	for _, test := range from.Answer.Results {
		if passed := test[1] == "PASSED" || test[1] == "XFAIL"; onlyPassed && !passed && rng.IntN(20) > 0 {
			continue
		}
		name := test[0]
		if i := strings.IndexByte(name, '['); i >= 0 && rng.IntN(4) == 0 {
			name = name[:i+1+rng.IntN(len(name)-i)]
		}
		if rng.IntN(3) == 0 {
			row.Tests.F2P = append(row.Tests.F2P, name)
		} else {
			row.Tests.P2P = append(row.Tests.P2P, name)
		}
	}
	if rng.IntN(8) == 0 {
		row.Tests.F2P = append(row.Tests.F2P, "test_missing", "test_cut[")
	}
	log := wrap(rng, string(from.Log()))
	row.Text, row.Bytes = log, nil
	if log != strings.ToValidUTF8(log, "") {
		row.Text, row.Bytes = "", []byte(log)
	}
	return &row
}

func wrap(rng *rand.Rand, log string) string {
	start, end := "+ : '>>>>> Start Test Output'\n", "\n+ : '>>>>> End Test Output'\n"
	code := ""
	switch rng.IntN(4) {
	case 0:
		code = "+ echo '>>>>> Test Exit Code: 1'\n>>>>> Test Exit Code: 1\n"
	case 1:
		code = ">>>>> Test Exit Code: 0\n"
	}
	extra := []string{">>>>> Patch Apply Failed\n", ">>>>> Reset Failed\n", ">>>>> Tests Errored\n", ">>>>> Tests Timed Out\n",
		"Tests: 3 passed\n", "  12 passing (3ms)\n", "Executed 0 of 0\n", "Failed to launch chrome\n", "Killed\n", "ModuleNotFoundError: x\n",
		"collected 0 items\n", "Could not resolve host: x\n", start, end, ">>>>> Test Exit Code: -9\n"}[rng.IntN(15)]
	switch rng.IntN(14) {
	case 0:
		return log
	case 1:
		return start + log
	case 2:
		return log + end
	case 3:
		return end + log + start
	case 4:
		return "set-up\n" + start + end + log + code // late output
	case 5:
		return extra + start + log + end + code
	case 6:
		return start + log + extra + end + code
	case 7:
		return start + "no results\n" + end + code + extra
	}
	return "set-up\n" + start + log + end + code + "tear-down\n"
}

// TestRecordedJudgements holds the judge against the referee's recorded reports.
func TestRecordedJudgements(t *testing.T) {
	rows := referee.Read(t, judgeCorpus)
	compareJudgements(t, rows)
	if len(rows) < 500 {
		t.Errorf("only %d cases", len(rows))
	}
}

// TestRefereeJudgements asks the referee again.
func TestRefereeJudgements(t *testing.T) {
	referee.Python(t)
	rows := referee.Read(t, judgeCorpus)
	for i, a := range referee.Ask(t, rows) {
		if !sameJSON(t, a.Report, rows[i].Answer.Report) {
			t.Errorf("%s: the referee now says %s, recorded is %s", a.ID, a.Report, rows[i].Answer.Report)
		}
		rows[i].Answer = a
	}
	compareJudgements(t, rows)
}

// sameJSON compares two documents by value: the referee writes spaces, the corpus does not.
func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	if len(a) == 0 || len(b) == 0 { // no report
		return len(a) == len(b)
	}
	var x, y any
	if err := errors.Join(json.Unmarshal(a, &x), json.Unmarshal(b, &y)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

func compareJudgements(t *testing.T, rows []*referee.Row) {
	t.Helper()
	outcomes, wrong := map[Outcome]int{}, 0
	for _, row := range rows {
		task := &milepost.Task{ID: "t", FailToPass: row.Tests.F2P, PassToPass: row.Tests.P2P, Meta: map[string]string{"version": row.Version},
			Origin:  &milepost.Origin{ID: row.InstanceID},
			Grading: &milepost.Grading{Rule: milepost.GradeStates, LogParser: row.Parser}}
		if row.Tests.EvalType == "fail_only" {
			task.Grading.Rule = milepost.GradeFailures
		}
		v, err := Judge(task, &Evidence{Patch: row.Tests.Patch, Log: logs.Text(row.Log())})
		if err != nil {
			t.Fatal(err)
		}
		outcomes[v.Outcome]++
		if got, want := ours(t, v), referees(t, row.Answer); !reflect.DeepEqual(got, want) {
			if wrong++; wrong <= 5 {
				t.Errorf("%s:\n ours    %v\n referee %v", row.ID, got, want)
			}
		}
	}
	t.Logf("%d judgements, %d differ; outcomes %v", len(rows), wrong, outcomes)
	if wrong > 0 {
		t.Errorf("%d of %d judgements differ", wrong, len(rows))
	}
}

// ours is our report as the referee's JSON, with the resolution beside it; nil where the log cannot be read.
func ours(t *testing.T, v *Verdict) map[string]any {
	t.Helper()
	if v.Outcome == Unreadable {
		return nil
	}
	b, err := json.Marshal(v.Report())
	if err != nil {
		t.Fatal(err)
	}
	m := decodeMap(t, b)
	if v.Outcome.Ran() {
		m["status"] = string(v.Resolution)
	}
	return m
}

func referees(t *testing.T, a *referee.Answer) map[string]any {
	if a.Error != "" {
		return nil
	}
	return decodeMap(t, a.Report)
}

func decodeMap(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

package logs

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/benchmarks/grade/internal/referee"
)

const corpus = "testdata/corpus.jsonl.zst"

var (
	record = flag.String("record", "", "JSONL files of logs (comma separated) to record the referee's answers to, in place of the corpus")
	fresh  = flag.Int("fresh", 0, "fresh generated and damaged logs for each parser in the live test")
	seed   = flag.String("seed", "1", "seed of -fresh")
)

// others are the parsers of byName that the referee does not have.
var others = []string{"swesmith_python", "r2e_pytest", "rebench_pytest_v2", "parse_log_pytest_nebo", "parse_log_swift", "parse_log_csharp"}

// TestRecord asks the referee and writes the corpus: go test -run TestRecord -record real.jsonl,generated.jsonl
func TestRecord(t *testing.T) {
	if *record == "" {
		t.Skip("without -record the corpus stays as it is")
	}
	var rows []*referee.Row
	for _, f := range strings.Split(*record, ",") {
		rows = append(rows, referee.Read(t, f)...)
	}
	for i, a := range referee.Ask(t, rows) {
		rows[i].Answer = a
	}
	referee.Write(t, corpus, rows)
}

// TestRecordedAnswers holds every parser against the recorded answers of the referee.
func TestRecordedAnswers(t *testing.T) {
	rows := referee.Read(t, corpus)
	total, wrong := compare(t, rows)
	t.Logf("%d logs of %d parsers, %d differ", len(rows), len(total), wrong)
	table := map[string]int{}
	for _, r := range rows {
		table[r.Origin]++
	}
	t.Logf("by origin: %v", table)
	for _, name := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%-34s real %3d  generated %3d  mutated %3d", name, total[name]["real"], total[name]["generated"], total[name]["mutated"])
	}
	for name := range byName {
		if slices.Contains(others, name) { // see TestOtherDataSets
			continue
		}
		if n := total[name]; n["real"]+n["generated"]+n["mutated"] < 8 {
			t.Errorf("parser %s has only %v logs", name, n)
		}
	}
	if len(rows) < 500 || table["real"] < 250 {
		t.Errorf("the corpus has %d logs, %d of them real; 500 and 250 are wanted", len(rows), table["real"])
	}
}

// TestReferee asks the referee again: about the corpus and, with -fresh, about logs made now.
func TestReferee(t *testing.T) {
	referee.Python(t)
	rows := referee.Read(t, corpus)
	if *fresh > 0 {
		real := slices.DeleteFunc(slices.Clone(rows), func(r *referee.Row) bool { return r.Origin != "real" })
		f := t.TempDir() + "/real.jsonl"
		var text []byte
		for _, r := range real {
			line, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			text = append(append(text, line...), '\n')
		}
		if err := os.WriteFile(f, text, 0o644); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, referee.Decode(t, referee.Script(t, nil, "generate.py", *seed, fmt.Sprint(*fresh), f))...)
	}
	for i, a := range referee.Ask(t, rows) {
		if rows[i].Answer != nil && !sameAnswer(rows[i].Answer, a) {
			t.Errorf("%s: the referee now says %.300v, recorded is %.300v", a.ID, *a, *rows[i].Answer)
		}
		rows[i].Answer = a
	}
	_, wrong := compare(t, rows)
	t.Logf("%d logs, %d differ", len(rows), wrong)
}

// TestRegistry holds names and repositories against the referee's tables.
func TestRegistry(t *testing.T) {
	var tables struct {
		Parsers, Repos map[string]string
		Registry       []string
	}
	if err := json.Unmarshal(referee.Script(t, nil, "referee.py", "--maps"), &tables); err != nil {
		t.Fatal(err)
	}
	for _, name := range tables.Registry {
		if !Known(name) {
			t.Errorf("the referee has a parser %s", name)
		}
	}
	for repo, want := range tables.Repos {
		name, ok := ForRepo(repo)
		if got := tables.Parsers[name]; !ok || got != want {
			t.Errorf("%s is read by %q (%s), by the referee's %s", repo, name, got, want)
		}
	}
	if len(tables.Repos) < 60 || len(tables.Repos) != len(byRepo) {
		t.Errorf("the referee lists %d repositories, we %d", len(tables.Repos), len(byRepo))
	}
}

// compare counts logs by parser and origin, and those that we read otherwise than the answer says.
func compare(t *testing.T, rows []*referee.Row) (total map[string]map[string]int, wrong int) {
	t.Helper()
	total = map[string]map[string]int{}
	for _, r := range rows {
		if total[r.Parser] == nil {
			total[r.Parser] = map[string]int{}
		}
		total[r.Parser][r.Origin]++
		if got := answer(r); !sameAnswer(got, r.Answer) {
			if wrong++; wrong <= 10 {
				t.Errorf("%s:\n ours    %.1500q\n referee %.1500q\n%s", r.ID, *got, *r.Answer, firstDifference(got, r.Answer))
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d logs differ", wrong, len(rows))
	}
	return total, wrong
}

// answer is what we make of a row.
func answer(r *referee.Row) *referee.Answer {
	got, err := Parse(r.Parser, Text(r.Log()), Task{InstanceID: r.InstanceID, Version: r.Version})
	if err != nil {
		return &referee.Answer{ID: r.ID, Error: err.Error()}
	}
	a := &referee.Answer{ID: r.ID}
	for name, s := range got.All() {
		a.Results = append(a.Results, [2]string{name, string(s)})
	}
	return a
}

// sameAnswer compares results with their order; of errors only that there is one.
func sameAnswer(a, b *referee.Answer) bool {
	return (a.Error == "") == (b.Error == "") && slices.Equal(a.Results, b.Results)
}

func firstDifference(a, b *referee.Answer) string {
	for i := range max(len(a.Results), len(b.Results)) {
		switch {
		case i >= len(a.Results):
			return fmt.Sprintf("only the referee has %q", b.Results[i])
		case i >= len(b.Results):
			return fmt.Sprintf("only we have %q", a.Results[i])
		case a.Results[i] != b.Results[i]:
			return fmt.Sprintf("at %d: ours %q, referee's %q", i, a.Results[i], b.Results[i])
		}
	}
	return fmt.Sprintf("ours %q, referee's %q", a.Error, b.Error)
}

package evaluate

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// ticking is a clock that goes on by a second a look.
func ticking() func() time.Time {
	at := time.Unix(1000, 0)
	return func() time.Time { at = at.Add(time.Second); return at }
}

func open(t *testing.T, path string) *Journal {
	t.Helper()
	j, err := OpenJournal(path, ticking())
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestJournalTellsWhatEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	tasks := tasksOf(2)
	j := open(t, path)
	must(t, j.Start(startOf(tasks, 2)), j.Attempt(recordOf("t00", 0, true)), j.Loss(Loss{ID: "t01/0", Kind: "sandbox: unavailable"}),
		j.Loss(Loss{ID: "t01/1", Kind: "endpoint: unavailable"}), j.Attempt(recordOf("t01", 0, false)), j.Close())
	j = open(t, path)
	h := j.History()
	if len(h.Records) != 2 || h.Lost != 2 || len(h.Losses) != 1 || h.Losses[0].ID != "t01/1" || h.Sessions != 1 || h.Active != 5*time.Second {
		t.Errorf("history %+v", h)
	}
	must(t, j.Start(startOf(tasks, 3)), j.Close())
	if h, err := ReadJournal(path); err != nil || h.Sessions != 2 || h.Start.Attempts != 3 || h.Active != 6*time.Second {
		t.Errorf("two sessions: %+v, %v", h, err) // the time between them does not count
	}
}

// TestTornJournal: cut anywhere, a journal loses its last record at most, and goes on.
func TestTornJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j := open(t, path)
	must(t, j.Start(startOf(tasksOf(2), 2)), j.Attempt(recordOf("t00", 0, true)), j.Attempt(recordOf("t00", 1, true)))
	must(t, j.file.Close()) // kill -9: no end
	whole, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	last := len(lines[2])
	for cut := 1; cut <= last; cut += 37 {
		must(t, os.WriteFile(path, whole[:len(whole)-cut], 0o644))
		j := open(t, path)
		if h := j.History(); len(h.Records) != 1 || j.Torn() != int64(last-cut) {
			t.Fatalf("cut by %d: %d records, torn %d", cut, len(h.Records), j.Torn())
		}
		must(t, j.Start(startOf(tasksOf(2), 2)), j.Attempt(recordOf("t00", 1, true)), j.Close())
		if h, err := ReadJournal(path); err != nil || len(h.Records) != 2 {
			t.Fatalf("after going on: %+v, %v", h, err)
		}
	}
}

func TestJournalNamesWhatIsWrong(t *testing.T) {
	tasks := tasksOf(2)
	for name, c := range map[string]struct {
		write func(*Journal) error
		kind  milepost.Kind
		says  string
	}{
		"an attempt twice": {func(j *Journal) error { return j.Attempt(recordOf("t00", 0, false)) }, milepost.KindCorrupt, `line 3: field id: attempt "t00/0" is also in line 2`},
		"another's id": {func(j *Journal) error {
			r := recordOf("t00", 1, false)
			r.ID = "t01/1"
			return j.Attempt(r)
		}, milepost.KindCorrupt, `line 3: field id: "t01/1" is not "t00/1"`},
		"another type": {func(j *Journal) error { return j.append("note", 1) }, milepost.KindCorrupt, `line 3: type "note" is not one of`},
	} {
		path := filepath.Join(t.TempDir(), "journal.jsonl")
		j := open(t, path)
		must(t, j.Start(startOf(tasks, 2)), j.Attempt(recordOf("t00", 0, true)), c.write(j), j.Close())
		_, err := OpenJournal(path, time.Now)
		if milepost.KindOf(err) != c.kind || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %s and %q", name, err, c.kind, c.says)
		}
	}
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j := open(t, path)
	must(t, j.Start(startOf(tasks, 2)))
	if _, err := OpenJournal(path, time.Now); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("a second process: %v", err)
	}
	must(t, j.Close())
	other := startOf(tasksOf(3), 2)
	other.Identity.Sampling.Temperature = .5
	j = open(t, path)
	err := j.Start(other)
	if milepost.KindOf(err) != milepost.KindConflict || !strings.Contains(err.Error(), "dataset.fingerprint") || !strings.Contains(err.Error(), "sampling.temperature: 0, now 0.5") {
		t.Errorf("another task set: %v", err)
	}
	if err := j.Start(startOf(tasks, 1)); milepost.KindOf(err) != milepost.KindConflict || !strings.Contains(err.Error(), "2 attempts at each task, now 1") {
		t.Errorf("fewer attempts: %v", err)
	}
	must(t, j.Close())
	if h, err := ReadJournal(path); err != nil || h.Sessions != 1 {
		t.Errorf("a refused start left %+v, %v", h, err)
	}
	if _, err := ReadJournal(path + "x"); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no journal: %v", err)
	}
}

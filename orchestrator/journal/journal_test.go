package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

func at() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// filled returns the path and the content of a closed journal with n records.
func filled(t *testing.T, n int) (string, []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j, _, _, err := Open(path, at)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := j.Append("count", map[string]int{"i": i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, b
}

// TestTornAtEveryByte: whatever a crash leaves of the last line, the records before it are read, the rest is cut off and
// reported, and the next record has the next number.
func TestTornAtEveryByte(t *testing.T) {
	path, whole := filled(t, 3)
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for cut := last; cut < len(whole); cut++ {
		if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		if records, err := Read(path); err != nil || len(records) != 2 {
			t.Fatalf("cut at %d: read %d records: %v", cut, len(records), err)
		}
		j, records, torn, err := Open(path, at)
		if err != nil || len(records) != 2 || torn != int64(cut-last) {
			t.Fatalf("cut at %d: %d records, %d bytes torn (want %d): %v", cut, len(records), torn, cut-last, err)
		}
		rec, err := j.Append("count", map[string]int{"i": 2})
		if err != nil || rec.Seq != 3 {
			t.Fatalf("cut at %d: record %d: %v", cut, rec.Seq, err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, whole) {
			t.Fatalf("cut at %d: the journal differs from the whole one: %v", cut, err)
		}
	}
}

// TestDamageIsNamed: a byte of the data changed, or a record missing, before the last line is an error with file and line, and nothing is cut.
func TestDamageIsNamed(t *testing.T) {
	path, whole := filled(t, 3)
	second := bytes.IndexByte(whole, '\n') + 1
	third := second + bytes.IndexByte(whole[second:], '\n')
	digit := second + bytes.Index(whole[second:third], []byte(`{"i":1}`)) + len(`{"i":`)
	for _, damaged := range [][]byte{
		append(append(bytes.Clone(whole[:digit]), '7'), whole[digit+1:]...),
		append(bytes.Clone(whole[:second]), whole[third+1:]...), // a record is missing
	} {
		// One more record behind, so that the damage is not in the last line.
		damaged = append(damaged, whole[third+1:]...)
		if err := os.WriteFile(path, damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Read(path)
		if milepost.KindOf(err) != milepost.KindCorrupt || !strings.Contains(err.Error(), path+": line 2: ") {
			t.Errorf("read: %v", err)
		}
		if _, _, _, err := Open(path, at); milepost.KindOf(err) != milepost.KindCorrupt {
			t.Errorf("open: %v", err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, damaged) {
			t.Errorf("the damaged journal was changed: %v", err)
		}
	}
}

// TestOneHolder: a second Open and Hold are refused while one has the journal; Read is not.
func TestOneHolder(t *testing.T) {
	path, whole := filled(t, 1)
	for name, take := range map[string]func() (interface{ Close() error }, error){
		"open": func() (interface{ Close() error }, error) { j, _, _, err := Open(path, at); return j, err },
		"hold": func() (interface{ Close() error }, error) { return Hold(path) },
	} {
		first, err := take()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := Open(path, at); milepost.KindOf(err) != milepost.KindConflict {
			t.Errorf("open beside %s: %v", name, err)
		}
		if _, err := Hold(path); milepost.KindOf(err) != milepost.KindConflict {
			t.Errorf("hold beside %s: %v", name, err)
		}
		if records, err := Read(path); err != nil || len(records) != 1 {
			t.Errorf("read beside %s: %d records, %v", name, len(records), err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, whole) {
		t.Errorf("holding changed the journal: %v", err)
	}
	if _, err := Hold(filepath.Join(t.TempDir(), "journal.jsonl")); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("hold of no journal: %v", err)
	}
}

// TestConcurrentAppends: numbers have no gap and every record is on disk with what it was given.
func TestConcurrentAppends(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j, _, _, err := Open(path, at)
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 25
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				if _, err := j.Append("count", fmt.Sprintf("%d/%d", w, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	records, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, r := range records {
		var s string
		if err := json.Unmarshal(r.Data, &s); err != nil || r.Seq != uint64(i)+1 || !r.Time.Equal(at()) {
			t.Errorf("record %d: number %d at %s: %v", i, r.Seq, r.Time, err)
		}
		seen[s] = true
	}
	if len(seen) != writers*each {
		t.Errorf("%d different records, want %d", len(seen), writers*each)
	}
}

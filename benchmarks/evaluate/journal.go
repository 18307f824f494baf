package evaluate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// The types of a journal's records.
const (
	recordStart   = "start"   // a process begins: Start
	recordAttempt = "attempt" // an attempt ended with a grade: Record
	recordLoss    = "loss"    // infrastructure lost an attempt: Loss
	recordEnd     = "end"     // a process ended in order
)

// Start is what a process writes before its first attempt.
type Start struct {
	Identity Identity `json:"identity"`
	Attempts int      `json:"attempts"` // at each task
}

// History is what a journal tells.
type History struct {
	Start    Start // the last
	Records  []Record
	Losses   []Loss // of attempts that have no record, the last of each
	Lost     int    // losses in all, of attempts that were made good too
	Sessions int
	Active   time.Duration // sum over sessions, from start to last record
}

// Journal keeps what ended, in the file's order.
//
// Invariants: an attempt has one record, which is on disk before Attempt returns; losses do not count as records; one process
// has the file at a time. A torn last line, of a process killed while writing, is cut off on opening.
type Journal struct {
	file    *journal.Journal
	h       History
	torn    int64
	started bool
}

// OpenJournal opens or creates the journal of an evaluation. Errors: KindConflict where another process has it, KindCorrupt
// where a record is damaged, unknown or that of an attempt there is a record of already, by line.
func OpenJournal(path string, now func() time.Time) (*Journal, error) {
	file, records, torn, err := journal.Open(path, now)
	if err != nil {
		return nil, err
	}
	h, err := history(path, records)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Journal{file: file, h: h, torn: torn}, nil
}

// ReadJournal reads a journal that another process may have open.
func ReadJournal(path string) (History, error) {
	records, err := journal.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return History{}, milepost.E("evaluate: read journal", milepost.KindNotFound, "%s does not exist: no evaluation began there", path)
	}
	if err != nil {
		return History{}, err
	}
	return history(path, records)
}

// history folds records.
func history(path string, records []journal.Record) (History, error) {
	const op = "evaluate: read journal"
	var h History
	lines, losses := map[string]uint64{}, map[string]Loss{}
	var order []string
	var began time.Time
	for _, r := range records {
		var err error
		switch r.Type {
		case recordStart:
			h.Start = Start{}
			err = json.Unmarshal(r.Data, &h.Start)
			h.Sessions, began = h.Sessions+1, r.Time
		case recordAttempt:
			var rec Record
			if err = json.Unmarshal(r.Data, &rec); err == nil {
				err = check(rec, lines)
			}
			lines[rec.ID] = r.Seq
			h.Records = append(h.Records, rec)
			delete(losses, rec.ID)
		case recordLoss:
			var l Loss
			err = json.Unmarshal(r.Data, &l)
			if _, known := losses[l.ID]; !known {
				order = append(order, l.ID)
			}
			losses[l.ID] = l
			h.Lost++
		case recordEnd:
		default:
			err = fmt.Errorf("type %q is not one of %s, %s, %s, %s", r.Type, recordStart, recordAttempt, recordLoss, recordEnd)
		}
		if err == nil && h.Sessions == 0 {
			err = fmt.Errorf("%s comes before the first %s", r.Type, recordStart)
		}
		if err != nil {
			return History{}, milepost.E(op, milepost.KindCorrupt, "%s: line %d: %w", path, r.Seq, err)
		}
		h.Active += r.Time.Sub(began)
		began = r.Time
	}
	for _, id := range order {
		if l, still := losses[id]; still {
			h.Losses = append(h.Losses, l)
			delete(losses, id)
		}
	}
	return h, nil
}

// check refuses a record that is not of its id, and the second of an id.
func check(r Record, lines map[string]uint64) error {
	if r.Task == "" || r.Attempt < 0 || r.ID != AttemptID(r.Task, r.Attempt) {
		return fmt.Errorf("field id: %q is not %q, as task and attempt say", r.ID, AttemptID(r.Task, r.Attempt))
	}
	if was := lines[r.ID]; was > 0 {
		return fmt.Errorf("field id: attempt %q is also in line %d; an attempt ends once", r.ID, was)
	}
	return nil
}

// History is what the journal tells; the caller must not change it.
func (j *Journal) History() History { return j.h }

// Torn is how many bytes of a torn last line were cut off.
func (j *Journal) Torn() int64 { return j.torn }

// Start begins a session. A journal of other tasks, another model or other settings is KindConflict and names what
// differs; so is one of more attempts than now.
func (j *Journal) Start(s Start) error {
	const op = "evaluate: resume"
	if j.h.Sessions > 0 {
		if d := Differences(j.h.Start.Identity, s.Identity); len(d) > 0 {
			return milepost.E(op, milepost.KindConflict, "this is the folder of another evaluation: %s", sentence(d))
		}
		if s.Attempts < j.h.Start.Attempts {
			return milepost.E(op, milepost.KindConflict, "the folder has %d attempts at each task, now %d are asked for; allowed: as many, or more", j.h.Start.Attempts, s.Attempts)
		}
	}
	j.started = true
	return j.append(recordStart, s)
}

// Attempt keeps a finished attempt: when it returns nil the attempt is on disk and will not be made again.
func (j *Journal) Attempt(r Record) error {
	return j.append(recordAttempt, r)
}

// Loss notes that infrastructure lost an attempt.
func (j *Journal) Loss(l Loss) error { return j.append(recordLoss, l) }

// Close ends the session and releases the file.
func (j *Journal) Close() error {
	var err error
	if j.started {
		err = j.append(recordEnd, struct{}{})
	}
	return errors.Join(err, j.file.Close())
}

func (j *Journal) append(kind string, data any) error {
	_, err := j.file.Append(kind, data)
	return err
}

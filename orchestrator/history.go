package orchestrator

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// Result is result.json: by which rule a finished run ended.
type Result struct {
	Stop string `json:"stop"`
}

func (r *Runner) writeResult() error {
	return r.folder.writeJSON("result.json", Result{Stop: r.stopReason})
}

// Finished reports whether the run came to its end: it wrote its result.
func (f *Folder) Finished() (bool, error) {
	_, err := os.Stat(f.Path("result.json"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, milepost.Wrap("orchestrator: look for the result", milepost.KindUnavailable, err)
}

// History is what the journal tells of a run, finished or not.
type History struct {
	Stop     string    // why the run ended; "" where it has not
	Started  time.Time // first record
	Last     time.Time // last record
	Active   float64   // seconds that the run was up, over all epochs
	Epochs   uint64    // times that it was started
	Updates  int       // updates finalised, skipped ones included
	Skipped  []int     // updates whose batch had no signal
	Pushed   []int32   // versions in the order in which they were served
	Best     int32     // version with the best validation; without validation the last one pushed
	BestRate float64   // -1 without validation
	Evals    []Event   // the evaluated events in order; Update is set to the update before which they were made
}

// Served is the version that was pushed last; 0 before any push.
func (h History) Served() int32 {
	if len(h.Pushed) == 0 {
		return 0
	}
	return h.Pushed[len(h.Pushed)-1]
}

// History reads the journal without taking it.
func (f *Folder) History() (History, error) {
	records, err := journal.Read(f.Path("journal.jsonl"))
	if err != nil {
		return History{}, err
	}
	h := History{BestRate: -1}
	for i, rec := range records {
		var e Event
		if err := json.Unmarshal(rec.Data, &e); err != nil {
			return History{}, milepost.E("orchestrator: history", milepost.KindCorrupt, "journal record %d: %v", rec.Seq, err)
		}
		if i == 0 {
			h.Started = rec.Time
		}
		h.Last, h.Active = rec.Time, e.Active
		h.take(e)
	}
	if h.BestRate < 0 {
		h.Best = h.Served()
	}
	var r Result
	b, err := os.ReadFile(f.Path("result.json"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return h, nil
	case err != nil:
		return h, milepost.Wrap("orchestrator: history", milepost.KindUnavailable, err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return h, milepost.E("orchestrator: history", milepost.KindCorrupt, "%s: %v", f.Path("result.json"), err)
	}
	h.Stop = r.Stop
	return h, nil
}

// take adds one event by the machine's own rules of what is best.
func (h *History) take(e Event) {
	switch e.Type {
	case EventStarted:
		h.Epochs = e.Epoch
	case EventFinalised:
		h.Updates = e.Update
		if e.Rows == 0 {
			h.Skipped = append(h.Skipped, e.Update)
		}
	case EventPushed:
		h.Pushed = append(h.Pushed, e.Version)
	case EventEvaluated:
		e.Update = evaluatedUpdate(e.Eval, h.Updates)
		h.Evals = append(h.Evals, e)
		if strings.HasPrefix(e.Eval, validationPrefix) && e.Graded > 0 && e.Rate > h.BestRate {
			h.Best, h.BestRate = h.Served(), e.Rate
		}
	}
}

const validationPrefix = "validation-"

// validationName is the name of the validation after an update.
func validationName(update int) string { return fmt.Sprintf("%s%d", validationPrefix, update) }

// evaluatedUpdate is the update whose weights an evaluation was of. A validation's name has it: in mode async later ones may be
// begun meanwhile. The others are of the latest.
func evaluatedUpdate(name string, latest int) int {
	if n, err := strconv.Atoi(strings.TrimPrefix(name, validationPrefix)); err == nil {
		return n
	}
	return latest
}

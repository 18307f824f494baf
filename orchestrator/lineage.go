package orchestrator

import (
	"encoding/json"
	"os"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// lineage is how the surviving weights came to be: a directory to load and the batches that were trained after it.
type lineage struct {
	load   string
	replay []Event // finalised events, in order of their updates
	update int     // last update in the lineage; 0 = the initial model
}

func (r *Runner) lineage() (lineage, error) { return r.folder.lineage() }

// lineage reads the journal. Each trained update is in exactly one of the loaded checkpoint and the replayed batches.
func (f *Folder) lineage() (lineage, error) {
	header, err := f.Header()
	if err != nil {
		return lineage{}, err
	}
	out := lineage{load: header.Model}
	finalised, trained, err := f.updates()
	if err != nil {
		return lineage{}, err
	}
	for _, e := range trained {
		out.update = e.Update
		out.replay = append(out.replay, finalised[e.Update])
		if e.Checkpoint != "" {
			out.load, out.replay = f.Path(e.Checkpoint), nil
		}
	}
	return out, nil
}

// updates returns the journal's finalised events by update, and its trained ones in order.
func (f *Folder) updates() (finalised map[int]Event, trained []Event, err error) {
	records, err := journal.Read(f.Path("journal.jsonl"))
	if err != nil {
		return nil, nil, err
	}
	finalised = map[int]Event{}
	for _, rec := range records {
		var e Event
		if err := json.Unmarshal(rec.Data, &e); err != nil {
			return nil, nil, milepost.E("orchestrator: lineage", milepost.KindCorrupt, "journal record %d: %v", rec.Seq, err)
		}
		switch e.Type {
		case EventFinalised:
			finalised[e.Update] = e
		case EventTrained:
			trained = append(trained, e)
		}
	}
	return finalised, trained, nil
}

// Recipe says how to come to the weights before an update and make it again: load a directory, train on the earlier
// batches that it does not hold, then on the update's own.
type Recipe struct {
	Load   string  // checkpoint, or the model that the run began with
	Before []Batch // in order
	Batch  Batch   // the update's own
}

// Batch is one training batch of a run.
type Batch struct {
	Update int
	Path   string
	SHA256 string
}

// Recipe returns how to make an update again, from what the retention has left. Kinds: not_found (no such update, or
// what it needs was removed), corrupt.
func (f *Folder) Recipe(update int) (Recipe, error) {
	const op = "orchestrator: recipe"
	header, err := f.Header()
	if err != nil {
		return Recipe{}, err
	}
	finalised, trained, err := f.updates()
	if err != nil {
		return Recipe{}, err
	}
	own, ok := finalised[update]
	if !ok || own.Batch == "" {
		return Recipe{}, milepost.E(op, milepost.KindNotFound, "%s has no batch of update %d; allowed: an update whose batch had signal", f.Dir, update)
	}
	out := Recipe{Batch: f.batch(own)}
	for i := len(trained) - 1; i >= 0; i-- { // back to the newest checkpoint that is there
		e := trained[i]
		if e.Update >= update {
			continue
		}
		if e.Checkpoint != "" && exists(f.Path(e.Checkpoint)) {
			out.Load = f.Path(e.Checkpoint)
			break
		}
		out.Before = append([]Batch{f.batch(finalised[e.Update])}, out.Before...)
	}
	if out.Load == "" {
		out.Load = header.Model
	}
	for _, b := range append(out.Before, out.Batch) {
		if !exists(b.Path) {
			return Recipe{}, milepost.E(op, milepost.KindNotFound, "update %d needs %s, which is gone; schedule.retention says what is kept", update, b.Path)
		}
	}
	return out, nil
}

func (f *Folder) batch(finalised Event) Batch {
	return Batch{Update: finalised.Update, Path: f.Path(finalised.Batch), SHA256: finalised.SHA256}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func relative(base, path string) (string, error) { return filepath.Rel(base, path) }

// Epochs returns how often the run in dir was started; 0 where there is none.
func Epochs(dir string) (uint64, error) {
	records, err := journal.Read(filepath.Join(dir, "journal.jsonl"))
	if milepost.KindOf(err) == milepost.KindNotFound {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n := uint64(0)
	for _, r := range records {
		if r.Type == string(EventStarted) {
			n++
		}
	}
	return n, nil
}

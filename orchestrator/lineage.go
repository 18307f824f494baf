package orchestrator

import (
	"encoding/json"
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
	records, err := journal.Read(f.Path("journal.jsonl"))
	if err != nil {
		return lineage{}, err
	}
	batches := map[int]Event{}
	for _, rec := range records {
		var e Event
		if err := json.Unmarshal(rec.Data, &e); err != nil {
			return lineage{}, milepost.E("orchestrator: lineage", milepost.KindCorrupt, "journal record %d: %v", rec.Seq, err)
		}
		switch e.Type {
		case EventFinalised:
			batches[e.Update] = e
		case EventTrained:
			out.update = e.Update
			out.replay = append(out.replay, batches[e.Update])
			if e.Checkpoint != "" {
				out.load, out.replay = f.Path(e.Checkpoint), nil
			}
		}
	}
	return out, nil
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

package orchestrator

import (
	"regexp"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

var updateName = regexp.MustCompile(`^u\d{4,}$`)

// Recompute derives the credit of every finalised training batch anew from what the folder holds: tasks, baselines,
// episodes with their probes. It is called with the name of each batch, in order, its credit and the engine's warnings;
// A_out is that before any whitening over the update. An error of each ends it.
func (f *Folder) Recompute(engine *credit.Engine, each func(batch string, r credit.Result) error) error {
	const op = "orchestrator: recompute"
	tasks, err := f.Tasks()
	if err != nil {
		return err
	}
	batches, err := f.Batches()
	if err != nil {
		return err
	}
	for _, b := range batches {
		if !updateName.MatchString(b) {
			continue // an evaluation: its episodes get no credit
		}
		records, err := f.ReadEpisodes(b)
		if err != nil {
			return err
		}
		inputs := make([]credit.Input, len(records))
		for i, rec := range records {
			task := tasks[rec.Episode.Task]
			if task == nil {
				return milepost.E(op, milepost.KindCorrupt, "%s: episode %s is of task %s, which is not among the run's tasks", f.Path("episodes", batchFile(b)), rec.Episode.ID, rec.Episode.Task)
			}
			inputs[i] = rec.Input(task)
		}
		r, err := engine.Assign(inputs)
		if err != nil {
			return err
		}
		if err := each(b, r); err != nil {
			return err
		}
	}
	return nil
}

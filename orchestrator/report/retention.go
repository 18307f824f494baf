package report

import (
	"os"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator"
)

// RetentionSection says what of a run is kept and what lies on disk.
type RetentionSection struct {
	Policy *orchestrator.Retention `json:"policy"` // nil where the folder has no config.yaml
	Kept   []Kept                  `json:"kept"`
}

// Kept is one directory of the run folder.
type Kept struct {
	Dir   string `json:"dir"`
	Count int    `json:"count"` // entries
	Bytes int64  `json:"bytes"`
}

func loadRetention(f *orchestrator.Folder) (RetentionSection, error) {
	var out RetentionSection
	p, err := f.Retention()
	switch milepost.KindOf(err) {
	case "":
		out.Policy = &p
	case milepost.KindNotFound:
	default:
		return out, err
	}
	for _, dir := range []string{"checkpoints", "weights", "batches", "episodes", "blobs", "evals", "logs"} {
		entries, err := os.ReadDir(f.Path(dir))
		if err != nil && !os.IsNotExist(err) {
			return out, milepost.Wrap("report: retention", milepost.KindUnavailable, err)
		}
		n, err := orchestrator.DiskUse(f.Path(dir))
		if err != nil {
			return out, err
		}
		out.Kept = append(out.Kept, Kept{Dir: dir, Count: len(entries), Bytes: n})
	}
	return out, nil
}

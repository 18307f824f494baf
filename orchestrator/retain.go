package orchestrator

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"

	milepost "github.com/milepost-rl/milepost"
)

// Retention says how much of a run is kept. What a resume needs is always kept.
type Retention struct {
	Checkpoints int `yaml:"checkpoints"` // newest trainer checkpoints kept; at least 1
	Weights     int `yaml:"weights"`     // newest exported weights kept, beside the best; at least 1
	Batches     int `yaml:"batches"`     // newest batches kept, for replay; 0 = all
}

// DefaultRetention keeps two checkpoints, two versions of the weights beside the best, and every batch.
func DefaultRetention() Retention { return Retention{Checkpoints: 2, Weights: 2} }

// Validate names the first field out of range.
func (r Retention) Validate() error {
	if r.Checkpoints < 1 || r.Weights < 1 || r.Batches < 0 {
		return milepost.E("orchestrator: retention", milepost.KindInvalid,
			"retention.checkpoints and retention.weights must be 1 or more, retention.batches 0 or more (got %d, %d, %d)", r.Checkpoints, r.Weights, r.Batches)
	}
	return nil
}

// Collect removes what the retention does not keep and returns the paths removed; see [Folder.Surplus].
func (f *Folder) Collect(keep Retention, versions ...int32) ([]string, error) {
	gone := f.Surplus(keep, versions...)
	return gone, remove(gone)
}

func remove(paths []string) error {
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			return milepost.Wrap("orchestrator: collect", milepost.KindUnavailable, err)
		}
	}
	return nil
}

// Surplus lists what the retention does not keep. Versions are those of weights that stay whatever their age: the best
// one and the one being served. Batches newer than the newest checkpoint always stay, since a resume replays them.
func (f *Folder) Surplus(keep Retention, versions ...int32) []string {
	spare := map[string]bool{}
	for _, v := range versions {
		spare[filepath.Base(f.WeightsDir(v))] = true
	}
	checkpoints := f.list("checkpoints", "u[0-9]*")
	gone := beyond(checkpoints, keep.Checkpoints, nil)
	gone = append(gone, beyond(f.list("weights", "v[0-9]*"), keep.Weights, spare)...)
	if keep.Batches > 0 && len(checkpoints) > 0 {
		newest := filepath.Base(checkpoints[len(checkpoints)-1])
		var old []string
		for _, b := range f.list("batches", "u*.arrow") {
			if byNumber(filepath.Base(b), newest+".arrow") <= 0 {
				old = append(old, b)
			}
		}
		gone = append(gone, beyond(old, keep.Batches, nil)...)
	}
	for _, dir := range []string{"checkpoints", "weights"} {
		gone = append(gone, f.list(dir, "*.tmp")...)
	}
	gone = append(gone, f.list("batches", "*.tmp-*")...) // of a process that died in the middle of writing
	return gone
}

// list returns the matching paths in a directory of the run, sorted by the number in the name: the zero padding ends at
// four digits.
func (f *Folder) list(dir, pattern string) []string {
	paths, _ := filepath.Glob(f.Path(dir, pattern)) // the patterns are constant and well formed
	slices.SortFunc(paths, func(a, b string) int { return byNumber(filepath.Base(a), filepath.Base(b)) })
	var out []string
	for _, p := range paths {
		if pattern == "*.tmp" || filepath.Ext(p) != ".tmp" {
			out = append(out, p)
		}
	}
	return out
}

// byNumber compares names that differ in a number padded to at least four digits: the longer one is the later.
func byNumber(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// beyond returns the paths before the last n, without the spared names.
func beyond(paths []string, n int, spare map[string]bool) []string {
	var out []string
	for i, p := range paths {
		if i < len(paths)-n && !spare[filepath.Base(p)] {
			out = append(out, p)
		}
	}
	return out
}

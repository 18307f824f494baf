package orchestrator

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/goccy/go-yaml"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// Removed is one path that the retention does not keep.
type Removed struct {
	Path  string `json:"path"` // within the run folder
	Bytes int64  `json:"bytes"`
}

// GC applies the retention to a run that is not going: it holds folder and journal meanwhile, and a run that is going is
// an error of kind conflict. What the journal says a resume needs stays, whatever its age. The journal is not written, so
// a torn end stays for the run itself to find. With dry nothing is removed. Removed says what was, or would be, removed.
func (f *Folder) GC(keep Retention, dry bool) (removed []Removed, err error) {
	const op = "orchestrator: gc"
	if err := keep.Validate(); err != nil {
		return nil, err
	}
	path := f.Path("journal.jsonl")
	if _, err := os.Stat(path); err != nil {
		return nil, milepost.Wrap(op, milepost.KindNotFound, err)
	}
	if h, err := f.Header(); err != nil {
		return nil, err
	} else if h.Schema != SchemaVersion {
		return nil, milepost.E(op, milepost.KindInvalid, "%s has schema %d; this program reads %d", f.Dir, h.Schema, SchemaVersion)
	}
	release, err := Lock(f.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, milepost.Wrap(op, milepost.KindUnavailable, release())) }()
	j, err := journal.Hold(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	gone, err := f.surplusAtRest(keep)
	if err != nil {
		return nil, err
	}
	for _, p := range gone {
		n, err := DiskUse(p)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(f.Dir, p)
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindInternal, err)
		}
		removed = append(removed, Removed{Path: rel, Bytes: n})
	}
	if dry {
		return removed, nil
	}
	return removed, remove(gone)
}

// surplusAtRest is Surplus without what a resume needs: a crash may have left a checkpoint that the journal does not
// know, and then the newest on disk is not the one that is loaded.
func (f *Folder) surplusAtRest(keep Retention) ([]string, error) {
	h, err := f.History()
	if err != nil {
		return nil, err
	}
	l, err := f.lineage()
	if err != nil {
		return nil, err
	}
	needed := []string{l.load}
	for _, e := range l.replay {
		needed = append(needed, f.Path(e.Batch))
	}
	gone := f.Surplus(keep, h.Best, h.Served(), int32(l.update))
	return slices.DeleteFunc(gone, func(p string) bool { return slices.Contains(needed, p) }), nil
}

// Retention reads schedule.retention of the run's saved configuration. The saved configuration is the resolved one, so
// the section is always there.
func (f *Folder) Retention() (Retention, error) {
	const op = "orchestrator: read retention"
	path := f.Path("config.yaml")
	b, err := os.ReadFile(path)
	if err != nil {
		return Retention{}, milepost.Wrap(op, milepost.KindNotFound, err)
	}
	var c struct {
		Schedule struct {
			Retention *Retention `yaml:"retention"`
		} `yaml:"schedule"`
	}
	if err := yaml.Unmarshal(b, &c); err != nil {
		return Retention{}, milepost.E(op, milepost.KindInvalid, "%s: %v", path, err)
	}
	if c.Schedule.Retention == nil {
		return Retention{}, milepost.E(op, milepost.KindInvalid, "%s has no schedule.retention", path)
	}
	return *c.Schedule.Retention, c.Schedule.Retention.Validate()
}

// DiskUse sums the sizes of the files under path, in bytes; 0 where there is nothing.
func DiskUse(path string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil // removed meanwhile, by a run that is going
		}
		return err
	})
	return sum, milepost.Wrap("orchestrator: disk use", milepost.KindUnavailable, err)
}

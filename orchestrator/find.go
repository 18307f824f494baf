package orchestrator

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/klauspost/compress/zstd"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/credit"
)

// Located is an episode and the file of the run folder that holds it.
type Located struct {
	ID       string
	Batch    string // u0003, heldout-before; as [Folder.ReadEpisodes] takes it
	Finished bool   // the batch is finalised: probes, verdict and, for training, credit are known
}

// candidates is how many ids an error lists.
const candidates = 8

// Find returns the episode of the given id, or the only one whose id begins or ends with it. It reads only, and takes a
// run that is going as it is: a growing file is read up to its torn end. Errors: not_found, or invalid where several
// match; both list candidates.
func (f *Folder) Find(id string) (Located, error) {
	const op = "orchestrator: find episode"
	all, err := f.locate()
	if err != nil {
		return Located{}, err
	}
	if len(all) == 0 {
		return Located{}, milepost.E(op, milepost.KindNotFound, "%s has no episode yet", f.Dir)
	}
	ids := make([]string, len(all))
	for i, l := range all {
		ids[i] = l.ID
	}
	i, err := MatchID(ids, id)
	if err != nil {
		return Located{}, err
	}
	return all[i], nil
}

// MatchID returns the index of id among ids, or of the only one that begins or ends with it. Errors: not_found, or
// invalid where several match; both list candidates.
func MatchID(ids []string, id string) (int, error) {
	const op = "orchestrator: find episode"
	var matches []string
	at := -1
	for i, known := range ids {
		if known == id {
			return i, nil
		}
		if id != "" && (strings.HasPrefix(known, id) || strings.HasSuffix(known, id)) {
			matches, at = append(matches, known), i
		}
	}
	switch len(matches) {
	case 0:
		return 0, milepost.E(op, milepost.KindNotFound, "there is no episode %q; there are %s", id, listIDs(ids))
	case 1:
		return at, nil
	}
	return 0, milepost.E(op, milepost.KindInvalid, "%q begins or ends %d episode ids: %s", id, len(matches), listIDs(matches))
}

func listIDs(ids []string) string {
	shown := slices.Clone(ids[:min(len(ids), candidates)])
	if n := len(ids) - len(shown); n > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(shown, ", ")
}

// locate lists the episodes of every file, sorted by batch. Growing files are read first, so that an episode whose
// batch is finalised meanwhile is still found.
func (f *Folder) locate() ([]Located, error) {
	const op = "orchestrator: list episodes"
	var out []Located
	at := map[string]int{}
	for _, suffix := range []string{".jsonl.zst.part", ".jsonl.zst"} {
		names, err := filepath.Glob(f.Path("episodes", "*"+suffix))
		if err != nil {
			return nil, milepost.Wrap(op, milepost.KindInvalid, err)
		}
		for _, name := range names {
			finished := suffix == ".jsonl.zst"
			ids, err := readIDs(name)
			switch {
			case errors.Is(err, os.ErrNotExist):
				continue // finalised meanwhile
			case err != nil && finished:
				return nil, milepost.E(op, milepost.KindCorrupt, "%s: record %d: %v", name, len(ids)+1, err)
			}
			batch := strings.TrimSuffix(filepath.Base(name), suffix)
			for _, id := range ids {
				l := Located{ID: id, Batch: batch, Finished: finished}
				if i, known := at[id]; known {
					out[i] = l // the finalised batch counts
					continue
				}
				at[id] = len(out)
				out = append(out, l)
			}
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return byNumber(out[i].Batch, out[j].Batch) < 0 })
	return out, nil
}

// readIDs reads nothing of a file's episodes but their ids; those before a fault are returned with it.
func readIDs(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	z, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	var out []string
	for dec := json.NewDecoder(z); ; {
		var rec struct {
			Episode struct {
				ID string `json:"id"`
			} `json:"episode"`
		}
		if err := dec.Decode(&rec); err == io.EOF {
			return out, nil
		} else if err != nil {
			return out, err
		}
		out = append(out, rec.Episode.ID)
	}
}

// Rules reads what a run's saved configuration says of credit: the section credit, over the defaults, and the criterion
// of schedule.sampling, which older runs have as schedule.keep_group. Errors: not_found without config.yaml, invalid
// where a field is wrong.
func (f *Folder) Rules() (rules credit.Config, criterion string, err error) {
	const op = "orchestrator: read credit rules"
	path := f.Path("config.yaml")
	b, err := os.ReadFile(path)
	if err != nil {
		return credit.Config{}, "", milepost.Wrap(op, milepost.KindNotFound, err)
	}
	c := struct {
		Credit   credit.Config `yaml:"credit"`
		Schedule struct {
			KeepGroup string `yaml:"keep_group"`
			Sampling  struct {
				Criterion string `yaml:"criterion"`
			} `yaml:"sampling"`
		} `yaml:"schedule"`
	}{Credit: credit.Default()}
	if err := yaml.Unmarshal(b, &c); err != nil {
		return credit.Config{}, "", milepost.E(op, milepost.KindInvalid, "%s: %v", path, err)
	}
	if err := c.Credit.Validate(); err != nil {
		return credit.Config{}, "", milepost.E(op, milepost.KindInvalid, "%s: %w", path, err)
	}
	return c.Credit, cmp.Or(c.Schedule.Sampling.Criterion, c.Schedule.KeepGroup, DefaultConfig().Sampling.Criterion), nil
}

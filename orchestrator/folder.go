package orchestrator

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/klauspost/compress/zstd"

	milepost "github.com/milepost-rl/milepost"
)

// SchemaVersion is the version of the run folder's layout.
const SchemaVersion = 1

// Folder is a run on disk:
//
//	run.json         schema version, seed, name
//	config.yaml      the resolved configuration
//	tasks.jsonl.zst  the tasks of every split, as the run was given them
//	journal.jsonl    the only truth (package journal)
//	episodes/        one zstd JSONL file a batch: u0001.jsonl.zst, heldout-before.jsonl.zst; *.part while it grows.
//	                 Mode async: untaken.jsonl.zst.part is what no update has taken yet, without .part what was left over
//	blobs/           file contents that episodes refer to, by git blob id
//	batches/         u0001.arrow, what the trainer was given; u0001.values for as long as values are asked for
//	checkpoints/     trainer state by update: u0001
//	weights/         exported weights by version: v0001
//	evals/           one JSON file an evaluation
//	metrics.jsonl    what was measured: a line for each batch, update step, push and evaluation
//	tensorboard/     the same as event files of TensorBoard
//	trackers/        how far experiment trackers have come, and what they keep here; absent without one
//	logs/            of servers, trainer and workers
//	result.json      how the run ended; absent while it goes on
//	report.html
//	lock             held by the process that runs it (Lock)
type Folder struct{ Dir string }

// Header is run.json.
type Header struct {
	Schema int    `json:"schema"`
	Name   string `json:"name"`
	Seed   uint64 `json:"seed"`
	Model  string `json:"model"` // the model directory that version 0 was served from
	ID     string `json:"id"`    // tells the run from all others, of the same name too; made with the folder
}

// OpenFolder creates the folder's directories where they are missing and checks the schema version of an existing one.
func OpenFolder(dir string, h Header) (*Folder, error) {
	const op = "orchestrator: open run folder"
	for _, d := range []string{"episodes", "blobs", "batches", "checkpoints", "weights", "evals", "logs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
	}
	f := &Folder{Dir: dir}
	old, err := f.Header()
	if errors.Is(err, os.ErrNotExist) {
		h.Schema, h.ID = SchemaVersion, rand.Text()[:10]
		return f, f.writeJSON("run.json", h)
	}
	if err != nil {
		return nil, err
	}
	if old.Schema != SchemaVersion {
		return nil, milepost.E(op, milepost.KindInvalid, "%s has schema %d; this program reads %d", dir, old.Schema, SchemaVersion)
	}
	if old.Seed != h.Seed || old.Model != h.Model {
		return nil, milepost.E(op, milepost.KindConflict, "%s belongs to a run with seed %d and model %s, not %d and %s; give another run.dir", dir, old.Seed, old.Model, h.Seed, h.Model)
	}
	return f, nil
}

// Header reads run.json.
func (f *Folder) Header() (Header, error) {
	var h Header
	b, err := os.ReadFile(f.Path("run.json"))
	if err != nil {
		return h, milepost.Wrap("orchestrator: read run.json", milepost.KindNotFound, err)
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return h, milepost.E("orchestrator: read run.json", milepost.KindCorrupt, "%s: %v", f.Path("run.json"), err)
	}
	return h, nil
}

// Path joins elements to the run folder.
func (f *Folder) Path(elem ...string) string {
	return filepath.Join(append([]string{f.Dir}, elem...)...)
}

// Checkpoint is the directory of the trainer's state after an update.
func (f *Folder) Checkpoint(update int) string {
	return f.Path("checkpoints", fmt.Sprintf("u%04d", update))
}

// WeightsDir is the directory of the exported weights of a version.
func (f *Folder) WeightsDir(version int32) string {
	return f.Path("weights", fmt.Sprintf("v%04d", version))
}

// SaveConfig keeps the resolved configuration.
func (f *Folder) SaveConfig(text []byte) error { return f.writeFile("config.yaml", text) }

// writeJSON replaces a file as a whole.
func (f *Folder) writeJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return milepost.Wrap("orchestrator: write "+name, milepost.KindInvalid, err)
	}
	return f.writeFile(name, append(b, '\n'))
}

func (f *Folder) writeFile(name string, data []byte) error {
	return milepost.Wrap("orchestrator: write "+name, milepost.KindUnavailable, WriteWhole(f.Path(name), data))
}

// EpisodeRecord is one line of an episode file.
type EpisodeRecord struct {
	Episode *milepost.Episode       `json:"episode"`
	Purpose Purpose                 `json:"purpose"`
	Credit  *milepost.EpisodeCredit `json:"credit,omitempty"` // set once the batch is finalised, training episodes only
	Dropped string                  `json:"dropped,omitempty"`

	// Baseline is the probe that Credit was computed against; set with Credit. With Tasks it makes credit reproducible
	// from the folder alone.
	Baseline *milepost.Probe `json:"baseline,omitempty"`

	// Values are a value head's, one for each trained token in order (credit.TrainedSteps), where Credit was computed by
	// an estimator that needs them.
	Values []float32 `json:"values,omitempty"`
}

func batchFile(batch string) string { return strings.ReplaceAll(batch, "/", "_") + ".jsonl.zst" }

// WriteEpisodes stores a finished batch as a whole and removes the growing file.
func (f *Folder) WriteEpisodes(batch string, records []EpisodeRecord) error {
	var buf bytes.Buffer
	if err := encodeRecords(&buf, records...); err != nil {
		return err
	}
	if err := f.writeFile(filepath.Join("episodes", batchFile(batch)), buf.Bytes()); err != nil {
		return err
	}
	return f.removePart(batch)
}

// removePart removes the growing file of a batch, if there is one.
func (f *Folder) removePart(batch string) error {
	err := os.Remove(f.Path("episodes", batchFile(batch)+".part"))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return milepost.Wrap("orchestrator: write episodes", milepost.KindUnavailable, err)
}

// ReadEpisodes reads a finished batch.
func (f *Folder) ReadEpisodes(batch string) ([]EpisodeRecord, error) {
	const op = "orchestrator: read episodes"
	path := f.Path("episodes", batchFile(batch))
	file, err := os.Open(path)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindNotFound, err)
	}
	defer file.Close()
	records, err := decodeRecords(file)
	if err != nil {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s: record %d: %v", path, len(records)+1, err)
	}
	return records, nil
}

// Batches lists the finished batches by name, sorted.
func (f *Folder) Batches() ([]string, error) {
	names, err := filepath.Glob(f.Path("episodes", "*.jsonl.zst"))
	if err != nil {
		return nil, milepost.Wrap("orchestrator: list episodes", milepost.KindInvalid, err)
	}
	for i, n := range names {
		names[i] = strings.TrimSuffix(filepath.Base(n), ".jsonl.zst")
	}
	sort.Strings(names)
	return names, nil
}

// encodeRecords writes one zstd frame with a JSON line for each record.
func encodeRecords(w io.Writer, records ...EpisodeRecord) error {
	const op = "orchestrator: encode episodes"
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return milepost.Wrap(op, milepost.KindInternal, err)
	}
	enc := json.NewEncoder(z)
	enc.SetEscapeHTML(false)
	for _, r := range records {
		if err := enc.Encode(r); err != nil {
			z.Close()
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
	}
	return milepost.Wrap(op, milepost.KindUnavailable, z.Close())
}

// decodeRecords reads frames until the end; the records before a fault are returned with it.
func decodeRecords(r io.Reader) ([]EpisodeRecord, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	dec := json.NewDecoder(z)
	var out []EpisodeRecord
	for {
		var rec EpisodeRecord
		if err := dec.Decode(&rec); err == io.EOF {
			return out, nil
		} else if err != nil {
			return out, err
		}
		if rec.Episode == nil {
			return out, fmt.Errorf("no episode in the record")
		}
		out = append(out, rec)
	}
}

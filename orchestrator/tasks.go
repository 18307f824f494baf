package orchestrator

import (
	"bytes"
	"encoding/json"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	milepost "github.com/milepost-rl/milepost"
)

const tasksFile = "tasks.jsonl.zst"

// writeTasks stores the run's tasks, so that the folder explains itself: report and credit need no task folder.
func (f *Folder) writeTasks(tasks []*milepost.Task) error {
	const op = "orchestrator: write tasks"
	var buf bytes.Buffer
	z, err := zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return milepost.Wrap(op, milepost.KindInternal, err)
	}
	enc := json.NewEncoder(z)
	for _, t := range tasks {
		if err := enc.Encode(t); err != nil {
			return milepost.Wrap(op, milepost.KindInvalid, err)
		}
	}
	if err := z.Close(); err != nil {
		return milepost.Wrap(op, milepost.KindInternal, err)
	}
	return f.writeFile(tasksFile, buf.Bytes())
}

// Tasks reads the run's tasks by id.
func (f *Folder) Tasks() (map[string]*milepost.Task, error) {
	const op = "orchestrator: read tasks"
	file, err := os.Open(f.Path(tasksFile))
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindNotFound, err)
	}
	defer file.Close()
	z, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, milepost.E(op, milepost.KindCorrupt, "%s: %v", file.Name(), err)
	}
	defer z.Close()
	out := map[string]*milepost.Task{}
	for dec := json.NewDecoder(z); ; {
		t := &milepost.Task{}
		if err := dec.Decode(t); err == io.EOF {
			return out, nil
		} else if err != nil {
			return nil, milepost.E(op, milepost.KindCorrupt, "%s: task %d: %v", file.Name(), len(out)+1, err)
		}
		out[t.ID] = t
	}
}

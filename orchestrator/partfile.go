package orchestrator

import (
	"bytes"
	"errors"
	"os"
	"sync"

	milepost "github.com/milepost-rl/milepost"
)

// partFile is the growing file of a batch: one synced zstd frame an episode as it ended, and one a group once it was
// judged, with the same episodes and their probes and credit; of an episode the last record holds.
//
// Invariant: what a journal event tells of is whole in the file, because add returns after the sync and the
// event is journaled after add. What a crash left behind the last whole frame is cut off on opening.
type partFile struct {
	mu sync.Mutex
	f  *os.File
}

// openPart opens the growing file of a batch and returns the episodes that it holds.
func openPart(folder *Folder, batch string) (*partFile, []EpisodeRecord, error) {
	const op = "orchestrator: open episodes"
	path := folder.Path("episodes", batchFile(batch)+".part")
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	records, torn := decodeRecords(bytes.NewReader(old))
	if torn != nil {
		if err := folder.writePart(batch, records); err != nil {
			return nil, nil, err
		}
	}
	p, err := reopenPart(folder, batch)
	return p, records, err
}

// reopenPart opens the growing file of a batch behind its last record.
func reopenPart(folder *Folder, batch string) (*partFile, error) {
	f, err := os.OpenFile(folder.Path("episodes", batchFile(batch)+".part"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, milepost.Wrap("orchestrator: open episodes", milepost.KindUnavailable, err)
	}
	return &partFile{f: f}, nil
}

// writePart replaces the growing file of a batch, which must not be open, by one of the given records.
func (f *Folder) writePart(batch string, records []EpisodeRecord) error {
	var whole bytes.Buffer
	for _, r := range records {
		if err := encodeRecords(&whole, r); err != nil {
			return err
		}
	}
	return f.writeFile("episodes/"+batchFile(batch)+".part", whole.Bytes())
}

// add stores an episode, or those of a judged group; after an error nothing of them is in the file.
func (p *partFile) add(records ...EpisodeRecord) error {
	const op = "orchestrator: store episode"
	var buf bytes.Buffer
	if err := encodeRecords(&buf, records...); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	info, err := p.f.Stat()
	if err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if _, err = p.f.Write(buf.Bytes()); err == nil {
		err = p.f.Sync()
	}
	if err != nil {
		err = errors.Join(err, p.f.Truncate(info.Size()))
	}
	return milepost.Wrap(op, milepost.KindUnavailable, err)
}

func (p *partFile) close() error { return p.f.Close() }

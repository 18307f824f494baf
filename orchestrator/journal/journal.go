// Package journal is the only truth of a run: an append-only file of JSON lines, each with its number and checksum,
// synced to disk before Append returns.
//
// Invariants: records are numbered from 1 without gaps; a record that Append returned for is on disk; one process
// holds the file at a time (an advisory lock); a torn last line, left by a crash inside a write, is cut off on opening
// and reported, while damage anywhere else is an error of kind corrupt.
package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	milepost "github.com/milepost-rl/milepost"
)

// Record is one line of the journal.
type Record struct {
	Seq  uint64          `json:"seq"`
	Time time.Time       `json:"time"`
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
	CRC  uint32          `json:"crc"` // CRC-32C of seq, type and data
}

var table = crc32.MakeTable(crc32.Castagnoli)

func (r Record) sum() uint32 {
	h := crc32.New(table)
	fmt.Fprintf(h, "%d %s ", r.Seq, r.Type)
	h.Write(r.Data)
	return h.Sum32()
}

// Journal is an open journal; safe for concurrent use.
type Journal struct {
	mu   sync.Mutex
	f    *os.File
	seq  uint64
	size int64
	now  func() time.Time
	bad  error // a failed write that could not be undone: nothing more is accepted
}

// Open opens or creates the journal at path, verifies it and returns its records. Torn reports the bytes of a torn
// last line that were cut off. A journal that another process holds is an error of kind conflict.
func Open(path string, now func() time.Time) (j *Journal, records []Record, torn int64, err error) {
	const op = "journal: open"
	f, err := hold(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, nil, 0, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	records, good, err := read(f, path)
	if err != nil {
		return nil, nil, 0, err
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, nil, 0, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if end > good {
		if err := f.Truncate(good); err != nil {
			return nil, nil, 0, milepost.Wrap(op, milepost.KindUnavailable, err)
		}
	}
	if _, err := f.Seek(good, io.SeekStart); err != nil {
		return nil, nil, 0, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return &Journal{f: f, seq: uint64(len(records)), size: good, now: now}, records, end - good, nil
}

// Hold keeps everybody from opening the journal at path until it is closed, and neither reads nor changes it. A journal
// that another process holds is an error of kind conflict.
func Hold(path string) (io.Closer, error) { return hold(path, os.O_RDWR) }

func hold(path string, flag int) (*os.File, error) {
	const op = "journal: open"
	f, err := os.OpenFile(path, flag, 0o644)
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, milepost.E(op, milepost.KindConflict, "%s is in use by another process; is this run already going?", path)
	}
	return f, nil
}

// Read returns the records of the journal at path without taking it; a torn last line is left out.
func Read(path string) ([]Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, milepost.Wrap("journal: read", milepost.KindNotFound, err)
	}
	defer f.Close()
	records, _, err := read(f, path)
	return records, err
}

// read returns the intact records and the offset behind the last of them.
func read(f io.Reader, path string) (records []Record, good int64, err error) {
	r := bufio.NewReaderSize(f, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return records, good, nil // a line without its end is torn
		}
		if err != nil {
			return nil, 0, milepost.Wrap("journal: read", milepost.KindUnavailable, err)
		}
		var rec Record
		bad := json.Unmarshal(bytes.TrimSpace(line), &rec)
		if bad == nil && rec.CRC != rec.sum() {
			bad = fmt.Errorf("checksum differs")
		}
		if bad == nil && rec.Seq != uint64(len(records))+1 {
			bad = fmt.Errorf("record number %d where %d is due", rec.Seq, len(records)+1)
		}
		if bad != nil {
			if _, peek := r.Peek(1); peek == io.EOF {
				return records, good, nil
			}
			return nil, 0, milepost.E("journal: read", milepost.KindCorrupt, "%s: line %d: %v", path, len(records)+1, bad)
		}
		records = append(records, rec)
		good += int64(len(line))
	}
}

// Append writes one record and syncs it. After an error the record is not in the journal; where even that cannot be
// guaranteed, every later Append fails too.
func (j *Journal) Append(typ string, data any) (Record, error) {
	const op = "journal: append"
	raw, err := json.Marshal(data)
	if err != nil {
		return Record{}, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.bad != nil {
		return Record{}, milepost.Wrap(op, milepost.KindUnavailable, j.bad)
	}
	rec := Record{Seq: j.seq + 1, Time: j.now().UTC(), Type: typ, Data: raw}
	rec.CRC = rec.sum()
	line, err := json.Marshal(rec)
	if err != nil {
		return Record{}, milepost.Wrap(op, milepost.KindInvalid, err)
	}
	line = append(line, '\n')
	_, err = j.f.Write(line)
	if err == nil {
		err = unix.Fdatasync(int(j.f.Fd()))
	}
	if err != nil {
		j.undo()
		return Record{}, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	j.seq, j.size = rec.Seq, j.size+int64(len(line))
	return rec, nil
}

// undo takes a half-written line back.
func (j *Journal) undo() {
	err := j.f.Truncate(j.size)
	if err == nil {
		_, err = j.f.Seek(j.size, io.SeekStart)
	}
	j.bad = err
}

// Close releases the journal.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return milepost.Wrap("journal: close", milepost.KindUnavailable, j.f.Close())
}

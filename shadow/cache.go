package shadow

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/milepost-rl/milepost"
)

// cacheEntry is one trusted result. Only trusted results are kept: a time-out or a failure of infrastructure may end
// differently next time.
type cacheEntry struct {
	V      int                 `json:"v"`
	Key    string              `json:"key"`
	Tree   string              `json:"tree"`
	Report milepost.TestReport `json:"report"`
	Worker string              `json:"worker,omitempty"`
	Ran    time.Duration       `json:"ran"`
	Sum    string              `json:"sum"` // over key, tree and report: what a damaged disk changed is not believed
}

func (e cacheEntry) sum() string {
	report, err := e.Report.MarshalText()
	if err != nil {
		return "" // not a report; matches no line
	}
	return hashHex([]byte(e.Key + "/" + e.Tree + "/" + string(report)))[:16]
}

// cacheWriter is what the cache needs of its file.
type cacheWriter interface {
	io.Writer
	Truncate(size int64) error
	Close() error
}

// cacheFile is the append-only file behind the result cache: one JSON object a line.
//
// Invariants: one goroutine at a time (the prober's lock). size is the length of the whole lines; a write that fails is
// undone by truncating to size, its entry stays in unsaved and is tried again with the next one, so a full disk costs
// nothing but the persistence of the entries, and is reported each time. Lines are not fsynced: what a power failure
// takes is probed again.
type cacheFile struct {
	w       cacheWriter // nil: in memory only
	size    int64
	torn    bool // a failed write could not be undone yet
	unsaved []cacheEntry
}

// openCache reads the file at path, which may be missing, and opens it for appending. A torn last line (the process died
// while writing) is cut off; bad counts whole lines that do not parse, which are passed over. Errors: KindUnavailable.
func openCache(path string) (f *cacheFile, entries []cacheEntry, bad int, err error) {
	const op = "shadow: open cache"
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, 0, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	entries, size, bad, err := readCache(file)
	if err == nil {
		err = file.Truncate(size)
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, 0, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return &cacheFile{w: file, size: size}, entries, bad, nil
}

// readCache returns the entries and the length of the whole lines.
func readCache(r io.Reader) (entries []cacheEntry, size int64, bad int, err error) {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return entries, size, bad, nil // what is left in line has no end: torn
		}
		if err != nil {
			return nil, 0, 0, err
		}
		size += int64(len(line))
		var e cacheEntry
		if json.Unmarshal(line, &e) != nil || e.V != wireVersion || e.Key == "" || e.Tree == "" || len(e.Report) == 0 || e.Sum != e.sum() {
			bad++
			continue
		}
		entries = append(entries, e)
	}
}

// add appends e and what earlier failures left. Errors: KindUnavailable; nothing is lost from memory then.
func (f *cacheFile) add(e cacheEntry) error {
	if f.w == nil {
		return nil
	}
	e.Sum = e.sum()
	f.unsaved = append(f.unsaved, e)
	return f.flush()
}

func (f *cacheFile) flush() error {
	const op = "shadow: write cache"
	if f.w == nil || len(f.unsaved) == 0 {
		return nil
	}
	if f.torn {
		if err := f.w.Truncate(f.size); err != nil {
			return milepost.E(op, milepost.KindUnavailable, "cannot cut off a half-written line: %w", err)
		}
		f.torn = false
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf) // ends every value with a newline
	for _, e := range f.unsaved {
		if err := enc.Encode(e); err != nil {
			return milepost.Wrap(op, milepost.KindInternal, err)
		}
	}
	n, err := f.w.Write(buf.Bytes())
	if err != nil {
		f.torn = n > 0 && f.w.Truncate(f.size) != nil
		return milepost.E(op, milepost.KindUnavailable, "%d results are kept in memory only: %w", len(f.unsaved), err)
	}
	f.size += int64(n)
	f.unsaved = nil
	return nil
}

func (f *cacheFile) close() error {
	if f.w == nil {
		return nil
	}
	return errors.Join(f.flush(), f.w.Close())
}

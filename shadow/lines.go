package shadow

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// lineWriter is what a lineFile needs of its file.
type lineWriter interface {
	io.Writer
	Truncate(size int64) error
	Close() error
}

// lineFile is an append-only file in the run folder, one JSON object a line: the result cache, the flaky tests.
//
// Invariants: one goroutine at a time (the prober's lock). size is the length of the whole lines; a write that fails is
// undone by truncating to size, its line stays in unsaved and is tried again with the next one, so a full disk costs
// nothing but the persistence of the lines, and is reported each time. Lines are not fsynced: what a power failure takes
// is found out again.
type lineFile struct {
	w       lineWriter // nil: in memory only
	size    int64
	torn    bool // a failed write could not be undone yet
	unsaved [][]byte
}

// open opens path, which may be missing, for appending. read takes what is there and returns the length of the whole lines:
// a torn last one (the process died while writing) is cut off.
func (f *lineFile) open(path string, read func(io.Reader) (size int64, err error)) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	size, err := read(file)
	if err == nil {
		err = file.Truncate(size)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.w, f.size = file, size
	return nil
}

// readLines calls each with every whole line and returns their length.
func readLines(r io.Reader, each func(line []byte)) (size int64, err error) {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return size, nil // what is left in line has no end: torn
		}
		if err != nil {
			return 0, err
		}
		size += int64(len(line))
		each(line)
	}
}

// append writes v and what earlier failures left.
func (f *lineFile) append(v any) error {
	if f.w == nil {
		return nil
	}
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f.unsaved = append(f.unsaved, append(line, '\n'))
	return f.flush()
}

func (f *lineFile) flush() error {
	if f.w == nil || len(f.unsaved) == 0 {
		return nil
	}
	if f.torn {
		if err := f.w.Truncate(f.size); err != nil {
			return fmt.Errorf("cannot cut off a half-written line: %w", err)
		}
		f.torn = false
	}
	var all []byte
	for _, line := range f.unsaved {
		all = append(all, line...)
	}
	n, err := f.w.Write(all)
	if err != nil {
		f.torn = n > 0 && f.w.Truncate(f.size) != nil
		return fmt.Errorf("%d lines are kept in memory only: %w", len(f.unsaved), err)
	}
	f.size += int64(n)
	f.unsaved = nil
	return nil
}

func (f *lineFile) close() error {
	if f.w == nil {
		return nil
	}
	return errors.Join(f.flush(), f.w.Close())
}

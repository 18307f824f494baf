package benchmarks

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	milepost "github.com/milepost-rl/milepost"
)

// RowsFile is the name of the file, beside [TasksFile] of an imported set, that keeps the rows as they were read: one
// [Row] a line, in the order of the tasks.
const RowsFile = "rows.jsonl"

// Row is the row of a data set that a task was imported from, with every column, also those nothing here has a use for.
type Row struct {
	Task string          `json:"task"` // id of the task
	File string          `json:"file"` // as in Origin.File
	Row  int             `json:"row"`  // as in Origin.Row
	Cols json.RawMessage `json:"columns"`
}

// Writer writes a task set one task at a time, in memory that does not grow with it. The set appears whole, by
// [Writer.Commit], or not at all. One writer at a time works in a folder: it holds locks on its temporary files, which end
// with its process, and a new writer removes what one that was killed left.
type Writer struct {
	dir         string // absolute
	tasks, rows *spool // rows is nil until the first row
}

// Vacant returns the absolute path of a folder that a set is to be written to. One that holds a set already is an error of
// op and KindConflict, before anything is made for it.
func Vacant(op, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindInvalid, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, TasksFile)); err == nil {
		return "", milepost.E(op, milepost.KindConflict, "%s holds a task set already", dir)
	}
	return dir, nil
}

// NewWriter begins a task set in dir, which is made. Errors: KindConflict where dir holds one already, or another writer
// is at work there.
func NewWriter(dir string) (*Writer, error) {
	const op = "benchmarks: write set"
	dir, err := Vacant(op, dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := clearSpools(dir); err != nil {
		return nil, err
	}
	s, err := newSpool(dir, TasksFile)
	return &Writer{dir: dir, tasks: s}, milepost.Wrap(op, milepost.KindUnavailable, err)
}

// Dir is the absolute folder of the set; what a task's Grading.Folder names may be put below it.
func (w *Writer) Dir() string { return w.dir }

// Add writes one task, held against [Check], and the row it came from, which may be nil. The caller sees to it that no
// id comes twice.
func (w *Writer) Add(t *milepost.Task, row *Row) error {
	const op = "benchmarks: write set"
	if err := Check(t); err != nil {
		return milepost.E(op, milepost.KindInvalid, "%w", plain(err))
	}
	if err := w.tasks.put(relative(t, w.dir)); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if row == nil {
		return nil
	}
	if w.rows == nil {
		s, err := newSpool(w.dir, RowsFile)
		if err != nil {
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
		w.rows = s
	}
	return milepost.Wrap(op, milepost.KindUnavailable, w.rows.put(row))
}

// Commit makes the set appear: rows first, so that there is never a set without them.
func (w *Writer) Commit() error {
	const op = "benchmarks: write set"
	for _, s := range []*spool{w.rows, w.tasks} {
		if s == nil {
			continue
		}
		if err := s.commit(); err != nil {
			return milepost.Wrap(op, milepost.KindUnavailable, err)
		}
	}
	w.rows, w.tasks = nil, nil
	return nil
}

// Abort throws away what was not committed; after Commit it does nothing.
func (w *Writer) Abort() {
	for _, s := range []*spool{w.rows, w.tasks} {
		if s != nil {
			s.abort()
		}
	}
	w.rows, w.tasks = nil, nil
}

// spool is one file of JSON lines under a temporary name.
type spool struct {
	path string
	file *os.File
	buf  *bufio.Writer
	enc  *json.Encoder
}

// clearSpools removes the temporary files of writers that are dead; one that is alive is an error.
func clearSpools(dir string) error {
	const op = "benchmarks: write set"
	for _, name := range []string{TasksFile, RowsFile} {
		left, err := filepath.Glob(filepath.Join(globQuoted(dir), "."+name+".*"))
		if err != nil {
			return milepost.Wrap(op, milepost.KindInternal, err)
		}
		for _, path := range left {
			f, err := os.Open(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return milepost.Wrap(op, milepost.KindUnavailable, err)
			}
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
				return milepost.E(op, milepost.KindConflict, "%s: another process is writing a task set there (%w); wait for it, or give another folder", dir, errors.Join(err, f.Close()))
			}
			if err := errors.Join(os.Remove(path), f.Close()); err != nil {
				return milepost.Wrap(op, milepost.KindUnavailable, err)
			}
		}
	}
	return nil
}

var globQuoted = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace

func newSpool(dir, name string) (*spool, error) {
	f, err := os.CreateTemp(dir, "."+name+".*")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s := &spool{path: filepath.Join(dir, name), file: f, buf: bufio.NewWriterSize(f, 1<<20)}
	s.enc = json.NewEncoder(s.buf)
	s.enc.SetEscapeHTML(false)
	return s, nil
}

func (s *spool) put(v any) error { return s.enc.Encode(v) }

func (s *spool) commit() error {
	err := errors.Join(s.buf.Flush(), s.file.Chmod(0o644), s.file.Sync(), s.file.Close())
	if err == nil {
		err = os.Rename(s.file.Name(), s.path)
	}
	if err != nil {
		_ = os.Remove(s.file.Name())
	}
	return err
}

func (s *spool) abort() {
	_ = s.file.Close()
	_ = os.Remove(s.file.Name())
}

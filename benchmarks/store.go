package benchmarks

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	milepost "github.com/milepost-rl/milepost"
)

// TasksFile is the name of the file with the tasks in the folder of a task set.
const TasksFile = "tasks.jsonl"

// maxLine bounds one task on disk, in bytes.
const maxLine = 64 << 20

// Load reads a task set: path is its folder or its JSONL file. Every task is held against [Check]; Repo and
// Grading.Folder become absolute. Errors are KindNotFound where the file does not exist and KindInvalid, naming file,
// line and field, where a task is not well formed.
func Load(path string) ([]*milepost.Task, error) {
	var tasks []*milepost.Task
	err := Each(path, func(t *milepost.Task) error {
		tasks = append(tasks, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return tasks, nil
}

// Each calls use with one task of a set after another, as [Load] would return them; memory does not grow with the set. A
// set without a task is an error. An error of use ends the reading and is returned as it is.
func Each(path string, use func(*milepost.Task) error) error {
	const op = "benchmarks: load"
	file, err := tasksFile(path)
	if err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return milepost.Wrap(op, kindOfOpen(err), err)
	}
	defer f.Close()
	n, err := read(f, file, use)
	if err != nil {
		return err
	}
	if n == 0 {
		return milepost.E(op, milepost.KindInvalid, "%s holds no task", file)
	}
	return nil
}

// tasksFile turns a folder or file into the absolute path of the tasks file.
func tasksFile(path string) (string, error) {
	const op = "benchmarks: load"
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", milepost.Wrap(op, milepost.KindInvalid, err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", milepost.Wrap(op, kindOfOpen(err), err)
	}
	if info.IsDir() {
		return filepath.Join(abs, TasksFile), nil
	}
	return abs, nil
}

func kindOfOpen(err error) milepost.Kind {
	if errors.Is(err, fs.ErrNotExist) {
		return milepost.KindNotFound
	}
	return milepost.KindUnavailable
}

// read parses the lines of one tasks file and returns how many tasks there were.
func read(r io.Reader, file string, use func(*milepost.Task) error) (int, error) {
	const op = "benchmarks: load"
	seen, count := map[string]int{}, 0
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		t, err := decode(lines.Bytes())
		if err == nil {
			err = Check(t)
		}
		if err == nil && seen[t.ID] > 0 {
			err = fmt.Errorf("field id: %q is also the task of line %d", t.ID, seen[t.ID])
		}
		if err != nil {
			return count, milepost.E(op, milepost.KindInvalid, "%s line %d: %w", file, n, plain(err))
		}
		seen[t.ID] = n
		absolute(t, filepath.Dir(file))
		if err := use(t); err != nil {
			return count, err
		}
		count++
	}
	if err := lines.Err(); err != nil {
		return count, milepost.E(op, milepost.KindInvalid, "%s after task %d: %w", file, count, err)
	}
	return count, nil
}

// absolute makes the paths of a task, which are relative to the folder of its file on disk, absolute.
func absolute(t *milepost.Task, dir string) {
	if t.Repo != "" && !filepath.IsAbs(t.Repo) {
		t.Repo = filepath.Join(dir, filepath.FromSlash(t.Repo))
	}
	if g := t.Grading; g != nil && g.Folder != "" && !filepath.IsAbs(g.Folder) {
		g.Folder = filepath.Join(dir, filepath.FromSlash(g.Folder))
	}
}

// relative is a copy of the task whose paths below dir are relative to it.
func relative(t *milepost.Task, dir string) *milepost.Task {
	c := *t
	c.Repo = below(dir, t.Repo)
	if t.Grading != nil {
		g := *t.Grading
		g.Folder = below(dir, g.Folder)
		c.Grading = &g
	}
	return &c
}

func below(dir, path string) string {
	if rel, err := filepath.Rel(dir, path); err == nil && path != "" && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel)
	}
	return path
}

// plain takes the message out of a milepost.Error that is about to be named by a better place.
func plain(err error) error {
	var e *milepost.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// decode parses one task strictly: an unknown field, a wrong type and anything after the object are errors.
func decode(line []byte) (*milepost.Task, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	t := new(milepost.Task)
	if err := d.Decode(t); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, fmt.Errorf("field %s: %s where %s is wanted", wrong.Field, wrong.Value, wrong.Type)
		}
		return nil, fmt.Errorf("not a task: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the task's JSON object")
	}
	return t, nil
}

// Save writes a task set into dir, which is made: tasks.jsonl appears whole or not at all. Repositories below dir are
// written relative to it; others stay absolute. Every task is held against [Check] first.
func Save(dir string, tasks []*milepost.Task) error {
	const op = "benchmarks: save"
	dir, err := filepath.Abs(dir)
	if err != nil {
		return milepost.Wrap(op, milepost.KindInvalid, err)
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	for i, t := range tasks {
		if err := Check(t); err != nil {
			return milepost.E(op, milepost.KindInvalid, "task %d: %w", i, plain(err))
		}
		if err := enc.Encode(relative(t, dir)); err != nil {
			return milepost.Wrap(op, milepost.KindInternal, err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return milepost.Wrap(op, milepost.KindUnavailable, WriteWhole(filepath.Join(dir, TasksFile), buf.Bytes()))
}

// WriteWhole writes a file under a temporary name, syncs it and renames it into place. Errors are the system's.
func WriteWhole(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

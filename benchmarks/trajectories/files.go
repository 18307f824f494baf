package trajectories

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/dataset"
)

// record is one JSON object that may hold a trajectory.
type record struct {
	file   string
	row    int // from 1
	fields map[string]json.RawMessage
	events json.RawMessage // of a file that is nothing but a list of events
}

// rowEndings are files of rows, wholeEndings files that are one JSON value.
var (
	rowEndings   = []string{".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"}
	wholeEndings = []string{".traj", ".json"}
)

func endsIn(name string, endings []string) bool {
	return slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(name, e) })
}

// find lists the files of a path: itself, or all below it that may hold trajectories, sorted.
func find(path string) ([]string, error) {
	const op = "trajectories: find"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, milepost.E(op, milepost.KindNotFound, "%s does not exist", path)
	case err != nil:
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	case !info.IsDir():
		return []string{path}, nil
	}
	var out []string
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(d.Name(), ".") && (endsIn(p, rowEndings) || endsIn(p, wholeEndings)) {
			out = append(out, p)
		}
		return err
	})
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if len(out) == 0 {
		return nil, milepost.E(op, milepost.KindInvalid, "%s holds no trajectories: files that end in %s are wanted", path, strings.Join(slices.Concat(rowEndings, wholeEndings), ", "))
	}
	return out, nil
}

// records gives the records of a file. A faulty one is an error of kind KindInvalid, behind which reading goes on; any other
// error is the last.
func records(ctx context.Context, file string) iter.Seq2[record, error] {
	if !endsIn(file, wholeEndings) {
		return rows(ctx, file)
	}
	return func(yield func(record, error) bool) {
		all, err := whole(file)
		if err != nil {
			yield(record{}, err)
			return
		}
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func rows(ctx context.Context, file string) iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		for row, err := range dataset.Rows(ctx, file) {
			if err != nil {
				if !yield(record{}, err) {
					return
				}
				continue
			}
			r := record{file: file, row: row.Number, fields: map[string]json.RawMessage{}}
			for _, c := range row.Columns() {
				r.fields[c] = row.Value(c)
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// whole reads a file that is one JSON value: a record, a list of records, or the events of one trajectory.
func whole(file string) ([]record, error) {
	bad := func(format string, args ...any) ([]record, error) {
		return nil, milepost.E("trajectories: read", milepost.KindInvalid, "%s: %w", file, fmt.Errorf(format, args...))
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, milepost.Wrap("trajectories: read", milepost.KindUnavailable, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, dataset.MaxRow+1))
	switch {
	case err != nil:
		return nil, milepost.Wrap("trajectories: read", milepost.KindUnavailable, err)
	case len(data) > dataset.MaxRow:
		return bad("larger than %d MiB; allowed is one trajectory of at most that", dataset.MaxRow>>20)
	case !utf8.Valid(data):
		return bad("not UTF-8; a trajectory is UTF-8")
	case benchmarks.LoneSurrogate(data) >= 0:
		return bad("byte %d: half of a surrogate pair, which is no text", benchmarks.LoneSurrogate(data))
	case !json.Valid(data):
		var v any
		err := json.Unmarshal(data, &v)
		return bad("not JSON (cut off, or another format): %v", err)
	}
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\ufeff")))
	if data[0] == '{' {
		r := record{file: file, row: 1}
		if err := json.Unmarshal(data, &r.fields); err != nil {
			return bad("%v", err)
		}
		return []record{r}, nil
	}
	var list []map[string]json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return bad("neither an object nor a list of objects: %v", err)
	}
	if len(list) > 0 && isEvent(list[0]) {
		return []record{{file: file, row: 1, events: data}}, nil
	}
	out := make([]record, len(list))
	for i, fields := range list {
		out[i] = record{file: file, row: i + 1, fields: fields}
	}
	return out, nil
}

// stem is a file's name without what the systems put behind an instance id.
func stem(file string) string {
	name := filepath.Base(file)
	for _, end := range []string{".json", ".traj"} {
		name = strings.TrimSuffix(name, end)
	}
	return name
}

// has reports whether the record has all of the fields, none of them null.
func (r record) has(fields ...string) bool {
	for _, f := range fields {
		if v := bytes.TrimSpace(r.fields[f]); len(v) == 0 || string(v) == "null" {
			return false
		}
	}
	return true
}

// text is a field that is a text, "" where it is absent or null; a number is its digits.
func (r record) text(names ...string) (string, error) {
	for _, name := range names {
		if !r.has(name) {
			continue
		}
		var s string
		if err := json.Unmarshal(r.fields[name], &s); err == nil {
			return s, nil
		}
		var n json.Number
		if err := json.Unmarshal(r.fields[name], &n); err != nil {
			return "", field(name, "a text is wanted, not %s", excerpt(r.fields[name]))
		}
		return n.String(), nil
	}
	return "", nil
}

// truth is a field that is true or false, or 1 or 0; nil where it is absent or null.
func (r record) truth(names ...string) (*bool, error) {
	for _, name := range names {
		if !r.has(name) {
			continue
		}
		var b bool
		switch v := strings.Trim(string(bytes.TrimSpace(r.fields[name])), `"`); v {
		case "true", "True", "1", "1.0":
			b = true
		case "false", "False", "0", "0.0":
		default:
			return nil, field(name, "true, false, 1 or 0 is wanted, not %s", excerpt(r.fields[name]))
		}
		return &b, nil
	}
	return nil, nil
}

// decode reads a field that may also stand as JSON within a text, as Parquet writers leave it.
func (r record) decode(name string, into any) error {
	return decode(r.fields[name], name, into)
}

func decode(raw json.RawMessage, name string, into any) error {
	var inner string
	if json.Unmarshal(raw, &inner) == nil {
		raw = json.RawMessage(inner)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return field(name, "%w, found %s", err, excerpt(raw))
	}
	return nil
}

// excerpt shows the start of a value.
func excerpt(raw []byte) string {
	const most = 60
	s := []rune(strings.ToValidUTF8(string(bytes.TrimSpace(raw)), "\ufffd"))
	if len(s) > most {
		return string(s[:most]) + "..."
	}
	if len(s) == 0 {
		return "nothing"
	}
	return string(s)
}

package dataset

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	milepost "github.com/milepost-rl/milepost"
)

// reader gives the rows of one file, one after another, io.EOF behind the last. Its errors are of kind KindInvalid and
// name the row, or of kind KindUnavailable where the file cannot be read.
type reader interface {
	next() (*Row, error)
	close() error
}

// faultAt places a fault: file, row and, where it is known, instance.
func faultAt(file string, row int, instance string, err error) error {
	at := fmt.Sprintf("%s: row %d", file, row)
	if instance != "" {
		at += fmt.Sprintf(" (%s)", instance)
	}
	return milepost.E("dataset: read", milepost.KindInvalid, "%s: %w", at, err)
}

// openText opens a text file, decompressed where its name says so (.gz, .zst), behind a byte order mark.
func openText(path string) (*bufio.Reader, func() error, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	var r io.Reader = f
	closers := []func() error{f.Close}
	switch {
	case strings.HasSuffix(path, ".gz"):
		g, err := gzip.NewReader(f)
		if err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
		r, closers = g, append(closers, g.Close)
	case strings.HasSuffix(path, ".zst"):
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
		r, closers = z, append(closers, func() error { z.Close(); return nil })
	}
	b := bufio.NewReaderSize(r, 1<<20)
	if mark, _ := b.Peek(3); bytes.Equal(mark, []byte("\ufeff")) {
		_, _ = b.Discard(3)
	}
	return b, func() error {
		var errs []error
		for _, c := range closers {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}, nil
}

// jsonLines reads one row a line; blank lines are no rows but count as lines.
type jsonLines struct {
	name   string
	r      *bufio.Reader
	closer func() error
	row    int // rows read
	line   int
	buf    []byte
}

func (j *jsonLines) close() error { return j.closer() }

func (j *jsonLines) next() (*Row, error) {
	for {
		data, err := j.readLine()
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(data)) == 0 {
			continue
		}
		j.row++
		cols, err := parseRow(data)
		if err != nil {
			return nil, faultAt(j.name, j.row, idIn(cols, data), fmt.Errorf("line %d: %w", j.line, err))
		}
		return &Row{File: j.name, Number: j.row, cols: cols}, nil
	}
}

// readLine reads the next line into buf, of at most MaxRow bytes.
func (j *jsonLines) readLine() ([]byte, error) {
	j.buf = j.buf[:0]
	for {
		part, err := j.r.ReadSlice('\n')
		if len(j.buf)+len(part) > MaxRow {
			j.row++
			if err := j.discard(err); err != nil {
				return nil, err
			}
			return nil, faultAt(j.name, j.row, idIn(nil, j.buf), fmt.Errorf("line %d: %w", j.line, tooLarge()))
		}
		j.buf = append(j.buf, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(j.buf) > 0, err == nil:
			j.line++
			return j.buf, nil
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		}
		return nil, cannotRead(j.name, j.row, err)
	}
}

// discard reads on to the end of a line that is too large; err is what its last part was read with.
func (j *jsonLines) discard(err error) error {
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = j.r.ReadSlice('\n')
	}
	j.line++
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return cannotRead(j.name, j.row, err)
}

func tooLarge() error {
	return fmt.Errorf("larger than %d MiB; allowed is one row of at most that", MaxRow>>20)
}

// unreadableError marks a fault behind which its file cannot be read on.
type unreadableError struct{ error }

func (e unreadableError) Unwrap() error { return e.error }

func unreadable(err error) error {
	return milepost.E("dataset: read", milepost.KindOf(err), "%w", unreadableError{bare(err)})
}

// cannotRead is a failure of the file itself, damaged compression included, behind a row.
func cannotRead(file string, row int, err error) error {
	return milepost.E("dataset: read", milepost.KindCorrupt, "%s: cannot be read behind row %d: %w", file, row, err)
}

// idIn finds the instance id for an error message, in the columns or, where the row is faulty, in its text.
func idIn(cols map[string]json.RawMessage, data []byte) string {
	for _, c := range idColumns {
		if v, ok := cols[c]; ok && kindOf(v) == "a string" {
			return unquote(v)
		}
		key := []byte(`"` + c + `"`)
		if _, rest, ok := bytes.Cut(data[:min(len(data), 1<<20)], key); ok {
			rest = bytes.TrimLeft(rest, " \t:")
			if id, _, ok := bytes.Cut(bytes.TrimPrefix(rest, []byte(`"`)), []byte(`"`)); ok && len(id) < 200 && utf8.Valid(id) {
				return string(id)
			}
		}
	}
	return ""
}

// idColumns are the columns that hold a row's id in one data set or another.
var idColumns = []string{"instance_id"}

// openJSON opens a file of JSON rows: lines or an array, told apart by the first character.
func openJSON(path, name string) (reader, error) {
	r, closer, err := openText(path)
	if err != nil {
		return nil, milepost.E("dataset: open", milepost.KindCorrupt, "%s: %w", name, err)
	}
	for n := 1; ; n++ {
		head, err := r.Peek(n)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, errors.Join(cannotRead(name, 0, err), closer())
		}
		if len(head) < n {
			return nil, errors.Join(milepost.E("dataset: open", milepost.KindInvalid, "%s: holds no row", name), closer())
		}
		switch c := head[n-1]; {
		case strings.IndexByte(" \t\r\n", c) >= 0 && n < 4096:
			continue
		case c == '[':
			return newJSONArray(name, r, closer), nil
		case strings.HasSuffix(strings.TrimSuffix(strings.TrimSuffix(path, ".gz"), ".zst"), ".json"):
			return newJSONObject(name, r, closer), nil
		}
		return &jsonLines{name: name, r: r, closer: closer}, nil
	}
}

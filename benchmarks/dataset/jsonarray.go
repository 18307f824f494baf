package dataset

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// jsonValues reads rows that follow each other without line structure: the elements of a JSON array, or objects in a
// .json file.
type jsonValues struct {
	name   string
	lim    *rowLimit
	dec    *json.Decoder
	closer func() error
	row    int
	array  bool
	begun  bool
}

func newJSONArray(name string, r *bufio.Reader, closer func() error) reader {
	lim := &rowLimit{r: r}
	return &jsonValues{name: name, lim: lim, dec: json.NewDecoder(lim), closer: closer, array: true}
}

func newJSONObject(name string, r *bufio.Reader, closer func() error) reader {
	lim := &rowLimit{r: r}
	return &jsonValues{name: name, lim: lim, dec: json.NewDecoder(lim), closer: closer}
}

// errRowLimit is what rowLimit gives for a row that is too large.
var errRowLimit = errors.New("row too large")

// rowLimit ends the reading of one value at MaxRow bytes; the decoder's look-ahead is granted on top.
type rowLimit struct {
	r    io.Reader
	used int // bytes since the last value
}

func (l *rowLimit) Read(p []byte) (int, error) {
	if l.used > MaxRow {
		return 0, errRowLimit
	}
	n, err := l.r.Read(p[:min(len(p), 1<<20)])
	l.used += n
	return n, err
}

func (j *jsonValues) close() error { return j.closer() }

func (j *jsonValues) next() (*Row, error) {
	if j.array && !j.begun {
		if _, err := j.dec.Token(); err != nil { // the bracket that openJSON saw
			return nil, cannotRead(j.name, 0, err)
		}
		j.begun = true
	}
	if !j.dec.More() {
		return nil, j.end()
	}
	j.lim.used = 0
	var v json.RawMessage
	err := j.dec.Decode(&v)
	switch {
	case errors.Is(err, io.EOF) && !j.array:
		return nil, io.EOF
	case errors.Is(err, errRowLimit) || len(v) > MaxRow:
		return nil, unreadable(faultAt(j.name, j.row+1, "", tooLarge()))
	case err != nil:
		return nil, unreadable(faultAt(j.name, j.row+1, "", notJSON(v, err)))
	}
	j.row++
	cols, err := parseRow(v)
	if err != nil {
		return nil, faultAt(j.name, j.row, idIn(cols, v), err)
	}
	return &Row{File: j.name, Number: j.row, cols: cols}, nil
}

// end checks what stands behind the last row.
func (j *jsonValues) end() error {
	if !j.array {
		return io.EOF
	}
	if tok, err := j.dec.Token(); err != nil || tok != json.Delim(']') {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the array does not end; the file is cut off")
		}
		return unreadable(faultAt(j.name, j.row+1, "", fmt.Errorf("%w; a JSON array of rows is wanted", err)))
	}
	if _, err := j.dec.Token(); !errors.Is(err, io.EOF) {
		return unreadable(faultAt(j.name, j.row+1, "", errors.New("something follows the array; one JSON array of rows is wanted")))
	}
	return io.EOF
}

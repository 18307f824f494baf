package dataset

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/milepost-rl/milepost/benchmarks"
)

// MaxRow bounds one row, in bytes of its JSON form. A row that is larger is an error that names it; it is never read into
// memory whole.
const MaxRow = 48 << 20

// Row is one row as it was read: every column as JSON, whatever the container was. Its accessors keep the first column
// that was faulty or missing; a mapping reads what it wants and the importer asks [Row.Err] at the end.
type Row struct {
	File   string // as named to a person: relative to what is imported
	Number int    // from 1
	Folder string // absolute folder of the row's own files, for rows that are folders; else ""

	cols map[string]json.RawMessage
	used map[string]bool
	err  error // the first fault of a column
}

// columnError is a fault of one column.
type columnError struct {
	column string
	err    error
}

func (e *columnError) Error() string { return fmt.Sprintf("column %s: %v", e.column, e.err) }
func (e *columnError) Unwrap() error { return e.err }

// parseRow reads one JSON object. A column twice, invalid UTF-8 and anything behind the object are errors.
func parseRow(data []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	tok, err := dec.Token()
	if err != nil {
		return nil, notJSON(data, err)
	}
	if tok != json.Delim('{') {
		return nil, fmt.Errorf("a row is a JSON object, this is %s", kindOf(data))
	}
	cols := map[string]json.RawMessage{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, notJSON(data, err)
		}
		name := key.(string) // an object's keys are strings, else Token has failed
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, &columnError{name, notJSON(data, err)}
		}
		if !utf8.Valid(v) {
			return nil, &columnError{name, fmt.Errorf("not UTF-8 at byte %d of the value; a data file is UTF-8", badByte(v))}
		}
		if at := benchmarks.LoneSurrogate(v); at >= 0 {
			return nil, &columnError{name, fmt.Errorf("%s at byte %d of the value is half of a surrogate pair, which is no text", v[at:at+6], at)}
		}
		if _, twice := cols[name]; twice {
			return nil, &columnError{name, errors.New("twice in one row")}
		}
		cols[name] = v
	}
	if _, err := dec.Token(); err != nil {
		return nil, notJSON(data, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the row's JSON object; one row a line is wanted")
	}
	return cols, nil
}

// notJSON says in words why data is no JSON, invalid UTF-8 first since the decoder only stumbles over what follows it.
func notJSON(data []byte, err error) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("not UTF-8 at byte %d; a data file is UTF-8", badByte(data))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("not JSON: it ends too early")
	}
	return fmt.Errorf("not JSON: %w", err)
}

func badByte(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// kindOf names the JSON type of a value, for messages.
func kindOf(v []byte) string {
	v = bytes.TrimSpace(v)
	switch {
	case len(v) == 0:
		return "nothing"
	case v[0] == '"':
		return "a string"
	case v[0] == '[':
		return "a list"
	case v[0] == '{':
		return "an object"
	case v[0] == 't' || v[0] == 'f':
		return "a truth value"
	case v[0] == 'n':
		return "null"
	}
	return "a number"
}

// Columns are the names of the row's columns, sorted.
func (r *Row) Columns() []string { return slices.Sorted(maps.Keys(r.cols)) }

// Has reports whether every one of the columns is there and not null.
func (r *Row) Has(columns ...string) bool {
	for _, c := range columns {
		if v, ok := r.cols[c]; !ok || kindOf(v) == "null" {
			return false
		}
	}
	return true
}

// first is the first of the columns that the row has and is not null, else the first of them: data sets spell one thing
// in several ways.
func (r *Row) first(columns []string) string {
	for _, c := range columns {
		if r.Has(c) {
			return c
		}
	}
	for _, c := range columns {
		if _, ok := r.cols[c]; ok {
			return c
		}
	}
	return columns[0]
}

// use marks a column as mapped and returns its value; ok is false where it is absent or null.
func (r *Row) use(column string) (v json.RawMessage, ok bool) {
	if r.used == nil {
		r.used = map[string]bool{}
	}
	r.used[column] = true
	v, ok = r.cols[column]
	return v, ok && kindOf(v) != "null"
}

// fail keeps the first fault.
func (r *Row) fail(column, format string, args ...any) {
	if r.err == nil {
		r.err = &columnError{column, fmt.Errorf(format, args...)}
	}
}

// Err is the first fault of a column that a mapping met, or nil.
func (r *Row) Err() error { return r.err }

// Text is a string column under the first of its names that is there; absent, null and "" are all "".
func (r *Row) Text(columns ...string) string {
	c := r.first(columns)
	v, ok := r.use(c)
	if !ok {
		return ""
	}
	if kindOf(v) != "a string" {
		r.fail(c, "%s where a string is wanted", kindOf(v))
		return ""
	}
	return unquote(v)
}

// unquote decodes a JSON string; v has been checked to be one.
func unquote(v json.RawMessage) string {
	var s string
	_ = json.Unmarshal(v, &s) // a valid string by construction
	return s
}

// MustText is Text that may not be empty or blank.
func (r *Row) MustText(columns ...string) string {
	s := r.Text(columns...)
	if strings.TrimSpace(s) == "" {
		r.fail(spelled(columns), "missing or empty; a string is wanted")
	}
	return s
}

func spelled(columns []string) string { return strings.Join(columns, " or ") }

// Scalar is a string, number or truth value as text; absent and null are "".
func (r *Row) Scalar(columns ...string) string {
	c := r.first(columns)
	v, ok := r.use(c)
	if !ok {
		return ""
	}
	switch kindOf(v) {
	case "a string":
		return unquote(v)
	case "a number", "a truth value":
		return string(bytes.TrimSpace(v))
	}
	r.fail(c, "%s where a string, a number or a truth value is wanted", kindOf(v))
	return ""
}

// Int is a whole number, or a string that holds one; ok is false where it is absent, null or "".
func (r *Row) Int(columns ...string) (n int, ok bool) {
	s := strings.TrimSpace(r.Scalar(columns...))
	if s == "" {
		return 0, false
	}
	if whole, frac, dotted := strings.Cut(s, "."); dotted && strings.Trim(frac, "0") == "" { // a data frame's 12.0
		s = whole
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		r.fail(r.first(columns), "%s is not a whole number", short(s))
	}
	return n, err == nil
}

// List is a list of strings in any of the ways of [ParseList]; absent, null and "" are all empty.
func (r *Row) List(columns ...string) []string {
	c := r.first(columns)
	v, ok := r.use(c)
	if !ok {
		return nil
	}
	list, err := ParseList(v)
	if err != nil {
		r.fail(c, "%w", err)
	}
	return list
}

// Commands is List for shell commands, where a plain string is one command.
func (r *Row) Commands(columns ...string) []string {
	c := r.first(columns)
	v, ok := r.use(c)
	if !ok {
		return nil
	}
	if kindOf(v) == "a string" {
		s := unquote(v)
		if t := strings.TrimSpace(s); t == "" {
			return nil
		} else if t[0] != '[' || !json.Valid([]byte(t)) { // "[ -f x ] && make" is a command
			return []string{s}
		}
	}
	return r.List(c)
}

// Object is a JSON object, or a string that holds one; nil where it is absent, null or "".
func (r *Row) Object(columns ...string) *Row {
	c := r.first(columns)
	v, ok := r.use(c)
	if !ok {
		return nil
	}
	if kindOf(v) == "a string" {
		if v = json.RawMessage(unquote(v)); len(bytes.TrimSpace(v)) == 0 {
			return nil
		}
	}
	cols, err := parseRow(v)
	if err != nil {
		r.fail(c, "%w; an object, or a string with one, is wanted", err)
		return nil
	}
	return &Row{File: r.File, Number: r.Number, cols: cols}
}

// Strings is an object whose values are strings.
func (r *Row) Strings(columns ...string) map[string]string {
	c := r.first(columns)
	o := r.Object(c)
	if o == nil {
		return nil
	}
	out := make(map[string]string, len(o.cols))
	for _, k := range o.Columns() {
		out[k] = o.Text(k)
	}
	r.within(c, o)
	return out
}

// within takes over a fault of an object in a column.
func (r *Row) within(column string, o *Row) {
	if o != nil && o.err != nil {
		r.fail(column, "%w", o.err)
	}
}

// short quotes a value for a message, cut where it is long.
func short(s string) string {
	const most = 80
	if len(s) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return strconv.Quote(s)
}

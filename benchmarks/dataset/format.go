package dataset

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	milepost "github.com/milepost-rl/milepost"
)

// Format is one public data set's form.
type Format struct {
	Name   string // as --format takes it
	About  string // one line for a person: what the data set is
	Source string // where the facts of the mapping were read

	// Needs are the columns without which a row is not of this form. Alternatives are separated by "|".
	Needs []string

	// Match says how sure the recogniser is of a row that has Needs: 0 is no, and of several forms the greatest wins. Nil
	// means 1.
	Match func(*Row) int

	// Map makes the task of one row. Faults of columns stay in the row ([Row.Err]); the error is for what concerns no
	// single column. Origin, Source, the sorted test list and the metadata are filled in by the importer.
	Map func(*Row, *Assets) (*milepost.Task, error)

	// ID is the row's id where it is not column instance_id.
	ID func(*Row) string
}

// recognise finds the form of a row. Errors say which columns there are and what the nearest form would want.
func recognise(r *Row) (*Format, error) {
	best, sure := []*Format(nil), 0
	for _, f := range Formats {
		if missing := f.missing(r); len(missing) > 0 {
			continue
		}
		n := 1
		if f.Match != nil {
			n = f.Match(r)
		}
		switch {
		case n > sure:
			best, sure = []*Format{f}, n
		case n == sure && n > 0:
			best = append(best, f)
		}
	}
	switch len(best) {
	case 1:
		return best[0], nil
	case 0:
		near, missing := nearest(r)
		return nil, fmt.Errorf("its form is not recognised; columns: %s. Nearest is %s, which also wants %s. Give the form by name: %s",
			strings.Join(r.Columns(), ", "), near.Name, strings.Join(missing, ", "), strings.Join(FormatNames(), ", "))
	}
	var names []string
	for _, f := range best {
		names = append(names, f.Name)
	}
	return nil, fmt.Errorf("its form could be any of %s; give the form by name", strings.Join(names, ", "))
}

// missing are the columns of Needs that the row lacks.
func (f *Format) missing(r *Row) (out []string) {
	for _, need := range f.Needs {
		if !slices.ContainsFunc(strings.Split(need, "|"), func(c string) bool { _, ok := r.cols[c]; return ok }) {
			out = append(out, need)
		}
	}
	return out
}

// nearest is the form that lacks the fewest columns.
func nearest(r *Row) (*Format, []string) {
	best := Formats[0]
	for _, f := range Formats {
		if len(f.missing(r)) < len(best.missing(r)) {
			best = f
		}
	}
	return best, best.missing(r)
}

// FormatNames are the names of the forms, in the order of the registry.
func FormatNames() []string {
	var out []string
	for _, f := range Formats {
		out = append(out, f.Name)
	}
	return out
}

// formatNamed finds a form by its name.
func formatNamed(name string) (*Format, error) {
	for _, f := range Formats {
		if f.Name == name {
			return f, nil
		}
	}
	return nil, milepost.E("dataset: import", milepost.KindInvalid, "format %q is not one of %s", name, strings.Join(FormatNames(), ", "))
}

// id is the id of a row as the data set spells it.
func (f *Format) id(r *Row) string {
	if f.ID != nil {
		return f.ID(r)
	}
	return r.Text("instance_id")
}

// safeID turns a data set's id into a task's: what is not a letter, digit or . _ + - becomes -.
func safeID(id string) string {
	safe := strings.Map(func(c rune) rune {
		if c < 128 && (c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.ContainsRune("._+-", c)) {
			return c
		}
		return '-'
	}, id)
	return strings.TrimLeft(safe, "._+-")
}

// maxMeta bounds a column that is taken over as metadata, in bytes; larger ones stay in the kept row alone.
const maxMeta = 200

// neverMeta are short columns that may give the solution away to whoever reads a task's metadata.
var neverMeta = map[string]bool{"hints_text": true, "all_hints_text": true, "prompt": true}

// keepMeta takes every short scalar column that the mapping had no use for into the task's metadata, and returns the
// names of those that are in the kept row alone.
func keepMeta(r *Row, t *milepost.Task) (left []string) {
	for _, c := range slices.Sorted(maps.Keys(r.cols)) {
		if r.used[c] || !r.Has(c) {
			continue
		}
		switch kind := kindOf(r.cols[c]); {
		case kind == "a list" || kind == "an object" || len(r.cols[c]) > maxMeta || neverMeta[c]:
			left = append(left, c)
			continue
		}
		if s := r.Scalar(c); s != "" {
			setMeta(t, c, s)
		}
	}
	return left
}

func setMeta(t *milepost.Task, key, value string) {
	if value == "" {
		return
	}
	if t.Meta == nil {
		t.Meta = map[string]string{}
	}
	t.Meta[key] = value
}

// tests sets the test lists of a task: duplicates are folded, a test of both lists is a FAIL_TO_PASS test. It returns how
// many names were folded away.
func setTests(t *milepost.Task, f2p, p2p []string) (folded int) {
	seen := map[string]bool{}
	take := func(ids []string) (out []string) {
		for _, id := range ids {
			if seen[id] {
				folded++
				continue
			}
			seen[id] = true
			out = append(out, id)
		}
		return out
	}
	t.FailToPass, t.PassToPass = take(f2p), take(p2p)
	t.Tests = slices.Sorted(maps.Keys(seen))
	return folded
}

// defaultTimeout is the time limit of SWE-bench's own harness, for data sets that name none.
const defaultTimeout = 1800 * time.Second

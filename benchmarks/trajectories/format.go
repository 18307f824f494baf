package trajectories

import (
	"strings"
)

// Format is how one system records its trajectories.
type Format struct {
	Name  string
	About string // for people, one line
	// is reports whether a record is of this format; exactly one does.
	is func(record) bool
	// read turns a record into the messages of a chat. A fault of a field is a *fieldError.
	read func(record) (recorded, error)
}

// Formats are all formats, in the order in which they are asked.
var Formats = []*Format{&sweAgent, &miniSWEAgent, &openHands, &chat}

// recognise finds the format of a record.
func recognise(r record) (*Format, error) {
	for _, f := range Formats {
		if f.is(r) {
			return f, nil
		}
	}
	var about []string
	for _, f := range Formats {
		about = append(about, f.Name+" ("+f.About+")")
	}
	return nil, faultIn(r, "", field("(all)", "no trajectory of a known form; known are %s", strings.Join(about, "; ")))
}

// Read turns a record into a trajectory.
func read(r record) (*Trajectory, error) {
	f, err := recognise(r)
	if err != nil {
		return nil, err
	}
	raw, err := f.read(r)
	if err != nil {
		return nil, faultIn(r, raw.id, err)
	}
	t, err := build(raw)
	if err != nil {
		return nil, faultIn(r, raw.id, err)
	}
	t.Format, t.File, t.Row = f.Name, r.file, r.row
	if t.Task == "" {
		t.Task = t.ID
	}
	return t, nil
}

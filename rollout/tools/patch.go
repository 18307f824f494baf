package tools

import (
	"context"
	"slices"
	"strconv"
	"strings"
)

// planPatch works out what a unified diff does to the files of the repository as they are now: all of it or nothing. A
// hunk's old lines must be found exactly, where its header says or else at a single other place below the hunk before.
func planPatch(ctx context.Context, s *Session, patch string) (edit, error) {
	files, err := parsePatch(patch)
	if err != nil {
		return nil, err
	}
	var e edit
	for _, pf := range files {
		f, err := target(ctx, s, pf.path)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(e, func(c change) bool { return c.path == f.path }) {
			return nil, refuse("patch: %s is there twice", f.path)
		}
		after, err := pf.apply(f)
		if err != nil {
			return nil, err
		}
		e = append(e, change{path: f.path, before: f, after: after})
	}
	return e, nil
}

// patchFile is the part of a patch that is about one file.
type patchFile struct {
	path             string
	created, deleted bool
	executable       bool
	hunks            []hunk
}

// hunk is one run of changes. Lines are without their ends; noEOL says that the last one has none in the file.
type hunk struct {
	start              int // line of the old file at which it begins, from 1; 0 for an empty old side at the start
	old, new           []string
	oldNoEOL, newNoEOL bool
}

func (pf patchFile) apply(f fileState) (fileState, error) {
	switch {
	case pf.created && f.exists:
		return fileState{}, refuse("patch: %s exists already", f.path)
	case !pf.created && !f.exists:
		return fileState{}, refuse("patch: no such file: %s", f.path)
	}
	d, err := f.document()
	if err != nil {
		return fileState{}, err
	}
	have := lines(d.body)
	eol := d.body == "" || strings.HasSuffix(d.body, "\n")
	var out []string
	from := 0
	for i, h := range pf.hunks {
		at, why := h.find(have, from, d.crlf)
		if why != "" {
			return fileState{}, refuse("patch: hunk %d of %s: %s", i+1, f.path, why)
		}
		out = append(append(out, have[from:at]...), h.text(h.new, d.crlf)...)
		from = at + len(h.old)
		if from == len(have) {
			eol = !h.newNoEOL
		}
	}
	out = append(out, have[from:]...)
	if pf.deleted {
		if len(out) > 0 {
			return fileState{}, refuse("patch: %s is deleted, but the hunks leave %s of it", f.path, plural(len(out), "line"))
		}
		return fileState{path: f.path}, nil
	}
	d.body = strings.Join(out, "\n")
	if eol && len(out) > 0 {
		d.body += "\n"
	}
	mode := f.mode
	switch {
	case pf.executable:
		mode = 0o755
	case pf.created:
		mode = 0o644
	}
	return fileState{path: f.path, exists: true, data: d.bytes(), mode: mode}, nil
}

// text gives the hunk's lines as the document has them: a CRLF document is kept without its "\r".
func (h hunk) text(lines []string, crlf bool) []string {
	if !crlf {
		return lines
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = strings.TrimSuffix(l, "\r")
	}
	return out
}

// find returns the index in have, from the given one on, at which the old lines of the hunk are.
func (h hunk) find(have []string, from int, crlf bool) (at int, why string) {
	old := h.text(h.old, crlf)
	at = max(h.start-1, 0)
	if len(old) == 0 {
		at = h.start // an insertion goes after the line named
		if at < from || at > len(have) {
			return 0, "there is no line " + strconv.Itoa(h.start) + " to insert after"
		}
		return at, ""
	}
	fits := func(i int) bool {
		return i >= from && i+len(old) <= len(have) && slices.Equal(have[i:i+len(old)], old)
	}
	if fits(at) {
		return at, ""
	}
	found := -1
	for i := from; i+len(old) <= len(have); i++ {
		if fits(i) {
			if found >= 0 {
				return 0, "its old lines are not at line " + strconv.Itoa(h.start) + " and occur more than once elsewhere"
			}
			found = i
		}
	}
	if found < 0 {
		return 0, "its old lines are not in the file"
	}
	return found, ""
}

package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// editFile changes files: one of replace, insert, create, delete, apply_patch and undo. A change that worked is
// answered with "ok".
type editFile struct{}

func (editFile) Name() string { return "edit_file" }
func (editFile) Writes() bool { return true }

// editArgs are the arguments of a call; the schema says which go together.
type editArgs struct {
	Command, Path, Old, New, Text, Patch string
	Line                                 int
}

func (t editFile) Run(ctx context.Context, s *Session, args json.RawMessage) (Result, error) {
	var a editArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: edit_file", milepost.KindInvalid, err)
	}
	var e edit
	var err error
	switch a.Command {
	case "undo":
		return undo(ctx, s)
	case "apply_patch":
		e, err = planPatch(ctx, s, a.Patch)
	default:
		e, err = planEdit(ctx, s, a)
	}
	var no refusal
	if asRefusal(err, &no) {
		return Result{Text: no.text, Violation: no.violation}, nil
	}
	if err != nil {
		return Result{}, err
	}
	if err := e.carryOut(ctx, s.Workspace); err != nil {
		return Result{}, err
	}
	s.history = append(s.history, e)
	return Result{Text: "ok"}, nil
}

// refusal is an answer to a call that cannot be carried out as asked; nothing was changed.
type refusal struct {
	text      string
	violation milepost.Violation
}

func (r refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return refusal{text: fmt.Sprintf(format, args...)} }

// target reads the file that a call is about, by its clean path. A file that is not there has existed false.
func target(ctx context.Context, s *Session, name string) (fileState, error) {
	p, why := cleanPath(name)
	switch {
	case why != "":
		return fileState{}, refuse("%s", why)
	case p == "." || isDir(s.Repo.Index(), p):
		return fileState{}, refuse("%s is a directory", p)
	case isGit(p):
		return fileState{}, refusal{text: p + " is git's own data and may not be changed", violation: milepost.ViolationHead}
	case s.Repo.Index()[p].Mode == repo.ModeSymlink:
		return fileState{}, refuse("%s is a symbolic link; edit the file it leads to", p)
	}
	return readState(ctx, s.Workspace, p)
}

// planEdit works out what a call on a single file does.
func planEdit(ctx context.Context, s *Session, a editArgs) (edit, error) {
	f, err := target(ctx, s, a.Path)
	if err != nil {
		return nil, err
	}
	c := change{path: f.path, before: f}
	switch {
	case a.Command == "create" && f.exists:
		return nil, refuse("%s exists already", f.path)
	case a.Command == "create":
		c.after = fileState{path: f.path, exists: true, data: []byte(a.Text), mode: 0o644}
		return edit{c}, nil
	case !f.exists:
		return nil, refuse("no such file: %s", f.path)
	case a.Command == "delete":
		c.after = fileState{path: f.path}
		return edit{c}, nil
	}
	d, err := f.document()
	if err != nil {
		return nil, err
	}
	if a.Command == "replace" {
		err = d.replace(f.path, d.in(a.Old), d.in(a.New))
	} else {
		err = d.insert(f.path, a.Line, d.in(a.Text))
	}
	if err != nil {
		return nil, err
	}
	c.after = fileState{path: f.path, exists: true, data: d.bytes(), mode: f.mode}
	return edit{c}, nil
}

// document returns the file as text; a binary file is refused.
func (f fileState) document() (document, error) {
	if isBinary(f.data) || !utf8.Valid(f.data) {
		return document{}, refuse("%s is not a UTF-8 text file", f.path)
	}
	return parseDocument(f.data), nil
}

func (d *document) replace(path, old, new string) error {
	if old == new {
		return refuse("old and new are the same")
	}
	switch n := strings.Count(d.body, old); n {
	case 0:
		return refuse("old does not occur in %s", path)
	case 1:
		d.body = strings.Replace(d.body, old, new, 1)
		return nil
	default:
		return refuse("old occurs %d times in %s (lines %s); it must occur once", n, path, places(d.body, old))
	}
}

// places lists the lines at which old begins, at most 8 of them.
func places(body, old string) string {
	var at []string
	for line, from := 1, 0; ; {
		i := strings.Index(body[from:], old)
		if i < 0 {
			return strings.Join(at, ", ")
		}
		if len(at) == 8 {
			return strings.Join(at, ", ") + ", ..."
		}
		line += strings.Count(body[from:from+i], "\n")
		at = append(at, fmt.Sprint(line))
		line += strings.Count(old, "\n")
		from += i + len(old)
	}
}

func (d *document) insert(path string, after int, text string) error {
	n := len(lines(d.body))
	if after > n {
		return refuse("no line %d: %s has %s", after, path, plural(n, "line"))
	}
	if text == "" {
		return refuse("text is empty")
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if d.body != "" && !strings.HasSuffix(d.body, "\n") && after == n {
		d.body += "\n"
	}
	at := 0
	for range after {
		at += strings.IndexByte(d.body[at:], '\n') + 1
	}
	d.body = d.body[:at] + text + d.body[at:]
	return nil
}

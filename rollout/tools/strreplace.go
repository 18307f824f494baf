package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

// strReplaceEditor is the editor of SWE-agent and OpenHands, both made after Anthropic's. Paths are absolute. Tabs stay as
// they are in file and edit, where SWE-agent writes spaces in their place.
//
// Viewing a file is a read; the snippet that confirms an edit is none, so that the same edits earn the same navigation
// credit by whatever tool they are made.
type strReplaceEditor struct {
	cfg       *Config
	openHands bool // errors begin with ERROR:, and create makes missing directories
}

const (
	snippetLines = 4 // lines shown around an edit
	clipped      = "<response clipped><NOTE>Only part of this is shown. Find the lines you want with `grep -n` and view them with view_range.</NOTE>"
)

func (strReplaceEditor) Name() string { return "str_replace_editor" }
func (strReplaceEditor) Writes() bool { return true }

type strReplaceArgs struct {
	Command string
	Path    string
	Text    *string `json:"file_text"`
	Old     *string `json:"old_str"`
	New     *string `json:"new_str"`
	Line    *int    `json:"insert_line"`
	Range   []int   `json:"view_range"`
}

func (t strReplaceEditor) Run(ctx context.Context, s *Session, args json.RawMessage) (Result, error) {
	var a strReplaceArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: str_replace_editor", milepost.KindInvalid, err)
	}
	r, err := t.run(ctx, s, a)
	var no refusal
	if asRefusal(err, &no) {
		text := no.text
		if t.openHands {
			text = "ERROR:\n" + text
		}
		return Result{Text: text, Violation: no.violation}, nil
	}
	return r, err
}

func (t strReplaceEditor) run(ctx context.Context, s *Session, a strReplaceArgs) (Result, error) {
	rel, err := inRepository(s, a.Path)
	if err != nil {
		return Result{}, err
	}
	if isDir(s.Repo.Index(), rel) {
		if a.Command != "view" {
			return Result{}, refuse("The path %s is a directory and only the `view` command can be used on directories", a.Path)
		}
		return t.list(s, a, rel)
	}
	if a.Command == "view" {
		return t.view(ctx, s, a, rel)
	}
	f, err := target(ctx, s, rel)
	if err != nil {
		return Result{}, err
	}
	switch {
	case f.exists && a.Command == "create":
		return Result{}, refuse("File already exists at: %s. Cannot overwrite files using command `create`.", a.Path)
	case !f.exists && a.Command != "create":
		return Result{}, refuse("The path %s does not exist. Please provide a valid path.", a.Path)
	}
	switch a.Command {
	case "create":
		return t.create(ctx, s, a, f)
	case "str_replace":
		return t.replace(ctx, s, a, f)
	case "insert":
		return t.insert(ctx, s, a, f)
	}
	return t.undo(ctx, s, a, rel)
}

// inRepository gives an absolute path relative to the repository.
func inRepository(s *Session, p string) (string, error) {
	if !path.IsAbs(p) {
		return "", refuse("The path %s is not an absolute path, it should start with `/`. Maybe you meant %s?", p, path.Join(s.Root, p))
	}
	rel, ok := (shellPlace{root: s.Root}).relative(p)
	if !ok {
		return "", refuse("The path %s lies outside of the repository %s.", p, s.Root)
	}
	clean, why := cleanPath(rel)
	if why != "" {
		return "", refuse("%s", why)
	}
	return clean, nil
}

// list shows a directory two levels deep, hidden entries left out.
func (t strReplaceEditor) list(s *Session, a strReplaceArgs, rel string) (Result, error) {
	if len(a.Range) > 0 {
		return Result{}, refuse("The `view_range` parameter is not allowed when `path` points to a directory.")
	}
	shown := map[string]bool{}
	for f := range s.Repo.Index() {
		if !below(f, rel) {
			continue
		}
		if rel != "." {
			f = strings.TrimPrefix(f, rel+"/")
		}
		parts := strings.Split(f, "/")
		for i, p := range parts[:min(2, len(parts))] {
			if strings.HasPrefix(p, ".") {
				break
			}
			shown[path.Join(a.Path, path.Join(parts[:i+1]...))] = true
		}
	}
	text := strings.Join(append([]string{path.Clean(a.Path)}, sortedKeys(shown)...), "\n")
	return Result{Text: fmt.Sprintf("Here's the files and directories up to 2 levels deep in %s, excluding hidden items:\n%s\n", a.Path, t.clip(text))}, nil
}

func (t strReplaceEditor) view(ctx context.Context, s *Session, a strReplaceArgs, rel string) (Result, error) {
	f, err := readState(ctx, s.Workspace, rel)
	if err != nil {
		return Result{}, err
	}
	if !f.exists {
		return Result{}, refuse("The path %s does not exist. Please provide a valid path.", a.Path)
	}
	d, err := f.document()
	if err != nil {
		return Result{}, err
	}
	all, first := strings.Split(d.body, "\n"), 1
	if a.Range != nil {
		from, to, err := viewRange(a.Range, len(all))
		if err != nil {
			return Result{}, err
		}
		all, first = all[from-1:to], from
	}
	return Result{Text: t.numbered(strings.Join(all, "\n"), a.Path, first), Exposures: read(s.Repo.Index(), rel)}, nil
}

// viewRange checks a view_range against a file of n lines.
func viewRange(r []int, n int) (from, to int, err error) {
	if len(r) != 2 {
		return 0, 0, refuse("Invalid `view_range`. It should be a list of two integers.")
	}
	shown := fmt.Sprintf("[%d, %d]", r[0], r[1])
	switch from, to = r[0], r[1]; {
	case from < 1 || from > n:
		return 0, 0, refuse("Invalid `view_range`: %s. Its first element `%d` should be within the range of lines of the file: [1, %d]", shown, from, n)
	case to > n:
		return 0, 0, refuse("Invalid `view_range`: %s. Its second element `%d` should be smaller than the number of lines in the file: `%d`", shown, to, n)
	case to == -1:
		return from, n, nil
	case to < from:
		return 0, 0, refuse("Invalid `view_range`: %s. Its second element `%d` should be larger or equal than its first `%d`", shown, to, from)
	}
	return from, to, nil
}

func (t strReplaceEditor) create(ctx context.Context, s *Session, a strReplaceArgs, f fileState) (Result, error) {
	if a.Text == nil {
		return Result{}, refuse("Parameter `file_text` is required for command: create")
	}
	if parent := path.Dir(f.path); !t.openHands && parent != "." && !isDir(s.Repo.Index(), parent) {
		if info, err := s.Workspace.Stat(ctx, parent); err != nil || !info.Mode.IsDir() {
			return Result{}, refuse("The parent directory %s does not exist. Please create it first.", path.Dir(a.Path))
		}
	}
	e := edit{{path: f.path, before: f, after: fileState{path: f.path, exists: true, data: []byte(*a.Text), mode: 0o644}}}
	if err := e.carryOut(ctx, s.Workspace); err != nil {
		return Result{}, err
	}
	return Result{Text: "File created successfully at: " + a.Path}, nil
}

func (t strReplaceEditor) replace(ctx context.Context, s *Session, a strReplaceArgs, f fileState) (Result, error) {
	if a.Old == nil || *a.Old == "" {
		return Result{}, refuse("Parameter `old_str` is required for command: str_replace")
	}
	d, err := f.document()
	if err != nil {
		return Result{}, err
	}
	old, with := d.in(*a.Old), ""
	if a.New != nil {
		with = d.in(*a.New)
	}
	switch n := strings.Count(d.body, old); {
	case n == 0:
		return Result{}, refuse("No replacement was performed, old_str `%s` did not appear verbatim in %s.", old, a.Path)
	case n > 1:
		return Result{}, refuse("No replacement was performed. Multiple occurrences of old_str `%s` in lines [%s]. Please ensure it is unique.", old, places(d.body, old))
	case old == with:
		return Result{}, refuse("No replacement was performed, old_str `%s` is the same as new_str `%s`.", old, with)
	}
	at := strings.Count(d.body[:strings.Index(d.body, old)], "\n")
	d.body = strings.Replace(d.body, old, with, 1)
	if err := t.write(ctx, s, f, d); err != nil {
		return Result{}, err
	}
	return Result{Text: t.edited(d.body, a.Path, at, strings.Count(with, "\n"))}, nil
}

func (t strReplaceEditor) insert(ctx context.Context, s *Session, a strReplaceArgs, f fileState) (Result, error) {
	switch {
	case a.Line == nil:
		return Result{}, refuse("Parameter `insert_line` is required for command: insert")
	case a.New == nil:
		return Result{}, refuse("Parameter `new_str` is required for command: insert")
	}
	d, err := f.document()
	if err != nil {
		return Result{}, err
	}
	all := strings.Split(d.body, "\n")
	if *a.Line < 0 || *a.Line > len(all) {
		return Result{}, refuse("Invalid `insert_line` parameter: %d. It should be within the range of lines of the file: [0, %d]", *a.Line, len(all))
	}
	added := strings.Split(d.in(*a.New), "\n")
	d.body = strings.Join(slices.Insert(all, *a.Line, added...), "\n")
	if err := t.write(ctx, s, f, d); err != nil {
		return Result{}, err
	}
	return Result{Text: t.edited(d.body, a.Path, *a.Line, len(added)-1)}, nil
}

// write carries an edit out and remembers it.
func (t strReplaceEditor) write(ctx context.Context, s *Session, f fileState, d document) error {
	e := edit{{path: f.path, before: f, after: fileState{path: f.path, exists: true, data: d.bytes(), mode: f.mode}}}
	if err := e.carryOut(ctx, s.Workspace); err != nil {
		return err
	}
	s.history = append(s.history, e)
	return nil
}

// undo gives the file the content from before the last edit of it, whatever happened to it since.
func (t strReplaceEditor) undo(ctx context.Context, s *Session, a strReplaceArgs, rel string) (Result, error) {
	for i := len(s.history) - 1; i >= 0; i-- {
		e := s.history[i]
		if len(e) != 1 || e[0].path != rel {
			continue
		}
		if err := e.reverse().carryOut(ctx, s.Workspace); err != nil {
			return Result{}, err
		}
		s.history = slices.Delete(slices.Clone(s.history), i, i+1)
		d, err := e[0].before.document()
		if err != nil {
			return Result{}, err
		}
		return Result{Text: fmt.Sprintf("Last edit to %s undone successfully. %s", a.Path, t.numbered(d.body, a.Path, 1))}, nil
	}
	return Result{}, refuse("No edit history found for %s.", a.Path)
}

// edited confirms an edit with the lines around it: line is where it begins, counted from 0, more how many lines it has
// beyond the first.
func (t strReplaceEditor) edited(body, shown string, line, more int) string {
	all := strings.Split(body, "\n")
	from := max(1, line-snippetLines+1)
	to := min(line+snippetLines+more+1, len(all))
	return fmt.Sprintf("The file %s has been edited. %sReview the changes and make sure they are as expected. Edit the file again if necessary.",
		shown, t.numbered(strings.Join(all[from-1:to], "\n"), "a snippet of "+shown, from))
}

// numbered shows text as cat -n does.
func (t strReplaceEditor) numbered(text, of string, first int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Here's the result of running `cat -n` on %s:\n", of)
	for i, line := range strings.Split(t.clip(text), "\n") {
		fmt.Fprintf(&b, "%6d\t%s\n", first+i, line)
	}
	return b.String()
}

// clip leaves room for line numbers and the words around them, so that what is shown keeps its head.
func (t strReplaceEditor) clip(text string) string {
	most := t.cfg.ObservationLimit * 3 / 4
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + clipped
}

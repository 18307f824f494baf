package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// readFile shows a file or a range of its lines, or what the agent changed so far.
type readFile struct{ cfg *Config }

func (readFile) Name() string { return "read_file" }
func (readFile) Writes() bool { return false }

func (t readFile) Run(ctx context.Context, s *Session, args json.RawMessage) (Result, error) {
	var a struct {
		Path, View string
		Start, End int
	}
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: read_file", milepost.KindInvalid, err)
	}
	p := ""
	if a.Path != "" {
		var why string
		if p, why = cleanPath(a.Path); why != "" {
			return Result{Text: why}, nil
		}
		if p == "." && a.View != "" && a.View != "content" {
			p = ""
		}
	}
	switch a.View {
	case "diff":
		return t.diff(ctx, s, p)
	case "status":
		return t.status(s, p), nil
	}
	return t.content(ctx, s, p, a.Start, a.End)
}

func (t readFile) content(ctx context.Context, s *Session, p string, start, end int) (Result, error) {
	if isDir(s.Repo.Index(), p) {
		return Result{Text: p + " is a directory"}, nil
	}
	data, _, err := s.Workspace.ReadFile(ctx, p)
	if milepost.KindOf(err) == milepost.KindNotFound {
		return Result{Text: "no such file: " + p}, nil
	}
	if err != nil {
		return Result{}, err
	}
	if isBinary(data) {
		return Result{Text: fmt.Sprintf("%s is a binary file of %s", p, plural(len(data), "byte"))}, nil
	}
	all := lines(parseDocument(data).body)
	if start == 0 {
		start = 1
	}
	if end == 0 || end > len(all) {
		end = len(all)
	}
	if len(all) == 0 {
		return Result{Text: "(empty file)", Exposures: read(s.Repo.Index(), p)}, nil
	}
	if start > len(all) || end < start {
		return Result{Text: fmt.Sprintf("no lines %d to %d: %s has %s", start, max(end, start), p, plural(len(all), "line"))}, nil
	}
	shown := min(end, start+t.cfg.ReadLines-1)
	var b strings.Builder
	for i, line := range all[start-1 : shown] {
		if t.cfg.LineNumbers {
			fmt.Fprintf(&b, "%d: ", start+i)
		}
		b.WriteString(line)
		b.WriteByte('\n')
	}
	if shown < end {
		fmt.Fprintf(&b, "[lines %d-%d of %d shown]\n", start, shown, len(all))
	}
	return Result{Text: b.String(), Exposures: read(s.Repo.Index(), p)}, nil
}

// read is the exposure of a file whose content was shown. A file outside the tree (a cache) is not worth a mention.
func read(index repo.Index, paths ...string) []milepost.Exposure {
	var out []milepost.Exposure
	for _, p := range paths {
		if _, ok := index[p]; ok {
			out = append(out, milepost.Exposure{Path: p, Level: milepost.ExposureRead, Confidence: "high"})
		}
	}
	return out
}

func (t readFile) diff(ctx context.Context, s *Session, p string) (Result, error) {
	var paths []string
	for _, c := range s.Repo.Delta() {
		if below(c.Path, p) {
			paths = append(paths, c.Path)
		}
	}
	if len(paths) == 0 {
		return Result{Text: "no changes"}, nil
	}
	text, err := s.Repo.Diff(ctx, p)
	if err != nil {
		return Result{}, err
	}
	return Result{Text: text, Exposures: read(s.Repo.Index(), paths...)}, nil
}

// status lists the changed files as git status does: A added, M modified, D deleted.
func (t readFile) status(s *Session, p string) Result {
	var b strings.Builder
	for _, c := range s.Repo.Delta() {
		if !below(c.Path, p) {
			continue
		}
		letter := "M"
		switch {
		case c.Deleted:
			letter = "D"
		case !s.Repo.InBase(c.Path):
			letter = "A"
		}
		fmt.Fprintf(&b, "%s %s\n", letter, c.Path)
	}
	if b.Len() == 0 {
		return Result{Text: "no changes"}
	}
	return Result{Text: b.String()}
}

// below reports whether file is dir, lies below it, or dir is "".
func below(file, dir string) bool {
	return dir == "" || dir == "." || file == dir || strings.HasPrefix(file, dir+"/")
}

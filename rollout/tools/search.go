package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/repo"
)

// search finds text, definitions and files in the tree. Files are taken in the order of their paths; links, binary
// files and files beyond maxSearchFile are passed over.
type search struct{ cfg *Config }

const (
	maxSearchFile = 1 << 20
	maxHitLine    = 200 // bytes shown of one hit
)

func (search) Name() string { return "search" }
func (search) Writes() bool { return false }

func (t search) Run(ctx context.Context, s *Session, args json.RawMessage) (Result, error) {
	var a struct {
		Kind, Query, Path string
		Regex             bool
	}
	if err := json.Unmarshal(args, &a); err != nil {
		return Result{}, milepost.Wrap("tools: search", milepost.KindInvalid, err)
	}
	root := "."
	if a.Path != "" {
		var why string
		if root, why = cleanPath(a.Path); why != "" {
			return Result{Text: why}, nil
		}
	}
	index := s.Repo.Index()
	var files []string
	for _, f := range sortedKeys(index) {
		if below(f, root) {
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return Result{Text: "no such file or directory: " + root}, nil
	}
	if a.Kind == "file" {
		return t.files(files, a.Query), nil
	}
	match, why := matcher(a.Kind, a.Query, a.Regex)
	if why != "" {
		return Result{Text: why}, nil
	}
	return t.lines(ctx, s, files, match)
}

func (t search) files(files []string, query string) Result {
	match := func(f string) bool { return strings.Contains(f, query) }
	if strings.ContainsAny(query, "*?[") {
		if _, err := path.Match(query, ""); err != nil {
			return Result{Text: fmt.Sprintf("%q is no glob: %v", query, err)}
		}
		match = func(f string) bool {
			whole, _ := path.Match(query, f)
			base, _ := path.Match(query, path.Base(f))
			return whole || base
		}
	}
	var h hits
	for _, f := range files {
		if match(f) {
			h.add(f, f, t.cfg.SearchHits)
		}
	}
	return h.result()
}

// matcher returns what a line must satisfy, or why the query is none.
func matcher(kind, query string, regex bool) (match func(string) bool, why string) {
	switch {
	case kind == "symbol":
		re, err := definition(query)
		if err != nil {
			return nil, fmt.Sprintf("%q is no symbol name", query)
		}
		return re.MatchString, ""
	case regex:
		re, err := regexp.Compile(query)
		if err != nil {
			return nil, fmt.Sprintf("%q is no regular expression: %v", query, err)
		}
		return re.MatchString, ""
	case strings.Contains(query, "\n"):
		return nil, "query must be a single line"
	}
	return func(line string) bool { return strings.Contains(line, query) }, ""
}

// definition matches a line that defines the name in one of the common languages: a keyword before it (def, class,
// func, fn, type, interface, ...), a Go method, or an assignment to it at the start of the line. Of a dotted name the
// last part is looked for.
func definition(name string) (*regexp.Regexp, error) {
	name = name[strings.LastIndex(name, ".")+1:]
	if name == "" || strings.ContainsAny(name, " \t\n") {
		return nil, fmt.Errorf("not a name")
	}
	q := regexp.QuoteMeta(name)
	const keywords = `def|class|func|function|fn|type|struct|interface|enum|trait|impl|module|macro_rules!|const|var|let|static|#define`
	return regexp.Compile(`^\s*(?:[\w@]+\s+)*(?:` + keywords + `)\s+(?:\([^)]*\)\s*)?` + q + `(?:\W|$)` +
		`|^` + q + `\s*(?::[^=]+)?=(?:[^=]|$)`)
}

func (t search) lines(ctx context.Context, s *Session, files []string, match func(string) bool) (Result, error) {
	var h hits
	index := s.Repo.Index()
	for _, f := range files {
		if e := index[f]; e.Mode == repo.ModeSymlink || e.Mode == repo.ModeSubmodule || e.Size > maxSearchFile {
			continue
		}
		data, _, err := s.Workspace.ReadFile(ctx, f)
		if isMistake(err) {
			continue // tracked below a cache directory and gone from disk, or the like
		}
		if err != nil {
			return Result{}, err
		}
		if len(data) > maxSearchFile || isBinary(data) {
			continue
		}
		for i, line := range lines(parseDocument(data).body) {
			if match(line) {
				h.add(f, fmt.Sprintf("%s:%d: %s", f, i+1, cutLine(line, maxHitLine)), t.cfg.SearchHits)
			}
		}
	}
	return h.result(), nil
}

// hits collects what a search found; only what is shown is an exposure.
type hits struct {
	shown     []string
	exposures []milepost.Exposure
	more      int
}

func (h *hits) add(file, text string, limit int) {
	if len(h.shown) == limit {
		h.more++
		return
	}
	h.shown = append(h.shown, text)
	if n := len(h.exposures); n == 0 || h.exposures[n-1].Path != file {
		h.exposures = append(h.exposures, milepost.Exposure{Path: file, Level: milepost.ExposureSearch, Confidence: "high"})
	}
}

func (h *hits) result() Result {
	if len(h.shown) == 0 {
		return Result{Text: "no matches"}
	}
	text := strings.Join(h.shown, "\n")
	if h.more > 0 {
		text += fmt.Sprintf("\n[%d more not shown]", h.more)
	}
	return Result{Text: text, Exposures: h.exposures}
}

package generate

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/pypkg"
)

//go:embed specify.py
var specifyProgram string

// specification is what an agent is told, and what it must not be told.
type specification struct {
	text   string
	names  int        // public functions, methods and classes
	bodies [][]string // lines of each function body, stripped
	docs   []string   // documents that are quoted
	cut    bool       // documentation was left out for its length
}

// specify writes the specification of a package from its documentation and its interface.
func specify(ctx context.Context, cfg Config, p *parts) (*specification, error) {
	const op = "generate: specify"
	var found struct {
		Interface string
		Bodies    [][]string
		Names     int
	}
	request := map[string]any{"files": texts(p.code), "tests": texts(p.tests), "roots": p.module}
	if err := pypkg.Ask(ctx, op, cfg.Package, cfg.Python, specifyProgram, request, &found); err != nil {
		return nil, err
	}
	s := &specification{names: found.Names, bodies: found.Bodies}
	s.text = s.write(cfg, p, found.Interface)
	return s, nil
}

func texts(files []benchmarks.File) map[string]string {
	out := map[string]string{}
	for _, f := range files {
		out[f.Path] = string(f.Data)
	}
	return out
}

// write puts the specification together.
func (s *specification) write(cfg Config, p *parts, iface string) string {
	name, version, _ := strings.Cut(cfg.Package, "==")
	var b strings.Builder
	fmt.Fprintf(&b, "# %s %s\n\nWrite this Python package from nothing, in the places named below. Hidden tests judge it; each counts by itself.\n", name, version)
	if docs := s.documentation(cfg, p.docs); docs != "" {
		b.WriteString("\n## Documentation\n" + docs)
	}
	b.WriteString("\n## Interface\n\nEvery `...` is to be written.\n\n" + iface)
	return b.String()
}

// documentation quotes the documents that fit and hold no body, the README first.
func (s *specification) documentation(cfg Config, docs []benchmarks.File) string {
	docs = slices.Clone(docs)
	slices.SortFunc(docs, func(a, b benchmarks.File) int {
		if x, y := strings.Contains(a.Path, "/"), strings.Contains(b.Path, "/"); x != y {
			if x {
				return 1
			}
			return -1
		}
		return strings.Compare(a.Path, b.Path)
	})
	var b strings.Builder
	for _, f := range docs {
		text := strings.TrimSpace(string(f.Data))
		if text == "" || s.tells(text) != "" {
			continue
		}
		if room := cfg.MaxDocs - b.Len(); len(text) > room {
			s.cut = true
			if room < 500 {
				break
			}
			text = strings.ToValidUTF8(text[:room], "") + "\n[cut]"
		}
		s.docs = append(s.docs, f.Path)
		fmt.Fprintf(&b, "\n### %s\n\n%s\n", f.Path, text)
	}
	return b.String()
}

// window is how many lines of a body in a row tell it.
const window = 3

// tells finds lines of a function body in a text, window of them in a row; "" where there are none. Lines of less than
// four characters, brackets mostly, do not count.
func (s *specification) tells(text string) string {
	if !utf8.ValidString(text) {
		return ""
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) > 3 {
			lines = append(lines, line)
		}
	}
	have := map[string]bool{}
	for i := range lines {
		have[strings.Join(lines[i:min(i+window, len(lines))], "\n")] = true
	}
	for _, body := range s.bodies {
		body = slices.DeleteFunc(slices.Clone(body), func(l string) bool { return len(l) <= 3 })
		for i := range max(len(body)-window+1, 0) {
			if w := strings.Join(body[i:i+window], "\n"); have[w] {
				return w
			}
		}
	}
	return ""
}

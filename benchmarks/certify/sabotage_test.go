package certify

import (
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

// TestSabotageOfGo: what is put into Go files compiles in form, and nothing of Python is tried on a tree without any.
func TestSabotageOfGo(t *testing.T) {
	tree := map[string]string{"go.mod": "module m\n", "m.go": "// Package m.\npackage m\n\nimport \"fmt\"\n\n// F prints.\nfunc F() { fmt.Println() }\n",
		"m_test.go": "package m\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) { t.Fatal() }\n"}
	src := &source{task: &milepost.Task{RelevantFiles: []string{"m.go"}, Tests: []string{"m::TestF", "m::TestF/a \"b\""}, Protected: []string{"m_test.go"}},
		list: []string{"go.mod", "m.go", "m_test.go"}, read: func(p string) (string, bool) { text, ok := tree[p]; return text, ok }}
	var tried []string
	for _, s := range sabotages {
		made := s.make(src)
		if len(made) == 0 {
			continue
		}
		tried = append(tried, s.name)
		for p, text := range made {
			if _, err := parser.ParseFile(token.NewFileSet(), p, text, 0); err != nil {
				t.Errorf("%s: %v\n%s", s.name, err, text)
			}
		}
		if patch := src.patch(made); (patch == "") != (s.name == "tests edited") {
			t.Errorf("%s: patch %q", s.name, patch)
		}
	}
	if want := []string{"tests edited", "exit in package", "exit at import", "results forged"}; !slices.Equal(tried, want) {
		t.Errorf("tried %v, want %v", tried, want)
	}
}

func TestFutureImportsStayFirst(t *testing.T) {
	if got := beforeCode("X\n", "\"\"\"Doc.\"\"\"\nfrom __future__ import annotations\nimport os\n"); !strings.HasSuffix(got, "annotations\nX\nimport os\n") {
		t.Errorf("%q", got)
	}
}

package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/memory"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

var sample = map[string]string{
	"a.py":          "def add(a, b):\n    return a - b\n\n\nclass Adder:\n    limit = 3\n",
	"pkg/b.py":      "from a import add\nLIMIT: int = 3\n",
	"pkg/é 日本.txt":  "naïve\n",
	"crlf.txt":      "one\r\ntwo\r\nthree\r\n",
	"mixed.txt":     "one\r\ntwo\n",
	"bin.dat":       "\x00\x01add",
	"latin.txt":     "caf\xe9\n",
	"empty.txt":     "",
	"noeol.txt":     "x\ny",
	"tests/test.py": "import a\n",
}

func exposed(r Result) string {
	var out []string
	for _, e := range r.Exposures {
		out = append(out, fmt.Sprintf("%s %s %s", e.Path, e.Level, e.Confidence))
	}
	return strings.Join(out, "; ")
}

func TestSearch(t *testing.T) {
	b := newBench(t, sample, nil)
	for _, c := range []struct{ args, want, exposed string }{
		{`{"query":"add"}`, "a.py:1: def add(a, b):\npkg/b.py:1: from a import add", "a.py search high; pkg/b.py search high"},
		{`{"kind":"text","query":"a - b"}`, "a.py:2:     return a - b", "a.py search high"},
		{`{"query":"add","path":"pkg"}`, "pkg/b.py:1: from a import add", "pkg/b.py search high"},
		{`{"query":"add","path":"./pkg/b.py"}`, "pkg/b.py:1: from a import add", "pkg/b.py search high"},
		{`{"query":"^c.*o","regex":true}`, "no matches", ""},
		{`{"query":"^o.e$","regex":true}`, "crlf.txt:1: one", "crlf.txt search high"},
		{`{"query":"(","regex":true}`, "\"(\" is no regular expression: error parsing regexp: missing closing ): `(`", ""},
		{`{"query":"a\nb"}`, "query must be a single line", ""},
		{`{"kind":"symbol","query":"add"}`, "a.py:1: def add(a, b):", "a.py search high"},
		{`{"kind":"symbol","query":"a.Adder"}`, "a.py:5: class Adder:", "a.py search high"},
		{`{"kind":"symbol","query":"LIMIT"}`, "pkg/b.py:2: LIMIT: int = 3", "pkg/b.py search high"},
		{`{"kind":"symbol","query":"ad"}`, "no matches", ""},
		{`{"kind":"symbol","query":"two words"}`, `"two words" is no symbol name`, ""},
		{`{"kind":"file","query":"b.py"}`, "pkg/b.py", "pkg/b.py search high"},
		{`{"kind":"file","query":"*.py"}`, "a.py\npkg/b.py\ntests/test.py", "a.py search high; pkg/b.py search high; tests/test.py search high"},
		{`{"kind":"file","query":"日本"}`, "pkg/é 日本.txt", "pkg/é 日本.txt search high"},
		{`{"kind":"file","query":"[x"}`, `"[x" is no glob: syntax error in pattern`, ""},
		{`{"query":"x","path":"nowhere"}`, "no such file or directory: nowhere", ""},
		{`{"query":"x","path":"../x"}`, "path leads out of the repository: ../x", ""},
		{`{"query":"x","path":"/etc"}`, "path must be relative to the repository root: /etc", ""},
	} {
		r := b.says("search", c.args, c.want)
		if got := exposed(r); got != c.exposed {
			t.Errorf("%s exposes %q, want %q", c.args, got, c.exposed)
		}
	}
	b = newBench(t, sample, func(c *Config) { c.SearchHits = 1 })
	r := b.says("search", `{"query":"add"}`, "a.py:1: def add(a, b):\n[1 more not shown]")
	if exposed(r) != "a.py search high" {
		t.Errorf("a hit that is not shown is exposed: %s", exposed(r))
	}
}

func TestReadFile(t *testing.T) {
	b := newBench(t, sample, nil)
	for _, c := range []struct{ args, want, exposed string }{
		{`{"path":"pkg/b.py"}`, "from a import add\nLIMIT: int = 3\n", "pkg/b.py read high"},
		{`{"path":"a.py","start":2,"end":2}`, "    return a - b\n", "a.py read high"},
		{`{"path":"a.py","start":5}`, "class Adder:\n    limit = 3\n", "a.py read high"},
		{`{"path":"a.py","start":5,"end":99}`, "class Adder:\n    limit = 3\n", "a.py read high"},
		{`{"path":"a.py","start":7}`, "no lines 7 to 7: a.py has 6 lines", ""},
		{`{"path":"a.py","start":3,"end":2}`, "no lines 3 to 3: a.py has 6 lines", ""},
		{`{"path":"crlf.txt"}`, "one\ntwo\nthree\n", "crlf.txt read high"},
		{`{"path":"mixed.txt"}`, "one\r\ntwo\n", "mixed.txt read high"},
		{`{"path":"noeol.txt","view":"content"}`, "x\ny\n", "noeol.txt read high"},
		{`{"path":"empty.txt"}`, "(empty file)", "empty.txt read high"},
		{`{"path":"latin.txt"}`, "caf\ufffd\n", "latin.txt read high"},
		{`{"path":"bin.dat"}`, "bin.dat is a binary file of 5 bytes", ""},
		{`{"path":"pkg/é 日本.txt"}`, "naïve\n", "pkg/é 日本.txt read high"},
		{`{"path":"pkg"}`, "pkg is a directory", ""},
		{`{"path":"nope.py"}`, "no such file: nope.py", ""},
		{`{"path":"pkg/../../x"}`, "path leads out of the repository: pkg/../../x", ""},
		{`{"view":"status"}`, "no changes", ""},
		{`{"view":"diff"}`, "no changes", ""},
	} {
		r := b.says("read_file", c.args, c.want)
		if got := exposed(r); got != c.exposed {
			t.Errorf("%s exposes %q, want %q", c.args, got, c.exposed)
		}
	}
	b.says("edit_file", `{"command":"create","path":"new.py","text":"1\n"}`, "ok")
	b.says("edit_file", `{"command":"delete","path":"a.py"}`, "ok")
	b.says("edit_file", `{"command":"replace","path":"pkg/b.py","old":"3","new":"4"}`, "ok")
	b.says("read_file", `{"view":"status"}`, "D a.py\nA new.py\nM pkg/b.py\n")
	b.says("read_file", `{"view":"status","path":"pkg"}`, "M pkg/b.py\n")
	r := b.says("read_file", `{"view":"diff","path":"pkg/b.py"}`, "diff of pkg/b.py")
	if exposed(r) != "pkg/b.py read high" {
		t.Errorf("diff exposes %q", exposed(r))
	}
	b.says("read_file", `{"view":"diff","path":"."}`, "diff of ")

	b = newBench(t, sample, func(c *Config) { c.LineNumbers, c.ReadLines = true, 2 })
	b.says("read_file", `{"path":"a.py","start":2}`, "2:     return a - b\n3: \n[lines 2-3 of 6 shown]\n")
}

func TestEditFile(t *testing.T) {
	b := newBench(t, sample, nil)
	b.says("edit_file", `{"command":"replace","path":"a.py","old":"a - b","new":"a + b"}`, "ok")
	b.file("a.py", strings.Replace(sample["a.py"], "a - b", "a + b", 1))
	b.says("edit_file", `{"command":"replace","path":"a.py","old":"a - b","new":"a + b"}`, "old does not occur in a.py")
	b.says("edit_file", `{"command":"replace","path":"a.py","old":"add","new":"add"}`, "old and new are the same")
	b.says("edit_file", `{"command":"replace","path":"a.py","old":"a","new":"b"}`, "old occurs 4 times in a.py (lines 1, 1, 2, 5); it must occur once")
	b.says("edit_file", `{"command":"replace","path":"x.py","old":"a","new":"b"}`, "no such file: x.py")
	b.says("edit_file", `{"command":"replace","path":"pkg","old":"a","new":"b"}`, "pkg is a directory")
	b.says("edit_file", `{"command":"replace","path":"bin.dat","old":"add","new":"b"}`, "bin.dat is not a UTF-8 text file")
	b.says("edit_file", `{"command":"replace","path":"latin.txt","old":"caf","new":"b"}`, "latin.txt is not a UTF-8 text file")
	b.says("edit_file", `{"command":"replace","path":"crlf.txt","old":"one\ntwo","new":"1\n2\r\n2b"}`, "ok")
	b.file("crlf.txt", "1\r\n2\r\n2b\r\nthree\r\n")
	b.says("edit_file", `{"command":"replace","path":"mixed.txt","old":"one\r\ntwo","new":"x"}`, "ok")
	b.file("mixed.txt", "x\n")
	b.says("edit_file", `{"command":"replace","path":"pkg/é 日本.txt","old":"ï","new":"i"}`, "ok")
	b.file("pkg/é 日本.txt", "naive\n")

	b.says("edit_file", `{"command":"insert","path":"noeol.txt","line":2,"text":"z"}`, "ok")
	b.file("noeol.txt", "x\ny\nz\n")
	b.says("edit_file", `{"command":"insert","path":"noeol.txt","line":0,"text":"w\n"}`, "ok")
	b.says("edit_file", `{"command":"insert","path":"noeol.txt","line":2,"text":"xx\nxy"}`, "ok")
	b.file("noeol.txt", "w\nx\nxx\nxy\ny\nz\n")
	b.says("edit_file", `{"command":"insert","path":"noeol.txt","line":7,"text":"q"}`, "no line 7: noeol.txt has 6 lines")
	b.says("edit_file", `{"command":"insert","path":"noeol.txt","line":1,"text":""}`, "text is empty")
	b.says("edit_file", `{"command":"insert","path":"empty.txt","line":0,"text":"first"}`, "ok")
	b.file("empty.txt", "first\n")
	b.says("edit_file", `{"command":"insert","path":"crlf.txt","line":1,"text":"a\nb"}`, "ok")
	b.file("crlf.txt", "1\r\na\r\nb\r\n2\r\n2b\r\nthree\r\n")

	b.says("edit_file", `{"command":"create","path":"a.py","text":""}`, "a.py exists already")
	b.says("edit_file", `{"command":"create","path":"new/deep/c.py","text":"c"}`, "ok")
	b.file("new/deep/c.py", "c")
	b.says("edit_file", `{"command":"create","path":"a.py/x","text":"c"}`, "error: "+underFile(b))
	b.says("edit_file", `{"command":"delete","path":"new"}`, "new is a directory")
	b.says("edit_file", `{"command":"delete","path":"new/deep/c.py"}`, "ok")
	b.file("new/deep/c.py", "")
	b.says("edit_file", `{"command":"delete","path":"new/deep/c.py"}`, "no such file: new/deep/c.py")
	r := b.says("edit_file", `{"command":"create","path":".git/hooks/x","text":""}`, ".git/hooks/x is git's own data and may not be changed")
	if r.Violation != milepost.ViolationHead {
		t.Errorf("violation %q", r.Violation)
	}
	if err := b.box.Symlink(context.Background(), "a.py", "link.py"); err != nil {
		t.Fatal(err)
	}
	b.says("edit_file", `{"command":"delete","path":"link.py"}`, "link.py is a symbolic link; edit the file it leads to")
}

// underFile is what the workspace says of a path below a file.
func underFile(b *bench) string {
	_, _, err := b.box.ReadFile(context.Background(), "a.py/x")
	return toolcall.Why(err)
}

func TestUndo(t *testing.T) {
	b := newBench(t, sample, nil)
	b.says("edit_file", `{"command":"undo"}`, "nothing to undo")
	b.says("edit_file", `{"command":"replace","path":"crlf.txt","old":"two","new":"2"}`, "ok")
	b.says("edit_file", `{"command":"create","path":"n.py","text":"n"}`, "ok")
	b.says("edit_file", `{"command":"delete","path":"bin.dat"}`, "ok")
	b.says("edit_file", `{"command":"undo"}`, "ok")
	b.file("bin.dat", sample["bin.dat"])
	b.says("edit_file", `{"command":"undo"}`, "ok")
	b.file("n.py", "")
	if err := b.box.WriteFile(context.Background(), "crlf.txt", []byte("else"), 0); err != nil {
		t.Fatal(err)
	}
	b.says("edit_file", `{"command":"undo"}`, "crlf.txt has changed since the last edit; nothing undone")
	if err := b.box.WriteFile(context.Background(), "crlf.txt", []byte("one\r\n2\r\nthree\r\n"), 0); err != nil {
		t.Fatal(err)
	}
	b.says("edit_file", `{"command":"undo"}`, "ok")
	b.file("crlf.txt", sample["crlf.txt"])
	b.says("edit_file", `{"command":"undo"}`, "nothing to undo")

	mark := b.session.Mark()
	b.says("edit_file", `{"command":"create","path":"n.py","text":"n"}`, "ok")
	b.session.Rewind(mark)
	b.says("edit_file", `{"command":"undo"}`, "nothing to undo")
}

func TestBash(t *testing.T) {
	b := newBench(t, sample, func(c *Config) { c.BashTimeout = 50 * time.Millisecond })
	for _, c := range []struct {
		program memory.Program
		want    string
	}{
		{func(_ context.Context, c *memory.Call) int { return 0 }, "(no output)"},
		{func(_ context.Context, c *memory.Call) int {
			fmt.Fprint(c.Stdout, "out\n")
			fmt.Fprint(c.Stderr, "err\n")
			return 3
		}, "out\nerr\n[exit 3]"},
		{func(_ context.Context, c *memory.Call) int { fmt.Fprint(c.Stdout, strings.Join(c.Argv, "|")); return 0 }, "bash|-c|run it"},
		{func(ctx context.Context, c *memory.Call) int { <-ctx.Done(); return 1 }, "[killed after 50ms]"},
		{func(_ context.Context, c *memory.Call) int { fmt.Fprint(c.Stdout, "\xff"); return 0 }, "\ufffd"},
	} {
		b.program = c.program
		b.says("execute_bash", `{"command":"run it"}`, c.want)
	}
	b.says("execute_bash", `{"command":"a\u0000b"}`, "error: argv[2] contains a NUL byte")
	b.program = func(_ context.Context, c *memory.Call) int { fmt.Fprint(c.Stdout, "x"); return 0 }
	if got := exposed(b.run("execute_bash", `{"command":"cat a.py"}`)); got != "a.py read high" {
		t.Errorf("exposed %q", got)
	}
	if r := b.says("submit", `{}`, "submitted"); !r.Submit {
		t.Error("submit does not submit")
	}
}

func TestCheck(t *testing.T) {
	b := newBench(t, nil, func(c *Config) { c.Names = []string{"read_file", "edit_file", "search", "submit"} })
	for _, c := range []struct{ tool, args, want string }{
		{"execute_bash", `{}`, `unknown tool "execute_bash"; the tools are read_file, edit_file, search, submit`},
		{"read_file", `{}`, "read_file: missing property 'path'"},
		{"read_file", `{"path":7}`, "read_file: path: got number, want string"},
		{"read_file", `{"path":"a","start":0}`, "read_file: start: minimum: got 0, want 1"},
		{"read_file", `{"path":"a","start":1.5}`, "read_file: start: got number, want integer"},
		{"read_file", `{"path":"a","lines":3}`, "read_file: additional properties 'lines' not allowed"},
		{"read_file", `{"view":"diff","start":3}`, "read_file: start: not allowed here"},
		{"edit_file", `{"path":"a"}`, "edit_file: missing property 'command'"},
		{"edit_file", `{"command":"replace","path":"a"}`, "edit_file: missing properties 'old', 'new'"},
		{"edit_file", `{"command":"move"}`, "edit_file: command: value must be one of 'replace', 'insert', 'create', 'delete', 'apply_patch', 'undo'"},
		{"search", `{"query":""}`, "search: query: minLength: got 0, want 1"},
		{"submit", `{"x":1}`, "submit: additional properties 'x' not allowed"},
		{"submit", `{}`, ""},
	} {
		if got := b.set.Check(toolcall.Call{Name: c.tool, Arguments: json.RawMessage(c.args)}); got != c.want {
			t.Errorf("%s %s\ngot  %s\nwant %s", c.tool, c.args, got, c.want)
		}
	}
}

func TestConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`names: "grep" is not one of search`:   func(c *Config) { c.Names = []string{"grep"} },
		`names: "submit" is there twice`:       func(c *Config) { c.Names = []string{"submit", "submit"} },
		"names: submit is missing":             func(c *Config) { c.Names = []string{"search"} },
		`descriptions: "x" is not one of`:      func(c *Config) { c.Descriptions = map[string]string{"x": ""} },
		"read_lines: 0 is not at least 1":      func(c *Config) { c.ReadLines = 0 },
		"search_hits: 0 is not at least 1":     func(c *Config) { c.SearchHits = 0 },
		"observation_limit: 3 is not at least": func(c *Config) { c.ObservationLimit = 3 },
		"shell: is empty":                      func(c *Config) { c.Shell = "" },
		"bash_timeout: 0s is not positive":     func(c *Config) { c.BashTimeout = 0 },
	} {
		cfg := Default()
		change(&cfg)
		_, err := New(KitMilepost, cfg)
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	cfg := Default()
	cfg.Names, cfg.Descriptions = []string{"submit", "search"}, map[string]string{"search": ""}
	set, err := New(KitMilepost, cfg)
	if err != nil {
		t.Fatal(err)
	}
	specs := set.Specs()
	if len(specs) != 2 || specs[0].Name != "submit" || specs[0].Description == "" || specs[1].Description != "" {
		t.Errorf("specs %+v", specs)
	}
	var schema map[string]any
	if err := json.Unmarshal(specs[1].Parameters, &schema); err != nil || schema["description"] != nil || schema["type"] != "object" {
		t.Errorf("parameters %s (%v)", specs[1].Parameters, err)
	}
	if got := reflect.ValueOf(set.tools).Len(); got != 2 {
		t.Errorf("%d tools", got)
	}
}

func TestBound(t *testing.T) {
	b := newBench(t, nil, func(c *Config) { c.ObservationLimit = 200 })
	long := strings.Repeat("é日", 500)
	got := b.set.Bound(long)
	if len(got) > 200 || !utf8.ValidString(got) || !strings.Contains(got, " bytes cut ...]") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
	if got := b.set.Bound(""); got != "(empty)" {
		t.Errorf("empty: %q", got)
	}
	if got := b.set.Bound("a\xffb"); got != "a\ufffdb" {
		t.Errorf("invalid: %q", got)
	}
}

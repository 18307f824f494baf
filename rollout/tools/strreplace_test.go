package tools

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/env/memory"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

// newKitBench is a bench with another kit's tools, its repository at /repo.
func newKitBench(t *testing.T, kit string, files map[string]string) *bench {
	t.Helper()
	b := newBench(t, files, nil)
	var err error
	if b.set, err = New(kit, Default()); err != nil {
		t.Fatal(err)
	}
	b.session.Root = "/repo"
	return b
}

func TestStrReplaceEditor(t *testing.T) {
	b := newKitBench(t, KitSWEAgent, map[string]string{"a.py": "one\ntwo\nthree\n", "tab.go": "func f() {\n\treturn\n}\n", "crlf.txt": "x\r\ny\r\n",
		"pkg/b.py": "B\n", "pkg/deep/er/c.py": "C\n", ".hidden/h": "h\n", "bin": "\x00"})
	ok := func(args, want string) Result {
		t.Helper()
		r := b.run("str_replace_editor", args)
		if got := strings.TrimPrefix(r.Text, "OBSERVATION:\n"); got != want {
			t.Errorf("%s\ngot  %q\nwant %q", args, got, want)
		}
		return r
	}
	view := func(of, body string) string { return "Here's the result of running `cat -n` on " + of + ":\n" + body }
	r := ok(`{"command":"view","path":"/repo/a.py"}`, view("/repo/a.py", "     1\tone\n     2\ttwo\n     3\tthree\n     4\t\n"))
	if exposed(r) != "a.py read high" {
		t.Errorf("view exposes %s", exposed(r))
	}
	ok(`{"command":"view","path":"/repo/a.py","view_range":[2,-1]}`, view("/repo/a.py", "     2\ttwo\n     3\tthree\n     4\t\n"))
	ok(`{"command":"view","path":"/repo"}`, "Here's the files and directories up to 2 levels deep in /repo, excluding hidden items:\n"+
		"/repo\n/repo/a.py\n/repo/bin\n/repo/crlf.txt\n/repo/pkg\n/repo/pkg/b.py\n/repo/pkg/deep\n/repo/tab.go\n")
	r = ok(`{"command":"str_replace","path":"/repo/a.py","old_str":"two","new_str":"2\n2.5"}`, "The file /repo/a.py has been edited. "+
		view("a snippet of /repo/a.py", "     1\tone\n     2\t2\n     3\t2.5\n     4\tthree\n     5\t\n")+
		"Review the changes and make sure they are as expected. Edit the file again if necessary.")
	if len(r.Exposures) > 0 {
		t.Errorf("an edit exposes %s", exposed(r))
	}
	b.file("a.py", "one\n2\n2.5\nthree\n")
	b.run("str_replace_editor", `{"command":"insert","path":"/repo/a.py","insert_line":1,"new_str":"1.5"}`)
	b.file("a.py", "one\n1.5\n2\n2.5\nthree\n")
	ok(`{"command":"undo_edit","path":"/repo/a.py"}`, "Last edit to /repo/a.py undone successfully. "+view("/repo/a.py", "     1\tone\n     2\t2\n     3\t2.5\n     4\tthree\n     5\t\n"))
	b.run("str_replace_editor", `{"command":"undo_edit","path":"/repo/a.py"}`)
	b.file("a.py", "one\ntwo\nthree\n")
	ok(`{"command":"undo_edit","path":"/repo/a.py"}`, "No edit history found for /repo/a.py.")
	b.run("str_replace_editor", `{"command":"str_replace","path":"/repo/tab.go","old_str":"\treturn\n"}`)
	b.file("tab.go", "func f() {\n}\n") // tabs stay, new_str left out removes
	b.run("str_replace_editor", `{"command":"str_replace","path":"/repo/crlf.txt","old_str":"x\ny","new_str":"z"}`)
	b.file("crlf.txt", "z\r\n")
	ok(`{"command":"create","path":"/repo/pkg/n.py","file_text":"N\n"}`, "File created successfully at: /repo/pkg/n.py")
	b.file("pkg/n.py", "N\n")

	for args, want := range map[string]string{
		`{"command":"view","path":"a.py"}`:                                              "The path a.py is not an absolute path, it should start with `/`. Maybe you meant /repo/a.py?",
		`{"command":"view","path":"/etc/passwd"}`:                                       "The path /etc/passwd lies outside of the repository /repo.",
		`{"command":"view","path":"/repo/../etc/passwd"}`:                               "The path /repo/../etc/passwd lies outside of the repository /repo.",
		`{"command":"view","path":"/repo/no.py"}`:                                       "The path /repo/no.py does not exist. Please provide a valid path.",
		`{"command":"view","path":"/repo/pkg","view_range":[1,2]}`:                      "The `view_range` parameter is not allowed when `path` points to a directory.",
		`{"command":"view","path":"/repo/a.py","view_range":[1]}`:                       "Invalid `view_range`. It should be a list of two integers.",
		`{"command":"view","path":"/repo/a.py","view_range":[9,10]}`:                    "Invalid `view_range`: [9, 10]. Its first element `9` should be within the range of lines of the file: [1, 4]",
		`{"command":"view","path":"/repo/a.py","view_range":[1,10]}`:                    "Invalid `view_range`: [1, 10]. Its second element `10` should be smaller than the number of lines in the file: `4`",
		`{"command":"view","path":"/repo/a.py","view_range":[3,2]}`:                     "Invalid `view_range`: [3, 2]. Its second element `2` should be larger or equal than its first `3`",
		`{"command":"view","path":"/repo/bin"}`:                                         "bin is not a UTF-8 text file",
		`{"command":"create","path":"/repo/a.py","file_text":""}`:                       "File already exists at: /repo/a.py. Cannot overwrite files using command `create`.",
		`{"command":"create","path":"/repo/new/x.py","file_text":""}`:                   "The parent directory /repo/new does not exist. Please create it first.",
		`{"command":"create","path":"/repo/y.py"}`:                                      "Parameter `file_text` is required for command: create",
		`{"command":"create","path":"/repo/pkg","file_text":""}`:                        "The path /repo/pkg is a directory and only the `view` command can be used on directories",
		`{"command":"str_replace","path":"/repo/a.py"}`:                                 "Parameter `old_str` is required for command: str_replace",
		`{"command":"str_replace","path":"/repo/a.py","old_str":"zz","new_str":"y"}`:    "No replacement was performed, old_str `zz` did not appear verbatim in /repo/a.py.",
		`{"command":"str_replace","path":"/repo/a.py","old_str":"e\n","new_str":"y"}`:   "No replacement was performed. Multiple occurrences of old_str `e\n` in lines [1, 3]. Please ensure it is unique.",
		`{"command":"str_replace","path":"/repo/a.py","old_str":"two","new_str":"two"}`: "No replacement was performed, old_str `two` is the same as new_str `two`.",
		`{"command":"insert","path":"/repo/a.py","new_str":"x"}`:                        "Parameter `insert_line` is required for command: insert",
		`{"command":"insert","path":"/repo/a.py","insert_line":1}`:                      "Parameter `new_str` is required for command: insert",
		`{"command":"insert","path":"/repo/a.py","insert_line":9,"new_str":"x"}`:        "Invalid `insert_line` parameter: 9. It should be within the range of lines of the file: [0, 4]",
		`{"command":"create","path":"/repo/.git/x","file_text":""}`:                     ".git/x is git's own data and may not be changed",
	} {
		ok(args, want)
	}
	hands := newKitBench(t, KitOpenHands, map[string]string{"a.py": "one\n"})
	hands.says("str_replace_editor", `{"command":"create","path":"/repo/new/x.py","file_text":"X\n"}`, "File created successfully at: /repo/new/x.py")
	hands.file("new/x.py", "X\n")
	hands.says("str_replace_editor", `{"command":"view","path":"/repo/no.py"}`, "ERROR:\nThe path /repo/no.py does not exist. Please provide a valid path.")
}

// A long file is clipped at its end and stays within the limit of observations.
func TestStrReplaceEditorClips(t *testing.T) {
	b := newKitBench(t, KitSWEAgent, map[string]string{"long.py": strings.Repeat("x = 1 # a line of some length\n", 2000)})
	text := b.run("str_replace_editor", `{"command":"view","path":"/repo/long.py"}`).Text
	if len(text) > Default().ObservationLimit || !strings.Contains(text, "<response clipped><NOTE>") || strings.Contains(text, "bytes cut") {
		t.Errorf("%d bytes, ending %q", len(text), text[len(text)-200:])
	}
}

func TestMiniBash(t *testing.T) {
	b := newKitBench(t, KitBash, map[string]string{"a.py": "one\n"})
	var out string
	code := 0
	b.program = func(_ context.Context, c *memory.Call) int {
		fmt.Fprint(c.Stdout, out)
		return code
	}
	for _, c := range []struct {
		out    string
		code   int
		want   string
		submit bool
	}{
		{"one\n", 0, "<returncode>0</returncode>\n<output>\none\n</output>", false},
		{"", 1, "<returncode>1</returncode>\n<output>\n</output>", false},
		{"\n COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT \ndiff\n", 0, "", true},
		{"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 1, "", false},
		{"x\nCOMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 0, "", false},
		{"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT!\n", 0, "", false},
		{strings.Repeat("é", 9999), 0, "<returncode>0</returncode>\n<output>\n" + strings.Repeat("é", 9999) + "</output>", false},
		{strings.Repeat("a", 5000) + "middle" + strings.Repeat("b", 5000), 0, "", false},
	} {
		out, code = c.out, c.code
		r := b.run("bash", `{"command":"x"}`)
		if (c.want != "" && len(c.want) < 15000 && r.Text != c.want) || r.Submit != c.submit {
			t.Errorf("%.60q: submit %v, %.300q", c.out, r.Submit, r.Text)
		}
		if strings.Contains(c.out, "middle") && (!strings.Contains(r.Text, "</warning><output_head>\n"+strings.Repeat("a", 5000)+"\n</output_head>\n<elided_chars>\n6 characters elided\n</elided_chars>\n<output_tail>\n"+strings.Repeat("b", 5000)+"\n</output_tail>")) {
			t.Errorf("elided: %.400q", r.Text)
		}
	}
}

// Each kit's tools are told by name, and a subset must keep the one that hands in.
func TestKits(t *testing.T) {
	for _, kit := range Kits() {
		set, err := New(kit, Default())
		if err != nil {
			t.Fatal(err)
		}
		for i, spec := range set.Specs() {
			if spec.Name != Names(kit)[i] || set.Tool(spec.Name).Name() != spec.Name || spec.Description == "" {
				t.Errorf("%s: tool %d is %+v", kit, i, spec)
			}
		}
		if why := set.Check(toolcall.Call{Name: "nothing", Arguments: []byte("{}")}); !strings.Contains(why, "the tools are "+strings.Join(Names(kit), ", ")) {
			t.Errorf("%s: %s", kit, why)
		}
	}
	if Names("aider") != nil {
		t.Error("an unknown kit has tools")
	}
}

package toolcall_test

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

var specs = []toolcall.Spec{{Name: "edit", Parameters: json.RawMessage(`{"type":"object","properties":{
	"path":{"type":"string"},"old":{"type":"string"},"line":{"type":"integer"},"all":{"type":"boolean"},
	"list":{"type":["array","null"]},"any":{}}}`)}, {Name: "submit", Parameters: json.RawMessage(`{"type":"object"}`)}}

func format(t interface{ Fatal(...any) }, name string) toolcall.Format {
	f, err := toolcall.New(name, specs)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// nasty draws strings of markup pieces, Unicode and control characters.
func nasty() *rapid.Generator[string] {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"<tool_call>", "</tool_call>", "<function=edit>", "</function>", "<parameter=old>", "</parameter>",
			"<think>", "</think>", "\n", "\r\n", "\n\n", " ", "\t", "<", ">", "</", `"`, `\`, `\n`, "{", "}", "\x00", "\u2028", "é", "日本", "👩‍💻", "\ufffd", "&amp;", "null", "12", "true"}),
		rapid.String())
	return rapid.Custom(func(t *rapid.T) string { return strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces"), "") })
}

func arguments(t *rapid.T) map[string]any {
	args := map[string]any{}
	text := nasty()
	if rapid.Bool().Draw(t, "path?") {
		args["path"] = text.Draw(t, "path")
	}
	if rapid.Bool().Draw(t, "old?") {
		args["old"] = text.Draw(t, "old")
	}
	if rapid.Bool().Draw(t, "line?") {
		args["line"] = rapid.Int32().Draw(t, "line")
	}
	if rapid.Bool().Draw(t, "all?") {
		args["all"] = rapid.Bool().Draw(t, "all")
	}
	if rapid.Bool().Draw(t, "list?") {
		args["list"] = []any{text.Draw(t, "item"), nil, 1.5}
	}
	return args
}

func TestRoundTrip(t *testing.T) {
	for _, name := range []string{toolcall.Hermes, toolcall.Qwen3Coder} {
		t.Run(name, func(t *testing.T) {
			f := format(t, name)
			refused, kept := 0, 0
			rapid.Check(t, func(t *rapid.T) {
				raw, err := json.Marshal(arguments(t))
				if err != nil {
					t.Fatal(err)
				}
				call := toolcall.Call{Name: rapid.SampledFrom([]string{"edit", "submit", "unknown tool"}).Draw(t, "name"), Arguments: raw}
				out, err := f.Render(call)
				if err != nil {
					if name == toolcall.Hermes || !strings.Contains(string(raw), "parameter") {
						// Only qwen3_coder has values it cannot express; they hold its own markup or are typed otherwise.
						if name == toolcall.Hermes || call.Name == "edit" {
							t.Fatalf("refused %s: %v", raw, err)
						}
					}
					refused++
					return
				}
				kept++
				around := rapid.SampledFrom([]string{"", "I look.\n", "<think>use <tool_call> now</think>\n"}).Draw(t, "before") + out + rapid.SampledFrom([]string{"", "\n", "\nbye"}).Draw(t, "after")
				got, err := f.Parse(around)
				if err != nil || len(got) != 1 {
					t.Fatalf("%q: %v (%d calls)", around, err, len(got))
				}
				if got[0].Name != call.Name || !equalJSON(t, got[0].Arguments, raw) {
					t.Fatalf("%q gave %s %s, want %s", around, got[0].Name, got[0].Arguments, raw)
				}
			})
			if kept == 0 || (name == toolcall.Hermes && refused > 0) {
				t.Fatalf("kept %d, refused %d", kept, refused)
			}
		})
	}
}

func equalJSON(t *rapid.T, a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	ja, _ := json.Marshal(x)
	jb, _ := json.Marshal(y)
	return string(ja) == string(jb)
}

// Whatever is sampled, Parse neither panics nor returns something that is not well formed.
func TestParseAnything(t *testing.T) {
	for _, name := range []string{toolcall.Hermes, toolcall.Qwen3Coder} {
		f := format(t, name)
		rapid.Check(t, func(t *rapid.T) {
			text := nasty().Draw(t, "text")
			if rapid.Bool().Draw(t, "half") {
				out, err := f.Render(toolcall.Call{Name: "edit", Arguments: json.RawMessage(`{"path":"a","old":"日本\nx"}`)})
				if err != nil {
					t.Fatal(err)
				}
				cut := rapid.IntRange(0, len(out)-1).Draw(t, "cut")
				text = strings.ToValidUTF8(out[:cut], "\ufffd")
				if calls, err := f.Parse(text); err == nil {
					t.Fatalf("half markup %q gave %v", text, calls)
				}
			}
			calls, err := f.Parse(text)
			if err != nil {
				if milepost.KindOf(err) != milepost.KindInvalid || calls != nil || toolcall.Why(err) == "" {
					t.Fatalf("%v with %v", err, calls)
				}
				return
			}
			for _, c := range calls {
				if c.Name == "" || !json.Valid(c.Arguments) || c.Arguments[0] != '{' {
					t.Fatalf("%q gave %+v", text, c)
				}
			}
		})
	}
}

func TestErrorsSayWhat(t *testing.T) {
	cases := []struct{ format, text, want string }{
		{"hermes", "", "no <tool_call> found"},
		{"hermes", "I think so.", "no <tool_call> found"},
		{"hermes", "</tool_call>", "</tool_call> without <tool_call>"},
		{"hermes", "<tool_call>", "the turn ends after <tool_call>"},
		{"hermes", "<tool_call>\nread a.py", "expected a JSON object after <tool_call>"},
		{"hermes", `<tool_call>{"name": "edit", "arguments": {"path": "a`, "never closed"},
		{"hermes", `<tool_call>{"name": "edit", "arguments": {path: 1}}</tool_call>`, "malformed at byte"},
		{"hermes", `<tool_call>{"name": "edit", "arguments": {}}`, "expected </tool_call> after the call, found the end of the turn"},
		{"hermes", `<tool_call>{"name": "edit"}</tool_call>`, `"arguments" is missing`},
		{"hermes", `<tool_call>{"arguments": {}}</tool_call>`, `"name" is missing`},
		{"hermes", `<tool_call>{"name": "edit", "arguments": "{}"}</tool_call>`, "it is a string"},
		{"hermes", `<tool_call>{"name": "edit", "arguments": {"a":1,"a":2}}</tool_call>`, `key "a" is there twice`},
		{"hermes", `<tool_call>{"name": "edit", "args": {}}</tool_call>`, `unknown key "args"`},
		{"hermes", "<think>hm", "<think> is never closed"},
		{"qwen3_coder", "<function=edit>\n</function>", "no <tool_call> found"},
		{"qwen3_coder", "<tool_call>\n{}", "expected <function=TOOL>"},
		{"qwen3_coder", "<tool_call>\n<function=>", "does not name anything"},
		{"qwen3_coder", "<tool_call>\n<function=edit\n>", "not closed by > on its line"},
		{"qwen3_coder", "<tool_call>\n<function=edit>\npath", "expected <parameter=KEY> or </function>"},
		{"qwen3_coder", "<tool_call>\n<function=edit>\n<parameter=path>\na.py\n", "<parameter=path> is not closed"},
		{"qwen3_coder", "<tool_call>\n<function=edit>\n<parameter=path>a</parameter>\n<parameter=path>b</parameter>\n</function>\n</tool_call>", `parameter "path" is there twice`},
		{"qwen3_coder", "<tool_call>\n<function=edit>\n</function>\n", "expected </tool_call>"},
	}
	for _, c := range cases {
		_, err := format(t, c.format).Parse(c.text)
		if err == nil || !strings.Contains(toolcall.Why(err), c.want) {
			t.Errorf("%s %q: got %v, want %q", c.format, c.text, err, c.want)
		}
	}
}

func TestQwenValues(t *testing.T) {
	f := format(t, "qwen3_coder")
	text := "<tool_call>\n<function=edit>\n<parameter=path>\n\n a\n</parameter>\nb \n\n</parameter>\n<parameter=line>\n 7 \n</parameter>\n" +
		"<parameter=all>\nyes\n</parameter>\n<parameter=other>\n8\n</parameter>\n</function>\n</tool_call>"
	got, err := f.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"path": "\n a\n</parameter>\nb \n", "line": 7, "all": "yes", "other": "8"}`
	if string(got[0].Arguments) != want {
		t.Errorf("got  %s\nwant %s", got[0].Arguments, want)
	}
	two, err := f.Parse(text + "\n" + text)
	if err != nil || len(two) != 2 {
		t.Errorf("two calls: %d, %v", len(two), err)
	}
	if _, err := f.Render(toolcall.Call{Name: "edit", Arguments: json.RawMessage(`{"path":"x</parameter>\n</function>"}`)}); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("a value that ends the markup: %v", err)
	}
	if _, err := toolcall.New("xml", nil); err == nil || !strings.Contains(err.Error(), "hermes, qwen3_coder") {
		t.Errorf("unknown format: %v", err)
	}
}

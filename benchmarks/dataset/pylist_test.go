package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestParseList(t *testing.T) {
	for in, want := range map[string]string{
		`["a", "b"]`:                    "a|b",
		`"[\"a\", \"b\"]"`:              "a|b",
		`"['a', \"b\"]"`:                "a|b",
		`"['a', 'b',]"`:                 "a|b",
		`"('a',)"`:                      "a",
		`"[]"`:                          "",
		`""`:                            "",
		`"  "`:                          "",
		`"[u'a', r'\\n']"`:              `a|\n`,
		`"['it\\'s', \"\\\"\"]"`:        `it's|"`,
		`"['\\x41\\u00e9\\101']"`:       "AéA",
		`"['\\d+']"`:                    `\d+`,
		`"['''a\nb''', \"\"\"c\"\"\"]"`: "a\nb|c",
		`"['\\U0001f600']"`:             "😀",
	} {
		got, err := ParseList(json.RawMessage(in))
		if err != nil || strings.Join(got, "|") != want {
			t.Errorf("%s: %q, %v; want %q", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		`{}`:                 "an object where a list of strings is wanted",
		`7`:                  "a number where",
		`[1]`:                "element 1 is a number; strings are wanted",
		`["a", null]`:        "element 2 is null",
		`["a", ""]`:          "element 2 is empty",
		`"['a', '']"`:        "element 2 is empty",
		`"a, b"`:             `unreadable list "a, b": no opening bracket`,
		`"['a' 'b']"`:        "no comma after element 1",
		`"['a\\n 'b']"`:      "no comma after element 1",
		`"['a', 3]"`:         "element 2: no string",
		`"['a', None]"`:      "element 2: no string",
		`"['a'"`:             "no comma after element 1",
		`"['a', "`:           "the list ends too early",
		`"['a"`:              "the string does not end",
		`"['a'] x"`:          "something follows the list",
		`"('a')"`:            "a string in brackets is no tuple",
		`"['\\x4']"`:         "wants 2 hex digits",
		`"['\\ud800']"`:      "is no character",
		`"['\\N{BULLET}']"`:  "is not read",
		`"[\"a\", [\"b\"]]"`: "element 2 is a list",
	} {
		if got, err := ParseList(json.RawMessage(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want an error with %q", in, got, err, want)
		}
	}
}

// pyRepr is the literal of a string as Python's repr writes it. Source: CPython, unicode_repr.
func pyRepr(s string) string {
	quote := '\''
	if strings.ContainsRune(s, '\'') && !strings.ContainsRune(s, '"') {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r >= 0x7f && r < 0xa1 || r == 0xad:
			fmt.Fprintf(&b, `\x%02x`, r)
		case !unicode.IsPrint(r) && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteRune(quote)
	return b.String()
}

// genList draws lists of the kind that hurts: quotes, backslashes, brackets, commas, control characters.
func genList() *rapid.Generator[[]string] {
	nasty := rapid.SampledFrom([]rune("'\"\\[](),ab \n\t\r\x00\x7f\u00ad\u2028é😀nxuUN01"))
	any := rapid.OneOf(nasty, rapid.Rune())
	return rapid.SliceOfN(rapid.StringOfN(any, 1, 20, -1), 0, 6)
}

// TestPythonListsRoundTrip: what repr writes is read back, in every form.
func TestPythonListsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genList().Draw(t, "list")
		var reprs []string
		for _, s := range want {
			reprs = append(reprs, pyRepr(s))
		}
		literal, err := json.Marshal("[" + strings.Join(reprs, ", ") + "]")
		if err != nil {
			t.Fatal(err)
		}
		plain, _ := json.Marshal(want)
		inString, _ := json.Marshal(string(plain))
		for _, form := range []json.RawMessage{literal, plain, inString} {
			got, err := ParseList(form)
			if err != nil || !slices.Equal(got, want) && len(want) > 0 {
				t.Fatalf("%s: %q, %v; want %q", form, got, err, want)
			}
		}
	})
}

// TestAgainstPython holds the parser against Python's own repr, over the same sort of lists.
func TestAgainstPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on this machine")
	}
	const script = "import json, sys\nfor line in sys.stdin: print(json.dumps(repr(json.loads(line))))"
	var in bytes.Buffer
	var lists [][]string
	for i := range 500 {
		list := genList().Example(i)
		b, _ := json.Marshal(list)
		in.Write(append(b, '\n'))
		lists = append(lists, list)
	}
	cmd := exec.Command(python, "-c", script)
	cmd.Stdin = &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(lists) {
		t.Fatalf("python printed %d lines for %d lists", len(lines), len(lists))
	}
	for i, line := range lines {
		got, err := ParseList(json.RawMessage(line))
		if err != nil || !slices.Equal(got, lists[i]) && len(lists[i]) > 0 {
			t.Errorf("%s: %q, %v; want %q", line, got, err, lists[i])
		}
	}
}

// FuzzPythonList: no input panics, and what is read is written by repr and read again as the same.
func FuzzPythonList(f *testing.F) {
	for _, s := range []string{"['a', \"b\"]", "('a',)", "[]", `['\x41\u0042\N{X}', r'\']`, "['''a''']", "[u'", "['a' 'b']", "[\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := ParsePythonList(s)
		if err != nil || !utf8.ValidString(s) {
			return
		}
		var reprs []string
		for _, e := range list {
			if !utf8.ValidString(e) {
				t.Fatalf("%q of %q is no UTF-8", e, s)
			}
			reprs = append(reprs, pyRepr(e))
		}
		again, err := ParsePythonList("[" + strings.Join(reprs, ", ") + "]")
		if err != nil || !slices.Equal(again, list) {
			t.Fatalf("%q: %q, then %q (%v)", s, list, again, err)
		}
	})
}

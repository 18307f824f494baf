package benchmarks

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestLoneSurrogate(t *testing.T) {
	for in, want := range map[string]int{
		`"plain é"`: -1, `"\ud83d\ude00"`: -1, `"\\ud800"`: -1, `"\\\ud800"`: 3, `"a\ud800b"`: 2, `"\udc00"`: 1, `"\ud800\ud800\udc00"`: 1,
		`"\ud83d\ude00\udfff"`: 13, `"\u00e9\n"`: -1, `"\uD800"`: 1, `\`: -1, `\ud8`: -1, "": -1,
	} {
		if got := LoneSurrogate([]byte(in)); got != want {
			t.Errorf("%s: %d, want %d", in, got, want)
		}
	}
}

// TestLoneSurrogateAgainstTheDecoder: it is found exactly where encoding/json puts in a character that was not there.
func TestLoneSurrogateAgainstTheDecoder(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", `\\`, `\"`, `\n`, `\u0041`, `\ud83d`, `\ude00`, `\udbff`, `\uDC00`, "é", "u", "d800"})
	rapid.Check(t, func(t *rapid.T) {
		text := `"` + strings.Join(rapid.SliceOf(part).Draw(t, "parts"), "") + `"`
		var s string
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		if lone := LoneSurrogate([]byte(text)) >= 0; lone != strings.ContainsRune(s, '\ufffd') {
			t.Fatalf("%s is %q, lone %v", text, s, lone)
		}
	})
}

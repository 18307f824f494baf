package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/grade/internal/referee"
)

// broken makes bytes that are often no UTF-8.
func broken(rng *rand.Rand) []byte {
	parts := []string{"a", "é", "✓", "💥", "\r", "\n", "\r\n", "\xff", "\xe2\x9c", "\xe2", "\xf0\x9f\x92", "\xf0\x9f", "\xed\xa0\x80", "\xc0\xaf", "\xe0\x80", "\xf4\x90\x80", "\x80", "\xc3", "\xf5"}
	var b []byte
	for range rng.IntN(20) {
		b = append(b, parts[rng.IntN(len(parts))]...)
	}
	return b
}

// TestTextAsPython: bytes become the text that the referee would read, whatever the pieces they come in.
func TestTextAsPython(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var rows [][]byte
	for range 2000 {
		rows = append(rows, broken(rng))
	}
	for _, b := range rows {
		want := Text(b)
		for name, r := range map[string]func() (string, error){
			"byte by byte":  func() (string, error) { return ReadText(iotest.OneByteReader(bytes.NewReader(b)), 1<<20) },
			"end with data": func() (string, error) { return ReadText(iotest.DataErrReader(bytes.NewReader(b)), 1<<20) },
		} {
			if got, err := r(); err != nil || got != want {
				t.Fatalf("%q %s: %q, %v, want %q", b, name, got, err, want)
			}
		}
	}
	for in, want := range map[string]string{"a\r\nb\rc\n": "a\nb\nc\n", "\xff\xfe": "��", "\xe2\x9cx": "�x", "\xed\xa0\x80": "���", "\xf0\x9f\x92": "�", "\r": "\n", "\r\n\n": "\n\n"} {
		if got := Text([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	in, err := json.Marshal(rows) // base64
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := "import base64, io, json, sys\nfor b in json.load(sys.stdin):\n    t = base64.b64decode(b or '').decode(errors='replace')\n    print(json.dumps(io.TextIOWrapper(io.BytesIO(t.encode()), encoding='utf-8').read()))\n"
	if err := os.WriteFile(dir+"/decode.py", []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(referee.Script(t, in, dir+"/decode.py")), []byte("\n"))
	for i, line := range lines {
		var want string
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		if got := Text(rows[i]); got != want {
			t.Errorf("%q: %q, Python reads %q", rows[i], got, want)
		}
	}
}

func TestReadTextErrors(t *testing.T) {
	if _, err := ReadText(strings.NewReader("12345"), 4); milepost.KindOf(err) != milepost.KindLimit {
		t.Errorf("too long: %v", err)
	}
	if _, err := ReadText(iotest.ErrReader(errors.New("torn cable")), 4); milepost.KindOf(err) != milepost.KindUnavailable {
		t.Errorf("broken reader: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	if _, err := Parse("parse_log_fortran", "", Task{}); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "parse_log_cargo") {
		t.Errorf("unknown parser: %v", err)
	}
	if _, err := Parse("parse_log_django", "x\nFAIL:\n", Task{}); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("unreadable log: %v", err)
	}
}

// TestOtherDataSets: the readers that the referee does not have.
func TestOtherDataSets(t *testing.T) {
	for _, c := range []struct {
		parser, log string
		want        map[string]Status
	}{
		{"swesmith_python", "a.py::x PASSED [ 5%]\na.py::y[a b] FAILED\nb.py::z   SKIPPED (why)\nPASSED a.py::w\n XFAIL\n", map[string]Status{"a.py::x": Passed, "b.py::z": Skipped}},
		{"r2e_pytest", "PASSED early\n= short test summary info =\nPASSED r/t.py::C::x\nFAILED r/t.py::y - E: PASSED\n\x1b[31mERROR\x1b[0m r/t.py::z - boom\nERROR r/broken.py\n2 passed",
			map[string]Status{"C.x": Passed, "y": Failed, "z": Errored, "": Errored}},
		{"rebench_pytest_v2", "PASSED a.py::x[a b]\nFAILED a.py::y - z\n\x1b[32ma.py::z PASSED\nPASSED\n", map[string]Status{"a.py::x[a": Passed, "a.py::y": Failed, "a.py::z": Passed}},
		{"parse_log_pytest_nebo", "[gw0] [ 5%] PASSED a.py::x in 0.1s\na.py::y FAILED [ 9%] in 1.5s\nSKIPPED a.py::z[b c]\u2028ERROR b.py\n[gw1] [ 5%] XPASS a.py::w",
			map[string]Status{"a.py::x": Passed, "a.py::y": Failed, "a.py::z[b c]": Skipped, "b.py": Errored}},
		{"parse_log_swift", "Test Case 'A.b' passed (0.1 seconds)\n Test Case 'A.c' failed (2 seconds)\nTest Case 'A.d' started", map[string]Status{"A.b": Passed, "A.c": Failed}},
		{"parse_log_csharp", "  Failed A.b(x: 1) [3 ms]\n  Passed A.b(x: 1) [3 ms]\n  Passed A.c [< 1 ms]\n[xUnit.net 00:00:01.2]     A.c [FAIL]\n  Skipped A.d\nPassed A.e [1 ms]",
			map[string]Status{"A.b(x: 1)": Failed, "A.c": Failed, "A.d": Skipped}},
	} {
		r, err := Parse(c.parser, c.log, Task{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]Status{}
		for n, s := range r.All() {
			got[n] = s
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.parser, got, c.want)
		}
	}
}

// TestHugeLogs: every parser reads a log with no more memory than a second copy of it: 4 MB here, since each byte is read
// by some fifty parsers, and 100 MB with MILEPOST_HUGE=1.
func TestHugeLogs(t *testing.T) {
	size := 4
	if os.Getenv("MILEPOST_HUGE") == "1" {
		size = 100
	}
	line := "some output of a program, 63 characters with its line end: ok\n"
	plain := strings.Repeat(line, size<<20/len(line))
	var before, after runtime.MemStats
	aliases := strings.Fields("astroid flask marshmallow pvlib pyvista sqlfluff xarray pydicom requests pylint astropy scikit sphinx react_pdf prettier scratch_gui")
	for _, name := range Names() {
		if slices.Contains(aliases, strings.TrimPrefix(name, "parse_log_")) {
			continue
		}
		runtime.GC()
		runtime.ReadMemStats(&before)
		_, err := Parse(name, plain, Task{InstanceID: "jekyll__jekyll-9141", Version: "9.5"})
		runtime.ReadMemStats(&after)
		if err != nil && !slices.Contains([]string{"parse_log_immutable_js", "parse_log_prismjs"}, name) {
			t.Errorf("%s: %v", name, err)
		}
		if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; !raced && mb > uint64(size)*11/10+1 {
			t.Errorf("%s allocates %d MB for a log of %d", name, mb, size)
		}
	}
}

// TestTooManyTests: a log that names more tests than any project has ends in an error, not in all memory there is.
func TestTooManyTests(t *testing.T) {
	var log strings.Builder
	for i := range MaxResults + 10 {
		log.WriteString("PASSED t")
		for n := i; n > 0; n /= 26 {
			log.WriteByte(byte('a' + n%26))
		}
		log.WriteByte('\n')
	}
	if _, err := Parse("parse_log_pytest", log.String(), Task{}); milepost.KindOf(err) != milepost.KindLimit {
		t.Errorf("error %v", err)
	}
}

package testlog

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
)

func letters(t *testing.T, format, log string, tests ...string) (string, []string) {
	t.Helper()
	report, extra, err := Parse(format, []byte(log), tests)
	if err != nil {
		t.Fatal(err)
	}
	text, err := report.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	return string(text), extra
}

func TestParseErrors(t *testing.T) {
	_, _, err := Parse("junit", nil, nil)
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), `"junit" is not one of gotest, pytest, resident, unittest`) {
		t.Fatal(err)
	}
	if _, err := IDs("", nil); milepost.KindOf(err) != milepost.KindInvalid {
		t.Fatal(err)
	}
	_, _, err = Parse("pytest", nil, []string{"a", "b", "a"})
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), `"a" is in the list twice, at 0 and 2`) {
		t.Fatal(err)
	}
}

func TestEmptyLog(t *testing.T) {
	for _, format := range Formats() {
		if got, extra := letters(t, format, "", "x", "y"); got != "NN" || extra != nil {
			t.Errorf("%s: %s, extra %q", format, got, extra)
		}
	}
}

func TestExtraIsSorted(t *testing.T) {
	log := "=== short test summary info ===\nPASSED b.py::t\nPASSED a.py::t\nPASSED c.py::t\n"
	if got, extra := letters(t, "pytest", log, "b.py::t"); got != "P" || !slices.Equal(extra, []string{"a.py::t", "c.py::t"}) {
		t.Fatalf("%s %q", got, extra)
	}
}

// TestUnfinishedResultsDoNotCount has processes that die right after printing something that looks like a result.
func TestUnfinishedResultsDoNotCount(t *testing.T) {
	log := "test_a (m.C.test_a) ... ok\ntest_b (m.C.test_b) ... ok\n"
	if got, _ := letters(t, "unittest", log, "m.C.test_a", "m.C.test_b"); got != "PN" {
		t.Fatalf("%s, want PN: nothing shows that test_b ended", got)
	}
	whole := log + "\n" + unittestFinal + "\nRan 2 tests in 0.001s\n\nOK\n"
	if got, _ := letters(t, "unittest", whole, "m.C.test_a", "m.C.test_b"); got != "PP" {
		t.Fatalf("%s, want PP", got)
	}
}

func TestPrintedSectionsAreNotRead(t *testing.T) {
	log := "test_a (m.C.test_a) ... FAIL\n\n" + unittestRule + "\nFAIL: test_a (m.C.test_a)\n" + unittestFinal + "\n" +
		"AssertionError: test_b (m.C.test_b) ... ok\ntest_b (m.C.test_b) ... ok\n\n" + unittestFinal + "\nRan 1 test in 0.001s\n\nFAILED (failures=1)\n"
	if got, extra := letters(t, "unittest", log, "m.C.test_a", "m.C.test_b"); got != "FN" || extra != nil {
		t.Fatalf("%s %q, want FN", got, extra)
	}
}

func TestRawBytes(t *testing.T) {
	log := "\xff\xfe\x00 garbage\r\n=== short test summary info ===\r\nPASSED a.py::t[\xff]\r\nFAILED a.py::u - \xc3\r\n"
	if got, _ := letters(t, "pytest", log, "a.py::t[\xff]", "a.py::u"); got != "PF" {
		t.Fatal(got)
	}
}

func TestPytestContainers(t *testing.T) {
	log := "=== short test summary info ===\nERROR pkg/tests - ImportError: no\nERROR other/test_b.py::TestC - TypeError: x\n"
	got, extra := letters(t, "pytest", log, "other/test_b.py::TestC::test_1", "other/test_b.py::test_2", "pkg/tests/test_a.py::test_1", "pkg/tests2/test_a.py::test_1")
	if got != "ENEN" {
		t.Fatalf("%s, want ENEN", got)
	}
	_ = extra // the class is reported as an id too: its form is a test's
}

func TestResident(t *testing.T) {
	log := `{"test":"m.C.a","state":"PASSED"}` + "\n" + `{"test":"m.C.b","state":"FAILED"}` + "\n" + `{"container":"n","state":"ERROR"}` + "\n" +
		`{"test":"m.C.c","state":"GREAT"}` + "\nnoise\n" + `{"test":"m.C.d","sta`
	if got, extra := letters(t, "resident", log, "m.C.a", "m.C.b", "m.C.c", "m.C.d", "n.D.x"); got != "PFNNE" || extra != nil {
		t.Fatalf("%s %q", got, extra)
	}
}

// TestLargeLogs bounds the time for 10 MB of the least pleasant lines of each format, and 100 MB of ordinary ones.
func TestLargeLogs(t *testing.T) {
	if testing.Short() {
		t.Skip("large logs")
	}
	size := 10 << 20
	fill := func(head, unit, tail string) []byte {
		return append(append([]byte(head), bytes.Repeat([]byte(unit), size/len(unit))...), tail...)
	}
	summary := "=== short test summary info ===\n"
	for name, c := range map[string]struct {
		format string
		log    []byte
		test   string
	}{
		"pytest lines":        {"pytest", fill("", "some output of a test\n", "\n"+summary+"PASSED a.py::t\n"), "a.py::t"},
		"unittest 100 MB":     {"unittest", append(bytes.Repeat([]byte("some output of a test\n"), 5<<20), "test_a (m.C.test_a) ... ok\n\n"+unittestFinal+"\n"...), "m.C.test_a"},
		"pytest one line":     {"pytest", fill(summary+"FAILED a.py::x[", " - ", "\nPASSED a.py::t\n"), "a.py::t"},
		"pytest brackets":     {"pytest", fill("", "[", "\n"+summary+"PASSED a.py::t\n"), "a.py::t"},
		"pytest states":       {"pytest", fill("", "a::b PASSED (", ")\n"+summary+"PASSED a.py::t\n"), "a.py::t"},
		"unittest one line":   {"unittest", fill("test_a (m.C.test_a) ... ", " ... ", "ok\ntest_b (m.C.test_b) ... "), "m.C.test_a"},
		"unittest start":      {"unittest", fill("test_a (m.C.test_a) ... ok\n", "test_z (m.C.test_z) ... ", "\n"), "m.C.test_a"},
		"unittest dots":       {"unittest", fill("test_a (m.C.test_a) ... ok\n", "a.", " (m) ... \ntest_b (m.C.test_b)\n"), "m.C.test_a"},
		"unittest colours":    {"unittest", fill("test_a (m.C.test_a) ... ok\n", "\x1b[31m", "\ntest_b (m.C.test_b)\n"), "m.C.test_a"},
		"resident long lines": {"resident", fill("{\"test\":\"t\",\"state\":\"PASSED\"}\n", "{{{{{{{{{{{{{{{{{\n", ""), "t"},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			got, _ := letters(t, c.format, string(c.log), c.test)
			if took := time.Since(begin); took > 30*time.Second { // well under a second; a quadratic parser would take hours
				t.Errorf("took %s", took)
			} else {
				t.Log(took)
			}
			if got != "P" {
				t.Errorf("state %s, want P", got)
			}
		})
	}
}

// FuzzParse holds the parsers to: no panic, a report of the right length with valid states, extra ids sorted and not of the
// list, and agreement with IDs.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"pytest_9_rA_q.log", "pytest_7_xdist_v.log", "unittest_3.8.log", "unittest_3.13.log"} {
		f.Add(strings.Split(name, "_")[0], sampleLog(f, name), "t.test_a.A.test_ok")
	}
	f.Add("resident", []byte(`{"test":"a","state":"PASSED"}`), "a")
	f.Fuzz(func(t *testing.T, format string, log []byte, test string) {
		report, extra, err := Parse(format, log, []string{test})
		ids, err2 := IDs(format, log)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("Parse says %v, IDs %v", err, err2)
		}
		if err != nil {
			return
		}
		if _, err := report.MarshalText(); err != nil || len(report) != 1 {
			t.Fatalf("report %v: %v", report, err)
		}
		if !slices.IsSorted(extra) || slices.Contains(extra, test) || slices.Contains(extra, "") {
			t.Fatalf("extra %q", extra)
		}
		if s, ok := ids[test]; ok && s != report[0] {
			t.Fatalf("%q is %s in IDs and %s in the report", test, s, report[0])
		}
	})
}

func ExampleParse() {
	log := []byte("=== short test summary info ===\nPASSED tests/test_a.py::test_x\nERROR tests/test_b.py - ImportError\n")
	report, extra, err := Parse("pytest", log, []string{"tests/test_a.py::test_x", "tests/test_b.py::test_y", "tests/test_c.py::test_z"})
	fmt.Println([]milepost.TestState(report), extra, err)
	// Output: [PASSED ERROR NOT_RUN] [] <nil>
}

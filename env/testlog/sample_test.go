package testlog

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
)

// The logs in testdata are real: testdata/src run by pytest 6, 7 and 9 and by the unittest of Python 3.8, 3.11 and 3.13.
// The tables say what the sources do, test by test; N stands for tests that cannot have a state.

var unittestSample = map[string]string{
	"t.test_a.A.test_doc": "P", "t.test_a.A.test_doc_fail": "F", "t.test_a.A.test_err": "E", "t.test_a.A.test_fail": "F",
	"t.test_a.A.test_noise": "P", "t.test_a.A.test_noise_tail": "P", "t.test_a.A.test_ok": "P",
	"t.test_a.A.test_print_ok_then_fail": "F", "t.test_a.A.test_skip": "S", "t.test_a.A.test_sub": "F",
	"t.test_a.A.test_sub_err": "E", "t.test_a.A.test_sub_ok": "P", "t.test_a.A.test_sub_skip": "S",
	"t.test_a.A.test_xf": "P", "t.test_a.A.test_xp": "F",
	"t.test_a.B.test_1":        "E", // setUpClass fails
	"t.test_a.C.test_1":        "S", // setUpClass skips
	"t.test_a.D.test_1":        "P", // tearDownClass fails
	"t.test_a.E.test_1":        "E", // tearDown fails
	"t.test_a.F.test_async":    "P",
	"t.test_bad.X.test_1":      "E", // the module cannot be imported
	"t.test_bad.Y.test_1":      "E",
	"t.test_syntax.X.test":     "E",
	"t.test_modskip.X.test":    "S",
	"t.test_setupmod.M.test_1": "E",
	"t.test_gone.X.test":       "N",
}

var pytestSample = map[string]string{
	"test_p.py::test_ok": "P", "test_p.py::test_fail": "F", "test_p.py::test_long": "F", "test_p.py::test_err": "E",
	"test_p.py::test_late": "E", // passes, then its tear-down fails
	"test_p.py::test_skip": "S", "test_p.py::test_xf": "P", "test_p.py::test_xp": "F", "test_p.py::test_xps": "F",
	"test_p.py::test_par[a b]": "P", "test_p.py::test_par[a - b]": "F", "test_p.py::test_par[[1]]": "P",
	"test_p.py::test_par[x] - y]": "F", `test_p.py::test_par[\xe4]`: "P", `test_p.py::test_par[nl\n]`: "P",
	"test_p.py::test_par[b::c]": "P", "test_p.py::test_par[p PASSED]": "P", "test_p.py::TestC::test_m": "P",
	"test_p.py::test_fake_summary": "P", "test_p.py::U::test_sub": "F",
	"sub/test_q.py::TestInner::test_one": "P", "sub/test_q.py::TestInner::TestDeep::test_two": "F",
	"test_bad.py::test_1": "E", "test_bad.py::C::test_2": "E", // the module cannot be imported
	"test_modskip.py::test_1": "N", // the summary says only where it was skipped
	"test_gone.py::test_1":    "N",
}

// compare parses the log and names every test whose state is not the table's, after changes.
func compare(t *testing.T, format string, log []byte, table map[string]string, changes map[string]string) {
	t.Helper()
	table = maps.Clone(table)
	maps.Copy(table, changes)
	tests := slices.Sorted(maps.Keys(table))
	report, extra, err := Parse(format, log, tests)
	if err != nil {
		t.Fatal(err)
	}
	letters, _ := report.MarshalText()
	for i, id := range tests {
		if string(letters[i]) != table[id] {
			t.Errorf("%s: %c, want %s", id, letters[i], table[id])
		}
	}
	if len(extra) > 0 {
		t.Errorf("extra ids: %q", extra)
	}
}

func sampleLog(t testing.TB, name string) []byte {
	t.Helper()
	log, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestRealLogs(t *testing.T) {
	// The summary gives skips no id. Without -rA pytest 9 says nothing else; xdist prints no sub-tests.
	quiet := map[string]string{"test_p.py::test_skip": "N"}
	verbose := map[string]string{}
	for name, changes := range map[string]map[string]string{
		"pytest_9_rA_q.log": quiet, "pytest_9_rA_v_color.log": verbose, "pytest_9_v.log": verbose,
		"pytest_7_rA.log": quiet, "pytest_6_rA.log": quiet, "pytest_7_xdist_v.log": verbose, "pytest_6_xdist_v.log": verbose,
	} {
		t.Run(name, func(t *testing.T) { compare(t, "pytest", sampleLog(t, name), pytestSample, changes) })
	}
	for name, changes := range map[string]map[string]string{
		"unittest_3.8.log":  {"t.test_a.C.test_1": "N"}, // up to 3.10 a class that skips itself prints no name
		"unittest_3.11.log": nil, "unittest_3.13.log": nil,
	} {
		t.Run(name, func(t *testing.T) { compare(t, "unittest", sampleLog(t, name), unittestSample, changes) })
	}
	t.Run("pytest_9_interrupted.log", func(t *testing.T) {
		compare(t, "pytest", sampleLog(t, "pytest_9_interrupted.log"), map[string]string{
			"test_bad.py::test_1": "E", "test_p.py::test_ok": "N"}, nil)
	})
}

// TestUnittestHere runs the sample with this machine's Python, whatever its version.
func TestUnittestHere(t *testing.T) {
	cmd := exec.Command("python3", "-B", "-m", "unittest", "discover", "-v", "-s", ".", "-t", ".")
	cmd.Dir = filepath.Join("testdata", "src")
	log, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("python3: %v\n%s", err, log)
	}
	compare(t, "unittest", log, unittestSample, nil)
	for id := range func() map[string]milepost.TestState { ids, _ := IDs("unittest", log); return ids }() {
		if _, ok := unittestSample[id]; !ok || strings.Contains(id, "setUp") {
			t.Errorf("IDs reports %q, which is no test", id)
		}
	}
}

// TestPytestHere runs the sample with this machine's pytest.
func TestPytestHere(t *testing.T) {
	if err := exec.Command("python3", "-c", "import pytest").Run(); err != nil {
		t.Skip("python3 has no pytest here; the checked-in logs cover it")
	}
	cmd := exec.Command("python3", "-B", "-m", "pytest", "-rA", "-v", "-p", "no:cacheprovider", "--continue-on-collection-errors")
	cmd.Dir = filepath.Join("testdata", "src", "p")
	log, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("python3: %v\n%s", err, log)
	}
	compare(t, "pytest", log, pytestSample, nil)
}

package grade

import (
	"strings"
	"testing"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks/grade/logs"
)

// ruled judges a log and an output file by a rule.
func ruled(t *testing.T, g *milepost.Grading, f2p, p2p []string, log, output string) *Verdict {
	t.Helper()
	task := &milepost.Task{ID: "t", FailToPass: f2p, PassToPass: p2p, Tests: append(append([]string{}, f2p...), p2p...), Grading: g}
	ev := &Evidence{Patch: text("x"), Log: logs.Text([]byte(log))}
	if output != "-" {
		ev.Output = []byte(output)
	}
	v, err := Judge(task, ev)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func marked(log string) string { return StartMarker + "\n" + log + "\n" + EndMarker + "\n" }

func TestRules(t *testing.T) {
	f2p, p2p := []string{"a.py::x"}, []string{"a.py::y (12 ms)"}
	states, all := &milepost.Grading{Rule: milepost.GradeStates}, &milepost.Grading{Rule: milepost.GradeAll}
	failures := &milepost.Grading{Rule: milepost.GradeFailures, LogParser: "parse_log_marked"}
	subset := &milepost.Grading{Rule: milepost.GradeSubset, Output: "/o.json"}
	exact := &milepost.Grading{Rule: milepost.GradeExactSet, LogParser: "parse_log_tap"}
	rate := &milepost.Grading{Rule: milepost.GradeRate, Total: 4}
	file := &milepost.Grading{Rule: milepost.GradeRewardFile, Output: "/r"}
	status := &milepost.Grading{Rule: milepost.GradeStatusMap, Expected: map[string]string{"C.x": "PASSED", "\x1b[31mC.z\x1b[0m - why": "FAILED"}}
	for _, c := range []struct {
		name        string
		g           *milepost.Grading
		f2p, p2p    []string
		log, output string
		want        Outcome
		reward      float64
		reason      string
	}{
		{"states", states, f2p, nil, marked("PASSED a.py::x"), "-", Resolved, 1, ""},
		{"states, expected failure", states, f2p, nil, marked("XFAIL a.py::x"), "-", Resolved, 1, ""},
		{"states, kept test skipped", states, f2p, []string{"b"}, marked("PASSED a.py::x\nSKIPPED b"), "-", Resolved, 1, ""},
		{"states, mended test skipped", states, f2p, nil, marked("SKIPPED a.py::x"), "-", Unresolved, 0, "0 of 1"},
		{"states, not run", states, f2p, nil, marked("PASSED other"), "-", Unresolved, 0, "0 of 1"},
		{"no start", states, f2p, nil, "PASSED a.py::x\n" + EndMarker, "-", NoMarkers, 0, "Start Test Output"},
		{"no end", states, f2p, nil, StartMarker + "\nPASSED a.py::x\n", "-", NoMarkers, 0, "End Test Output"},
		{"nothing", states, f2p, nil, "", "-", NoMarkers, 0, "Start Test Output"},
		{"no result", states, f2p, nil, marked("Killed"), "-", NoResults, 0, "no result"},
		{"failures, clean", failures, f2p, nil, marked("3 specs, 0 failures"), "-", Resolved, 1, ""},
		{"failures, failed", failures, f2p, nil, marked("1) a.py::x"), "-", Unresolved, 0, "0 of 1"},
		{"failures, never ran", failures, f2p, nil, marked("0 specs, 0 failures"), "-", NoResults, 0, "no sign"},
		{"contradicted", states, f2p, nil, marked("PASSED a.py::x") + ">>>>> Test Exit Code: 2\n", "-", Contradicted, 0, "ended with 2"},
		{"all, skipped", all, f2p, []string{"b"}, marked("PASSED a.py::x\nSKIPPED b"), "-", Unresolved, 0, "0 of 1 PASS_TO_PASS"},
		{"subset", subset, f2p, p2p, "", `{"tests": [{"name": "a.py::x", "status": "PASSED"}, {"name": "a.py::y (12 ms)", "status": "PASSED"}, {"name": "z", "status": "FAILED"}]}`, Resolved, 1, ""},
		{"subset, one missing", subset, f2p, p2p, "", `{"tests": [{"name": "a.py::x", "status": "PASSED"}]}`, Unresolved, 0, "0 of 1 PASS_TO_PASS"},
		{"subset, no file", subset, f2p, p2p, "", "-", NoOutput, 0, "/o.json"},
		{"subset, no list", subset, f2p, p2p, "", `{"results": []}`, Unreadable, 0, "/o.json"},
		{"exact", exact, f2p, p2p, marked("ok 1 a.py::x\nok 2 a.py::y (3 ms)\nnot ok 3 z"), "-", Resolved, 1, ""},
		{"exact, one more", exact, f2p, p2p, marked("ok 1 a.py::x\nok 2 a.py::y (3 ms)\nok 3 z"), "-", Unresolved, 0, "the first is z"},
		{"map", status, nil, nil, "== short test summary info ==\nPASSED t.py::C::x\nFAILED t.py::C::z - E: PASSED\n== 1 failed", "-", Resolved, 1, ""},
		{"map, one more", status, nil, nil, "short test summary info\nPASSED t.py::C::x\nFAILED t.py::C::z\nPASSED t.py::C::w", "-", Unresolved, 0, "3 tests, 2 are expected"},
		{"map, other state", status, nil, nil, "short test summary info\nPASSED t.py::C::x\nPASSED t.py::C::z", "-", Unresolved, 0, "1 of 2"},
		{"map, no summary", status, nil, nil, "PASSED t.py::C::x", "-", NoResults, 0, "summary"},
		{"rate", rate, nil, nil, marked("== 1 failed, 3 passed in 0.1s =="), "-", Unresolved, .75, "3 of 4"},
		{"rate, more than listed", rate, nil, nil, marked("5 passed in 0.1s"), "-", Resolved, 1, ""},
		{"rate, none", rate, nil, nil, marked("== 4 failed in 1s =="), "-", Unresolved, 0, "0 of 4"},
		{"rate, no summary", rate, nil, nil, marked("Traceback"), "-", NoResults, 0, "summary"},
		{"rate by names", &milepost.Grading{Rule: milepost.GradeRate, Total: 2}, []string{"a", "b"}, nil, marked("PASSED a\nPASSED c"), "-", Unresolved, .5, "1 of 2"},
		{"reward", file, nil, nil, "", "1\n", Resolved, 1, ""},
		{"reward, part", file, nil, nil, "", "0.25", Unresolved, .25, "0.25"},
		{"reward, object", file, nil, nil, "", `{"reward": 0.5}`, Unresolved, .5, "0.5"},
		{"reward, too large", file, nil, nil, "", "7", Unreadable, 0, "0 to 1"},
		{"reward, text", file, nil, nil, "", "pass", Unreadable, 0, "0 to 1"},
		{"reward, not a number", file, nil, nil, "", "NaN", Unreadable, 0, "0 to 1"},
		{"reward, none", file, nil, nil, "", "-", NoOutput, 0, "/r"},
	} {
		v := ruled(t, c.g, c.f2p, c.p2p, c.log, c.output)
		if v.Outcome != c.want || v.Reward != c.reward || !strings.Contains(v.Reason, c.reason) {
			t.Errorf("%s: %s, reward %v; want %s, %v, for %q", c.name, v, v.Reward, c.want, c.reward, c.reason)
		}
	}
}

// TestCutNames: a name cut off inside its parameters stands for the tests that begin so, if they agree.
func TestCutNames(t *testing.T) {
	g := &milepost.Grading{Rule: milepost.GradeStates}
	for log, want := range map[string]Outcome{
		"PASSED t[a\nPASSED t[ab]\nXFAIL t[ac]": Resolved,
		"PASSED t[ab]\nXFAIL t[ac]":             Resolved,
		"PASSED t[ab]\nFAILED t[ac]":            Unresolved,
		"PASSED u[ab]":                          Unresolved,
	} {
		if v := ruled(t, g, []string{"t[a"}, nil, marked(log), "-"); v.Outcome != want {
			t.Errorf("%q: %s, want %s", log, v, want)
		}
	}
}

// TestClosedSet: what the JSON of a verdict may say, and that unknown rules are refused.
func TestClosedSet(t *testing.T) {
	var o Outcome
	for _, known := range Outcomes() {
		if err := o.UnmarshalText([]byte(known)); err != nil || o != known {
			t.Errorf("%s: %v", known, err)
		}
	}
	if err := o.UnmarshalText([]byte("maybe")); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "resolved") {
		t.Errorf("unknown outcome: %v", err)
	}
	if _, err := Judge(&milepost.Task{ID: "t", Grading: &milepost.Grading{Rule: "dice"}}, &Evidence{}); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("unknown rule: %v", err)
	}
}

// TestScripts: what the scripts of data sets without one are made of.
func TestScripts(t *testing.T) {
	task := &milepost.Task{ID: "t", Origin: &milepost.Origin{Repo: "django/django"}, Grading: &milepost.Grading{Rule: milepost.GradeStates,
		TestFiles: []string{"tests/forms_tests/test_it's.py", "tests/data.json"}, TestPatch: "x"}}
	s := Script(task, "/testbed")
	for _, want := range []string{"--settings=test_sqlite --parallel 1 'forms_tests.test_it'\\''s'", "cd '/testbed'", "'HEAD:tests/data.json'", StartMarker, EndMarker} {
		if !strings.Contains(s, want) {
			t.Errorf("the script lacks %q:\n%s", want, s)
		}
	}
	if strings.Contains(s, "data.json'\nlast") {
		t.Errorf("a data file is given to the runner:\n%s", s)
	}
	own := Script(&milepost.Task{Grading: &milepost.Grading{Script: "#!/bin/bash\nset -uxo pipefail\ncd /testbed\npytest\n: '" + EndMarker + "'\ngit checkout x"}}, "/")
	want := "#!/bin/bash\nset -uxo pipefail\ncd /testbed\npytest\nMILEPOST_TEST_EXIT_CODE=$?\n: '" + EndMarker + "'\necho \">>>>> Test Exit Code: $MILEPOST_TEST_EXIT_CODE\"\ngit checkout x\n"
	if own != want {
		t.Errorf("script %q, want %q", own, want)
	}
}

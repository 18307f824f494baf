package grade

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

func TestOwnTasks(t *testing.T) {
	x, task := executor(t), smallTask(t)
	change := func(old, new string) string {
		return benchmarks.Diff("calc.py", calc, strings.Replace(calc, old, new, 1))
	}
	newFile := func(name, text string) string {
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		return "diff --git a/" + name + " b/" + name + "\nnew file mode 100644\n--- /dev/null\n+++ b/" + name +
			"\n@@ -0,0 +1," + itoa(len(lines)) + " @@\n+" + strings.Join(lines, "\n+") + "\n"
	}
	for _, c := range []struct {
		name, patch string
		want        Outcome
		reason      string
	}{
		{"reference", fix, Resolved, ""},
		{"wrong", change("a - b", "a * b"), Unresolved, "0 of 1 FAIL_TO_PASS"},
		{"regression", benchmarks.Diff("calc.py", calc, strings.NewReplacer("a - b", "a + b", "a + a", "a").Replace(calc)), Unresolved, "0 of 1 PASS_TO_PASS"},
		{"empty", "", NoPatch, ""},
		{"no patch at all", "I fixed it.\n", PatchFailed, "git apply --verbose"},
		{"does not apply", benchmarks.Diff("other.py", "x = 1\n", "x = 2\n"), PatchFailed, "other.py"},
		{"into git", newFile(".git/hooks/post-checkout", "#!/bin/sh\nexit 0\n"), PatchFailed, ".git/hooks"},
		{"edits the tests", benchmarks.Diff("tests/test_calc.py", tests, strings.Replace(tests, "add(1, 2), 3", "add(1, 2), -1", 1)), Unresolved, "0 of 1 FAIL"},
		{"adds a test package hook", fix + newFile("tests/hook.py", "raise SystemExit(0)"), Resolved, ""},
		{"ends the run early", change("def add(a, b):\n", "import os\nos._exit(0)\n\n\ndef add(a, b):\n"), NoResults, ""},
		{"claims results", change("def add(a, b):\n", "import os, sys\nsys.stderr.write('test_add (tests.test_calc.T.test_add) ... ok\\ntest_double (tests.test_calc.T.test_double) ... ok\\n')\nsys.stderr.flush()\nos._exit(1)\n\n\ndef add(a, b):\n"), Contradicted, "ended with 1"},
		{"not UTF-8", change("def add(a, b):\n    return a - b", "import os\nos.write(1, b'\\xff\\xfe\\r\\n\\xe2\\x82')\n\n\ndef add(a, b):\n    return a + b"), Resolved, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantOutcome(t, graded(t, x, task, c.patch), c.want, c.reason)
		})
	}
}

func itoa(n int) string { return string(rune('0' + n)) }

// TestWaysOfApplying: each command of the chain is reached by a patch that those before it refuse.
func TestWaysOfApplying(t *testing.T) {
	x, task := executor(t), smallTask(t)
	drifted := strings.Replace(fix, " def double(a):", " def doubled(a):", 1)
	long := calc + strings.Repeat("\n", 20) + "LAST = 1\n"
	two := benchmarks.Diff("calc.py", long, strings.NewReplacer("a - b", "a + b", "LAST = 1", "LAST = 2").Replace(long))
	two = strings.Replace(two, "-LAST = 1", "-LAST = 0", 1) // the second hunk never applies
	for _, c := range []struct {
		name, patch, by string
		want            Outcome
	}{
		{"strict", fix, "git apply --verbose", Resolved},
		{"fuzz", drifted, "patch --batch --forward --fuzz=5 -p1", Resolved},
		{"already there", benchmarks.Diff("calc.py", strings.Replace(calc, "a - b", "a % b", 1), calc), "verified by git apply --check --reverse", Unresolved},
		{"one hunk of two", two, "", PatchFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := graded(t, x, task, c.patch)
			if v.Outcome != c.want || v.AppliedBy != c.by {
				t.Errorf("verdict %s, applied by %q, want %q", v, v.AppliedBy, c.by)
			}
		})
	}
}

// TestResetBetweenWays: what a command that failed left behind is gone before the next one tries.
func TestResetBetweenWays(t *testing.T) {
	x, task := executor(t), smallTask(t)
	patch := benchmarks.Diff("tests/__init__.py", "", "") + strings.Replace(fix, " def double(a):", " def doubled(a):", 1) +
		"diff --git a/new.py b/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
	v := graded(t, x, task, patch) // --reject makes new.py; patch --forward would fail on it
	if v.Outcome != Resolved || v.AppliedBy != "patch --batch --forward --fuzz=5 -p1" {
		t.Errorf("verdict %s, applied by %q", v, v.AppliedBy)
	}
}

// TestPlantedStartup: a conftest.py that decides the verdict is gone before the tests of a task of our own.
func TestPlantedStartup(t *testing.T) {
	x, task := executor(t), smallTask(t)
	plant := "diff --git a/sitecustomize.py b/sitecustomize.py\nnew file mode 100644\n--- /dev/null\n+++ b/sitecustomize.py\n@@ -0,0 +1,2 @@\n" +
		"+import calc\n+calc.add = lambda a, b: a + b\n"
	task.Test.Env = map[string]string{"PYTHONPATH": "."}
	v := graded(t, x, task, plant)
	wantOutcome(t, v, Unresolved, "0 of 1 FAIL_TO_PASS")
	if got := addsStartup(plant); len(got) != 1 || got[0] != "sitecustomize.py" {
		t.Errorf("added files %q", got)
	}
}

func TestEndlessTests(t *testing.T) {
	x, task := executor(t), smallTask(t)
	task.Test.Timeout = 3 * time.Second
	patch := benchmarks.Diff("calc.py", calc, strings.Replace(calc, "    return a - b", "    while True:\n        pass", 1))
	file := filepath.Join(t.TempDir(), "log")
	ev, err := x.Run(t.Context(), task, &patch, file)
	if err != nil {
		t.Fatal(err)
	}
	v, err := Judge(task, ev)
	if err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, v, TimedOut, "3s")
	if v.Hint != "tests_timed_out" || v.Report().PatchSuccessfullyApplied {
		t.Errorf("hint %q, report %+v", v.Hint, v.Report())
	}
	if b, err := os.ReadFile(file); err != nil || !strings.HasSuffix(string(b), "Timeout error: 3 seconds exceeded.") {
		t.Errorf("log ends with %.200q, %v", b, err)
	}
	if n := x.Env.Open(); n != 0 {
		t.Errorf("%d sandboxes are open", n)
	}
}

func TestCanceled(t *testing.T) {
	x, task := executor(t), smallTask(t)
	patch := benchmarks.Diff("calc.py", calc, strings.Replace(calc, "    return a - b", "    while True:\n        pass", 1))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := x.Run(ctx, task, &patch, filepath.Join(t.TempDir(), "log")); err == nil {
		t.Error("a cancelled run gave evidence")
	}
	if n := x.Env.Open(); n != 0 {
		t.Errorf("%d sandboxes are open", n)
	}
}

// TestHugeLog: a run that prints 100 MB is graded, in memory of less than three logs; one that prints more than the
// bound is not.
func TestHugeLog(t *testing.T) {
	x, task := executor(t), smallTask(t)
	task.Test.Timeout = 5 * time.Minute
	patch := benchmarks.Diff("calc.py", calc, strings.Replace(calc, "def add(a, b):\n    return a - b",
		"import sys\nfor i in range(100):\n    sys.stderr.write(('x' * 63 + '\\n') * 16384)\n\n\ndef add(a, b):\n    return a + b", 1))
	runtime.GC()
	stop := watchMemory()
	v := graded(t, x, task, patch)
	peak := stop()
	wantOutcome(t, v, Resolved, "")
	t.Logf("peak of the heap: %d MB", peak>>20)
	if peak > 300<<20 {
		t.Errorf("the heap grew to %d MB", peak>>20)
	}
	x.MaxLog = 10 << 20
	wantOutcome(t, graded(t, x, task, patch), LogTooLong, "")
}

// watchMemory samples the heap until the returned function is called, which returns the largest sample in bytes.
func watchMemory() func() uint64 {
	debug.FreeOSMemory()
	done := make(chan struct{})
	var peak uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		var m runtime.MemStats
		for {
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
			select {
			case <-done:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	return func() uint64 { close(done); wg.Wait(); return peak }
}

// TestDataSetScripts: a row's own script, and one made of test patch, set-up and commands, in a sandbox.
func TestDataSetScripts(t *testing.T) {
	x := executor(t)
	testPatch := benchmarks.Diff("tests/test_calc.py", tests, tests+"\n    def test_more(self):\n        self.assertEqual(add(2, 2), 4)\n")
	dataset := func() *milepost.Task {
		task := smallTask(t)
		task.FailToPass = []string{"test_add (tests.test_calc.T.test_add)", "test_more (tests.test_calc.T.test_more)"}
		task.PassToPass = []string{"test_double (tests.test_calc.T.test_double)"}
		task.Grading = &milepost.Grading{Rule: milepost.GradeStates, LogParser: "parse_log_django", TestPatch: testPatch,
			TestFiles: []string{"tests/test_calc.py"}, Commands: []string{"python3 -m unittest -v"}}
		return task
	}
	made := dataset()
	wantOutcome(t, graded(t, x, made, fix), Resolved, "")
	v := graded(t, x, made, benchmarks.Diff("calc.py", calc, strings.Replace(calc, "a - b", "3", 1)))
	wantOutcome(t, v, Unresolved, "1 of 2 FAIL_TO_PASS")
	if v.Resolution != Partial || v.ExitCode == nil || *v.ExitCode != 1 {
		t.Errorf("resolution %s, exit code %v", v.Resolution, v.ExitCode)
	}
	edited := fix + benchmarks.Diff("tests/test_calc.py", tests, strings.Replace(tests, "add(1, 2), 3", "1, 1", 1))
	wantOutcome(t, graded(t, x, made, edited), Resolved, "") // the edit is undone, the test patch applies

	broken := dataset()
	broken.Grading.TestPatch = benchmarks.Diff("tests/nowhere.py", "a\n", "b\n")
	broken.Grading.TestFiles = nil
	wantOutcome(t, graded(t, x, broken, fix), SetupFailed, "reset")

	own := dataset()
	own.Grading.Script = "#!/bin/bash\nset -uxo pipefail\ncd /workspace\ngit checkout HEAD tests/test_calc.py\ngit apply -v - <<'EOF_1'\n" + testPatch +
		"EOF_1\n: '>>>>> Start Test Output'\npython3 -m unittest -v\n: '>>>>> End Test Output'\ngit checkout HEAD tests/test_calc.py\n"
	v = graded(t, x, own, fix)
	wantOutcome(t, v, Resolved, "")
	if v.ExitCode == nil || *v.ExitCode != 0 {
		t.Errorf("exit code %v", v.ExitCode)
	}
}

// TestNoImages: a task that lies in an image is refused where sandboxes have none.
func TestNoImages(t *testing.T) {
	x, task := executor(t), smallTask(t)
	task.Workdir, task.Repo, task.BaseTree = "/testbed", "", ""
	_, err := x.Run(t.Context(), task, &fix, filepath.Join(t.TempDir(), "log"))
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "/testbed") {
		t.Errorf("error %v", err)
	}
}

// TestOutputs: the file that a verifier leaves is what is judged.
func TestOutputs(t *testing.T) {
	x := executor(t)
	reward := smallTask(t)
	reward.Grading = &milepost.Grading{Rule: milepost.GradeRewardFile, Commands: []string{`python3 -c "from calc import add; print(add(1, 2) / 4)" > out/reward.txt`}, Output: "/workspace/out/reward.txt"}
	v := graded(t, x, reward, fix)
	if v.Outcome != Unresolved || v.Reward != .75 || v.Resolution != Partial {
		t.Errorf("verdict %s, reward %v", v, v.Reward)
	}
	reward.Grading.Commands = []string{"true"}
	wantOutcome(t, graded(t, x, reward, fix), NoOutput, "reward.txt")

	pro := smallTask(t)
	pro.Grading = &milepost.Grading{Rule: milepost.GradeSubset, Output: "/workspace/output.json", Files: map[string]string{"judge.py": "import json, unittest\n" +
		"import tests.test_calc as m\nr = {}\nfor t in unittest.defaultTestLoader.loadTestsFromModule(m)._tests[0]:\n    x = unittest.TestResult()\n    t.run(x)\n" +
		"    r[t.id()] = x.wasSuccessful()\njson.dump({'tests': [{'name': n, 'status': 'PASSED' if ok else 'FAILED'} for n, ok in r.items()]}, open('output.json', 'w'))\n"},
		Commands: []string{"python3 judge.py"}}
	wantOutcome(t, graded(t, x, pro, fix), Resolved, "")
	wantOutcome(t, graded(t, x, pro, benchmarks.Diff("calc.py", calc, calc+"\n")), Unresolved, "0 of 1 FAIL_TO_PASS")
}

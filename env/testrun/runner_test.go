package testrun

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/env/repo"
)

var calc = map[string]string{
	"calc/__init__.py":  "from calc.core import add\n",
	"calc/core.py":      "def add(a, b):\n    return a - b\n",
	"calc/extra/e.py":   "X = 1\n",
	"tests/__init__.py": "",
	"tests/test_core.py": "import unittest\nfrom calc import add\n\nclass Core(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n" +
		"    def test_zero(self):\n        self.assertEqual(add(0, 0), 0)\n",
	"tests/test_extra.py": "import unittest\n\nclass Extra(unittest.TestCase):\n    def test_import(self):\n        import calc.extra.e\n",
}

var calcTests = []string{"tests.test_core.Core.test_add", "tests.test_core.Core.test_zero", "tests.test_extra.Extra.test_import", "tests.test_gone.X.test"}

// bothWays runs a test with fresh sandboxes and with resident processes.
func bothWays(t *testing.T, f func(t *testing.T, b *bench)) {
	for _, way := range []string{"fresh", "resident"} {
		t.Run(way, func(t *testing.T) {
			f(t, newBench(t, func(c *Config) { c.Resident = way == "resident" }))
		})
	}
}

func TestRunStates(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bench) {
		task := b.task(calc, calcTests...)
		out := b.run(task, milepost.ProbeCompleted, "FPPN")
		if out.Tree != task.BaseTree || len(out.Extra) != 0 || out.Ran <= 0 {
			t.Fatalf("%+v", out)
		}
		if !strings.Contains(string(out.Log), "-1 != 3") {
			t.Fatalf("the log does not show the failure:\n%s", out.Log)
		}
		delta, tree := b.delta(task, map[string]*string{"calc/core.py": text("def add(a, b):\n    return a + b\n")})
		b.runOn(task, tree, delta, milepost.ProbeCompleted, "PPPN")
		delta, tree = b.delta(task, map[string]*string{"calc/core.py": text("def add(a, b):\n    return a +\n")})
		b.runOn(task, tree, delta, milepost.ProbeCompleted, "EEEN")
		// A directory that the tree no longer has must not be importable as an empty package.
		delta, tree = b.delta(task, map[string]*string{"calc/extra/e.py": nil, "calc/core.py": text("import calc.extra\nadd = None\n")})
		b.runOn(task, tree, delta, milepost.ProbeCompleted, "EEEN")
		b.run(task, milepost.ProbeCompleted, "FPPN")
	})
}

// TestSameAsUnittest compares a resident run with the parsed log of a fresh one on the sample that covers what unittest
// can report.
func TestSameAsUnittest(t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"__init__", "test_a", "test_bad", "test_syntax", "test_modskip", "test_setupmod"} {
		data, err := os.ReadFile(filepath.Join("..", "testlog", "testdata", "src", "t", name+".py"))
		if err != nil {
			t.Fatal(err)
		}
		files["t/"+name+".py"] = string(data)
	}
	tests := []string{"t.test_bad.X.y", "t.test_syntax.X.y", "t.test_modskip.X.y", "t.test_setupmod.M.test_1", "t.test_gone.X.y", "t.test_a.B.test_1",
		"t.test_a.C.test_1", "t.test_a.D.test_1", "t.test_a.E.test_1", "t.test_a.F.test_async"}
	for _, name := range []string{"doc", "doc_fail", "err", "fail", "noise", "noise_tail", "ok", "print_ok_then_fail", "skip", "sub", "sub_err", "sub_ok", "sub_skip", "xf", "xp", "nope"} {
		tests = append(tests, "t.test_a.A.test_"+name)
	}
	var reports []string
	bothWays(t, func(t *testing.T, b *bench) {
		out, err := b.Run(t.Context(), b.task(files, tests...), b.task(files, tests...).BaseTree, nil)
		if err != nil {
			t.Fatal(err)
		}
		letters, _ := out.Report.MarshalText()
		reports = append(reports, string(letters))
	})
	if len(reports) != 2 || reports[0] != reports[1] || strings.Count(reports[0], "N") != 2 {
		t.Fatalf("fresh and resident reports differ, or not two are N:\n%s\n%s", reports[0], reports[1])
	}
}

func TestTreeIsProven(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bench) {
		task := b.task(calc, calcTests...)
		delta, tree := b.delta(task, map[string]*string{"calc/core.py": text("x\n")})
		out := b.runOn(task, task.BaseTree, delta, milepost.ProbeTreeWrong, "")
		if !strings.Contains(out.Reason, tree) {
			t.Fatal(out.Reason)
		}
		b.runOn(task, tree, nil, milepost.ProbeTreeWrong, "")

		delta[0].Blob = repo.HashBlob([]byte("never stored"))
		base, err := b.store.Base(t.Context(), task)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Run(t.Context(), task, base.Index.Apply(delta).TreeID(), delta)
		wantKind(t, err, milepost.KindNotFound, delta[0].Blob)
		_, err = b.Run(t.Context(), task, tree, []milepost.TreeChange{{Path: "../x", Mode: repo.ModeFile, Blob: delta[0].Blob}})
		wantKind(t, err, milepost.KindInvalid, "../x")
		b.run(task, milepost.ProbeCompleted, "FPPN")
	})
}

func TestTaskErrors(t *testing.T) {
	b := newBench(t, nil)
	for words, change := range map[string]func(*milepost.TestCommand){
		"test.argv is empty":              func(c *milepost.TestCommand) { c.Argv = nil },
		`test.format "tap"`:               func(c *milepost.TestCommand) { c.Format = "tap" },
		`test.resident "pytest"`:          func(c *milepost.TestCommand) { c.Resident = "pytest" },
		"test.timeout":                    func(c *milepost.TestCommand) { c.Timeout = -1 },
		"of the form python3 -m unittest": func(c *milepost.TestCommand) { c.Argv = []string{"make", "test"} },
	} {
		task := b.task(calc, calcTests...)
		change(&task.Test)
		_, err := b.Run(t.Context(), task, task.BaseTree, nil)
		wantKind(t, err, milepost.KindInvalid, "task sample", words)
	}
}

func TestFreshUnparsed(t *testing.T) {
	b := newBench(t, nil)
	task := b.task(calc, calcTests...)
	task.Test.Resident = ""
	task.Test.Argv = []string{"sh", "-c", "echo nothing of note; exit 3"}
	out := b.run(task, milepost.ProbeUnparsed, "")
	if string(out.Log) != "nothing of note\n\n" || !strings.Contains(out.Reason, "no test result") {
		t.Fatalf("%+v", out)
	}
}

func TestTimeoutAndMemory(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bench) {
		b.cfg.Limits.Memory = 200 << 20
		hang := b.task(map[string]string{"test_h.py": "import unittest, time\nclass H(unittest.TestCase):\n    def test_h(self):\n        time.sleep(1000)\n"}, "test_h.H.test_h")
		hang.Test.Timeout = 500 * time.Millisecond
		begin := time.Now()
		out := b.run(hang, milepost.ProbeTimeout, "")
		if took := time.Since(begin); took > 15*time.Second || !strings.Contains(out.Reason, "500ms") {
			t.Fatalf("%s after %s", out.Reason, took)
		}
		big := b.task(map[string]string{"test_m.py": "import unittest\nclass M(unittest.TestCase):\n    def test_m(self):\n        x = bytearray(1 << 30)\n        for i in range(0, len(x), 4096):\n            x[i] = 1\n"}, "test_m.M.test_m")
		b.run(big, milepost.ProbeMemory, "")
		b.run(b.task(calc, calcTests...), milepost.ProbeCompleted, "FPPN")
	})
}

func TestCancelAndClose(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bench) {
		hang := b.task(map[string]string{"test_h.py": "import unittest, time\nclass H(unittest.TestCase):\n    def test_h(self):\n        time.sleep(1000)\n"}, "test_h.H.test_h")
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		_, err := b.Run(ctx, hang, hang.BaseTree, nil)
		wantKind(t, err, milepost.KindCanceled)
		b.run(b.task(calc, calcTests...), milepost.ProbeCompleted, "FPPN")

		ended := make(chan error)
		go func() {
			_, err := b.Run(t.Context(), hang, hang.BaseTree, nil)
			ended <- err
		}()
		time.Sleep(300 * time.Millisecond)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		wantKind(t, <-ended, milepost.KindCanceled)
		_, err = b.Run(t.Context(), hang, hang.BaseTree, nil)
		if err == nil {
			t.Fatal("a closed runner runs")
		}
	})
}

// TestUnconfined has resident processes without a namespace of their own: they must kill only what they started and clean
// only what is theirs.
func TestUnconfined(t *testing.T) {
	b := newBenchOn(t, local.Config{Root: t.TempDir(), Unconfined: true}, nil)
	mine := filepath.Join(t.TempDir(), "mine")
	if err := os.WriteFile(mine, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.run(b.task(calc, calcTests...), milepost.ProbeCompleted, "FPPN")
	hang := b.task(map[string]string{"test_h.py": "import unittest, os, time\nclass H(unittest.TestCase):\n    def test_h(self):\n        os.fork(); time.sleep(1000)\n"}, "test_h.H.test_h")
	hang.Test.Timeout = 500 * time.Millisecond
	b.run(hang, milepost.ProbeTimeout, "")
	b.run(b.task(calc, calcTests...), milepost.ProbeCompleted, "FPPN")
	if _, err := os.Stat(mine); err != nil {
		t.Fatal(err)
	}
}

func TestConfig(t *testing.T) {
	good := Default()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*Config){
		"timeout":       func(c *Config) { c.Timeout = 0 },
		"slots":         func(c *Config) { c.Slots = -1 },
		"max_uses":      func(c *Config) { c.MaxUses = 0 },
		"grace":         func(c *Config) { c.Grace = 0 },
		"log_bytes":     func(c *Config) { c.LogBytes = -1 },
		"scratch":       func(c *Config) { c.Scratch = "relative" },
		"limits.memory": func(c *Config) { c.Limits.Memory = -1 },
	} {
		c := Default()
		change(&c)
		wantKind(t, c.Validate(), milepost.KindInvalid, field)
	}
}

func TestClip(t *testing.T) {
	log := []byte(strings.Repeat("a", 500) + strings.Repeat("z", 500))
	got := clip(log, 100)
	if len(got) != 100 || !strings.HasPrefix(string(got), "aaaa") || !strings.HasSuffix(string(got), "zzzz") || !strings.Contains(string(got), "[...]") {
		t.Fatalf("%d: %s", len(got), got)
	}
	if !slices.Equal(clip(log, 1000), log) || len(clip(log, 3)) != 3 || len(clip(log, 0)) != 0 {
		t.Fatal("clip changes what fits, or keeps more than asked")
	}
}

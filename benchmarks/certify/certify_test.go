package certify_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/certify"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"
	"github.com/milepost-rl/milepost/env/testrun"
)

// repair is a small task of one fault: add subtracts. Tests of a file named in extra come beside the good ones.
type repair struct {
	id        string
	files     map[string]string // over the usual ones
	fixed     string            // of calc.py; "" is the right one
	tests     []string          // besides the usual ones
	statement string
	protected []string // nil: tests/ and what Python runners read unasked
	argv      string
	format    string
}

const goodCalc = "def add(left, right):\n    total_of_both = left + right\n    return total_of_both\n\n\ndef twice(x):\n    return 2 * x\n"

func (r repair) task(t *testing.T, dir string) *milepost.Task {
	t.Helper()
	bad := strings.Replace(goodCalc, "left + right", "left - right", 1)
	files := map[string]string{
		"calc.py": bad,
		"tests/test_calc.py": "import unittest\nimport calc\n\n\nclass Calc(unittest.TestCase):\n    def test_adding_numbers(self):\n        self.assertEqual(calc.add(2, 3), 5)\n\n" +
			"    def test_twice(self):\n        self.assertEqual(calc.twice(2), 4)\n",
	}
	maps.Copy(files, r.files)
	var list []benchmarks.File
	for _, p := range slices.Sorted(maps.Keys(files)) {
		list = append(list, benchmarks.File{Path: p, Data: []byte(files[p])})
	}
	repo := filepath.Join(dir, "repos", r.id)
	commit, tree, err := benchmarks.WriteRepo(repo, list)
	if err != nil {
		t.Fatal(err)
	}
	fixed := r.fixed
	if fixed == "" {
		fixed = goodCalc
	}
	task := &milepost.Task{ID: r.id, Kind: milepost.BugRepair, Statement: "Sums are wrong.", Repo: repo, BaseCommit: commit, BaseTree: tree,
		Image: "local:python3", ReferencePatch: benchmarks.Diff("calc.py", bad, fixed), RelevantFiles: []string{"calc.py"}, Protected: r.protected,
		Test:       milepost.TestCommand{Argv: strings.Fields("python3 -m unittest discover -v -s tests -t ."), Format: "unittest"},
		Tests:      append([]string{"tests.test_calc.Calc.test_adding_numbers", "tests.test_calc.Calc.test_twice"}, r.tests...),
		FailToPass: []string{"tests.test_calc.Calc.test_adding_numbers"}, PassToPass: append([]string{"tests.test_calc.Calc.test_twice"}, r.tests...)}
	if r.argv != "" {
		task.Test.Argv, task.Test.Format = strings.Fields(r.argv), r.format
		task.FailToPass, task.PassToPass = []string{"tests/test_calc.py::test_adding_numbers"}, []string{"tests/test_calc.py::test_twice"}
		task.Tests = slices.Concat(task.FailToPass, task.PassToPass)
	}
	if r.statement != "" {
		task.Statement = r.statement
	}
	if r.protected == nil {
		task.Protected = []string{"tests/", "conftest.py", "sitecustomize.py", "usercustomize.py", "unittest.py", "pytest.py", "pytest.ini"}
	}
	slices.Sort(task.Tests)
	return task
}

func certifier(w benchtest.World) *certify.Certifier {
	return &certify.Certifier{Checker: w.Checker, Env: w.Env, Workers: 2}
}

func one(t *testing.T, w benchtest.World, r repair, n int) *benchmarks.Certificate {
	t.Helper()
	cert, err := certifier(w).Task(context.Background(), r.task(t, t.TempDir()), n)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func outcomes(cert *benchmarks.Certificate) map[string]string {
	out := map[string]string{}
	for _, s := range cert.Sabotage {
		out[s.Name] = s.Outcome
	}
	return out
}

// packaged makes the tests a package.
func packaged() map[string]string { return map[string]string{"tests/__init__.py": ""} }

// TestGoodTask: nothing is wrong with it but that its own process can be taken over, which is said.
func TestGoodTask(t *testing.T) {
	w := benchtest.Open(t, "")
	cert := one(t, w, repair{id: "good", files: packaged()}, 2)
	if !cert.OK(false) || !cert.Covers(2) || cert.Covers(3) || len(cert.Flaky) > 0 {
		t.Errorf("certificate %+v", cert)
	}
	got := outcomes(cert)
	for name, want := range map[string]string{"conftest": "refused", "startup module": "refused", "runner shadowed": "refused", "tests edited": "refused",
		"exit in package": "unresolved", "exit at import": "unresolved", "framework patched": "resolved"} {
		if got[name] != want {
			t.Errorf("sabotage by %s: %q, want %q", name, got[name], want)
		}
	}
	if cert.OK(true) || cert.Times["untouched"].Min <= 0 || cert.Times["reference"].Max <= 0 || cert.Times["sabotage"].Median <= 0 {
		t.Errorf("strict %v, times %v", cert.OK(true), cert.Times)
	}
}

// TestGraderThatIsNotIntact: without protection files decide the verdict, and the task is not fit for use.
func TestGraderThatIsNotIntact(t *testing.T) {
	python := benchtest.PytestPython(t)
	w := benchtest.Open(t, python)
	cert := one(t, w, repair{id: "open", protected: []string{}, files: map[string]string{"tests/test_calc.py": "import sys\nsys.path.insert(0, '.')\nimport calc\n\n\n" +
		"def test_adding_numbers():\n    assert calc.add(2, 3) == 5\n\n\ndef test_twice():\n    assert calc.twice(2) == 4\n"}, argv: "python3 -m pytest -rA -q -p no:cacheprovider", format: "pytest"}, 1)
	got := outcomes(cert)
	for _, name := range []string{"conftest", "runner shadowed", "runner configured", "tests edited"} {
		if got[name] != "resolved" {
			t.Errorf("sabotage by %s: %q, want resolved", name, got[name])
		}
	}
	if cert.OK(false) {
		t.Errorf("certified: %v", got)
	}
}

func TestBrokenTasksAreFoundOut(t *testing.T) {
	w := benchtest.Open(t, "")
	for name, c := range map[string]struct {
		repair
		check, want string
	}{
		"p2p fails":              {repair{files: map[string]string{"tests/__init__.py": "", "tests/test_b.py": "import unittest\n\n\nclass B(unittest.TestCase):\n    def test_never(self):\n        self.fail()\n"}, tests: []string{"tests.test_b.B.test_never"}}, benchmarks.CheckRuns, "pass_to_pass test tests.test_b.B.test_never does not pass"},
		"the statement tells":    {repair{files: packaged(), statement: "Write total_of_both = left + right in add."}, benchmarks.CheckStatement, "the statement holds a line of the fix"},
		"a copy of the fix":      {repair{files: map[string]string{"tests/__init__.py": "", "old/calc.txt": goodCalc + "\ndef more_than_that_is_here(x):\n    return x\n"}, fixed: goodCalc + "\n\ndef more_than_that_is_here(x):\n    return x\n"}, benchmarks.CheckLeaks, "old/calc.txt holds all"},
		"the mended file itself": {repair{files: map[string]string{"tests/__init__.py": "", "build/lib/calc.py": goodCalc}}, benchmarks.CheckLeaks, "git holds the mended content of a file"},
		"a test file is not protected": {repair{files: packaged(), protected: []string{"conftest.py", "sitecustomize.py", "usercustomize.py", "unittest.py", "pytest.py", "pytest.ini"}},
			benchmarks.CheckGrader, "the grader takes sabotage for a solution: tests edited"},
	} {
		c.id = "t"
		cert := one(t, w, c.repair, 1)
		i := slices.IndexFunc(cert.Problems, func(f benchmarks.Finding) bool { return f.Check == c.check && strings.Contains(f.What, c.want) })
		if i < 0 {
			t.Errorf("%s: problems %v, want %s: %q", name, cert.Problems, c.check, c.want)
		}
	}
}

// alternating passes a test on every second run of a tree.
type alternating struct {
	benchmarks.Runner
	runs atomic.Int64
	test string
}

func (a *alternating) Run(ctx context.Context, task *milepost.Task, tree string, delta []milepost.TreeChange) (testrun.Outcome, error) {
	out, err := a.Runner.Run(ctx, task, tree, delta)
	if i, ok := slices.BinarySearch(task.Tests, a.test); ok && err == nil && len(out.Report) > i && a.runs.Add(1)%3 == 0 {
		out.Report[i] = milepost.Failed
	}
	return out, err
}

// TestFlakyTestsAreNamedWithAPosterior and left out of what a run uses.
func TestFlakyTestsAreNamedWithAPosterior(t *testing.T) {
	w := benchtest.Open(t, "")
	w.Checker.Runner = &alternating{Runner: w.Checker.Runner, test: "tests.test_calc.Calc.test_twice"}
	dir := t.TempDir()
	if err := benchmarks.Save(dir, []*milepost.Task{repair{id: "wobbly", files: packaged()}.task(t, dir)}); err != nil {
		t.Fatal(err)
	}
	r, err := certifier(w).Set(context.Background(), dir, 6)
	if err != nil || len(r.Failed) > 0 {
		t.Fatal(err, r.Failed)
	}
	cert := r.Certificates["wobbly"]
	if !cert.OK(false) || cert.OK(true) || !slices.Equal(cert.FlakyTests(), []string{"tests.test_calc.Calc.test_twice"}) {
		t.Fatalf("certificate %+v", cert)
	}
	for _, f := range cert.Flaky { // 4 of 6 on either side: Beta(5, 3)
		if f.Passed != 4 || f.Runs != 6 || f.Mean != 5./8 || f.Low < .29 || f.Low > .2905 || f.High < .9009 || f.High > .9013 {
			t.Errorf("flake %+v", f)
		}
	}
	taken, err := benchmarks.LoadCertified(dir, benchmarks.TrustRequire, nil)
	if err != nil || !slices.Equal(taken.Tasks[0].Flaky, cert.FlakyTests()) || len(taken.Tasks[0].Tests) != 2 || len(taken.Lines("set")) != 1 {
		t.Errorf("taken %+v, %v", taken, err)
	}
}

// failing refuses one task, as a lost sandbox would.
type failing struct {
	benchmarks.Runner
	task  string
	calls atomic.Int64
}

func (f *failing) Run(ctx context.Context, task *milepost.Task, tree string, delta []milepost.TreeChange) (testrun.Outcome, error) {
	f.calls.Add(1)
	if task.ID == f.task {
		return testrun.Outcome{}, milepost.E("test", milepost.KindUnavailable, "the sandbox is gone")
	}
	return f.Runner.Run(ctx, task, tree, delta)
}

// TestSetGoesOn: one task that fails stops no other, and what was done is not done again, be it in the file or in the log
// of a validation that was killed.
func TestSetGoesOn(t *testing.T) {
	w := benchtest.Open(t, "")
	real, dir := w.Checker.Runner, t.TempDir()
	tasks := []*milepost.Task{repair{id: "a", files: packaged()}.task(t, dir), repair{id: "b", files: packaged()}.task(t, dir), repair{id: "c", files: packaged()}.task(t, dir)}
	if err := benchmarks.Save(dir, tasks); err != nil {
		t.Fatal(err)
	}
	if _, err := benchmarks.LoadCertified(dir, benchmarks.TrustRequire, nil); milepost.KindOf(err) != milepost.KindConflict || !strings.Contains(err.Error(), "a: it was never validated") {
		t.Errorf("a set without certificates: %v", err)
	}
	f := &failing{Runner: real, task: "b"}
	w.Checker.Runner = f
	r, err := certifier(w).Set(context.Background(), dir, 1)
	if err != nil || len(r.Failed) != 1 || r.Failed[0].Task != "b" || len(r.Certificates) != 2 {
		t.Fatalf("result %+v, %v", r, err)
	}
	f.task, f.calls = "", atomic.Int64{}
	// What a killed validation leaves: the log, its last line torn.
	log, err := benchmarks.OpenCertificateLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, benchmarks.CertificatesFile)
	if err := errors.Join(log.Add(r.Certificates["a"]), log.Add(r.Certificates["c"]), log.Close(), os.Remove(file)); err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(dir, ".certificates.part.jsonl")
	torn, err := os.OpenFile(part, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := torn.WriteString(`{"task": "b", "im`); err != nil {
		t.Fatal(err)
	}
	_ = torn.Close()
	r, err = certifier(w).Set(context.Background(), dir, 1)
	if err != nil || len(r.Failed) > 0 || r.Kept != 2 || len(r.Certificates) != 3 {
		t.Fatalf("result %+v, %v", r, err)
	}
	once := f.calls.Load()
	if r, err = certifier(w).Set(context.Background(), dir, 1); err != nil || r.Kept != 3 || f.calls.Load() != once {
		t.Errorf("a third time: %d kept, %d further runs, %v", r.Kept, f.calls.Load()-once, err)
	}
	if _, err := os.Stat(part); !os.IsNotExist(err) {
		t.Errorf("the log is left: %v", err)
	}
	stale(t, dir, tasks)
}

// stale: a change of task or image makes the certificate another's; weight and split do not.
func stale(t *testing.T, dir string, tasks []*milepost.Task) {
	t.Helper()
	certs, err := benchmarks.LoadCertificates(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*milepost.Task)
		want   string
	}{
		"statement": {func(k *milepost.Task) { k.Statement += "!" }, "the task has changed"},
		"tests":     {func(k *milepost.Task) { k.PassToPass = nil }, "the task has changed"},
		"image":     {func(k *milepost.Task) { k.Image = "local:other" }, "the image is another"},
		"weight":    {func(k *milepost.Task) { k.Weight, k.Split, k.Repo = 3, "train", "/elsewhere" }, ""},
	} {
		k := *tasks[0]
		c.change(&k)
		got, err := certs["a"].Stale(&k)
		if err != nil || !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

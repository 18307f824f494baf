package mine_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/internal/benchtest"
	"github.com/milepost-rl/milepost/benchmarks/mine"
)

const (
	wrong  = "def fee(x):\n    return x - 7\n\n\ndef due(x):\n    return x + 2\n"
	right  = "def fee(x):\n    return x + 7\n\n\ndef due(x):\n    return x + 2\n"
	tested = "from tax import due, fee\n\n\ndef test_due():\n    assert due(1) == 3\n"
	more   = tested + "\n\ndef test_fee_adds():\n    assert fee(1) == 8\n"
)

// history is a repository whose commits are, from the oldest: the base, one without tests, one whose tests pass without
// it, a fix with its test, documentation, and a change of which the message says nothing.
func history(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	git("init", "-q")
	for _, c := range []struct {
		message string
		files   map[string]string
	}{
		{"Base", map[string]string{"tax/__init__.py": wrong, "tests/test_tax.py": tested}},
		{"Add a module that nobody tests as yet", map[string]string{"tax/more.py": "X = 1\n"}},
		{"Reword the module and test it once more", map[string]string{"tax/more.py": "X = 2\n", "tests/test_more.py": "def test_more():\n    assert 1 + 1 == 2\n"}},
		{"fee subtracts where it must add (#12)\n\nThe fee of 1 came out as -6.\n    return x + 7\nCo-authored-by: B <b@c>\n", map[string]string{"tax/__init__.py": right, "tests/test_tax.py": more}},
		{"Tell people about the fee", map[string]string{"README.md": "fee\n"}},
		{"wip", map[string]string{"tax/more.py": "X = 3\n", "tests/test_more.py": "from tax.more import X\n\n\ndef test_more():\n    assert X == 3\n"}},
	} {
		for name, text := range c.files {
			p := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		git("add", "-A")
		git("commit", "-q", "-m", c.message)
	}
	return dir
}

func TestAFixWithItsTestsBecomesATask(t *testing.T) {
	w := benchtest.Open(t, benchtest.PytestPython(t))
	out := filepath.Join(t.TempDir(), "set")
	cfg := mine.Config{Repo: history(t), Runs: 1}
	_, stats, err := mine.Make(context.Background(), cfg, w.Checker, out, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"changes documentation alone", "changes no test module", "has no single parent", "no test fails before the change", "says too little"}
	if got := stats.List(); stats.Candidates != 6 || stats.Tasks != 1 || !slices.Equal(got, want) {
		t.Errorf("%+v, want one task of 6 candidates and the reasons %v", stats, want)
	}
	tasks, err := benchmarks.Load(out)
	if err != nil {
		t.Fatal(err)
	}
	task := tasks[0]
	if task.Statement != "fee subtracts where it must add\n\nThe fee of 1 came out as -6." {
		t.Errorf("statement %q", task.Statement)
	}
	if !slices.Equal(task.FailToPass, []string{"tests/test_tax.py::test_fee_adds"}) || !slices.Equal(task.PassToPass, []string{"tests/test_tax.py::test_due"}) {
		t.Errorf("fail %v, pass %v", task.FailToPass, task.PassToPass)
	}
	if !slices.Equal(task.RelevantFiles, []string{"tax/__init__.py"}) || strings.Contains(task.ReferencePatch, "test_") || task.Test.Hidden["tests/test_tax.py"] != more {
		t.Errorf("patch %s, hidden %v", task.ReferencePatch, task.Test.Hidden)
	}
	if b, err := exec.Command("git", "-C", task.Repo, "grep", "-c", "x + 7", task.BaseCommit).Output(); err == nil {
		t.Errorf("the task's own history holds its fix: %s", b)
	}
	resumes(t, w, cfg, out)
}

// resumes makes the set again from the ledger of an interrupted call and finds it the same, byte for byte.
func resumes(t *testing.T, w benchtest.World, cfg mine.Config, out string) {
	t.Helper()
	file, ledger := filepath.Join(out, benchmarks.TasksFile), filepath.Join(out, mine.LedgerFile)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	torn := append(bytes.Join(lines[:len(lines)-2], nil), `{"candidate":"torn`...) // the last verdict and the end of a write are lost
	for _, err := range []error{os.Remove(file), os.WriteFile(ledger, torn, 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := mine.Make(context.Background(), cfg, w.Checker, out, nil); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("resumed set differs, %v:\n%s\n%s", err, before, after)
	}
	if now, err := os.ReadFile(ledger); err != nil || !bytes.Equal(now, whole) {
		t.Errorf("resumed ledger differs, %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	cfg.MinMessage = 50
	if _, _, err := mine.Make(context.Background(), cfg, w.Checker, out, nil); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("a ledger of another configuration: %v", err)
	}
}

func TestReleasesAreCutByTheTestsThatNeedThem(t *testing.T) {
	w := benchtest.Open(t, benchtest.PytestPython(t))
	old := map[string]string{
		"tax-1.0/tax/__init__.py": "", "tax-1.0/tax/fee.py": wrong, "tax-1.0/tax/pay.py": "def pay(x):\n    return x\n", "tax-1.0/CHANGES.md": "# 1.0\nFirst.\n",
		"tax-1.0/tests/test_fee.py": "from tax.fee import due\n\n\ndef test_due():\n    assert due(1) == 3\n",
		"tax-1.0/tests/test_pay.py": "from tax.pay import pay\n\n\ndef test_pay():\n    assert pay(0) == 0\n",
	}
	now := map[string]string{
		"tax-2.0/tax/__init__.py": "", "tax-2.0/tax/fee.py": right, "tax-2.0/tax/pay.py": "def pay(x):\n    return 2 * x\n",
		"tax-2.0/CHANGES.md":        "# 2.0\nThe fee is added, and what is paid is doubled.\n\n# 1.0\nFirst.\n",
		"tax-2.0/tests/test_fee.py": old["tax-1.0/tests/test_fee.py"] + "\n\ndef test_fee():\n    from tax.fee import fee\n    assert fee(1) == 8\n",
		"tax-2.0/tests/test_pay.py": old["tax-1.0/tests/test_pay.py"] + "\n\ndef test_double():\n    assert pay(2) == 4\n",
	}
	dir := t.TempDir()
	cfg := mine.Config{Old: "tax==1.0", New: "tax==2.0", OldArchive: filepath.Join(dir, "old.tar.gz"), NewArchive: filepath.Join(dir, "new.tar.gz"), Runs: 1}
	for _, err := range []error{os.WriteFile(cfg.OldArchive, benchtest.Tarball(t, old), 0o644), os.WriteFile(cfg.NewArchive, benchtest.Tarball(t, now), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tasks, stats, err := mine.Make(context.Background(), cfg, w.Checker, filepath.Join(dir, "set"), nil)
	if err != nil || len(tasks) != 3 {
		t.Fatalf("%d tasks, %+v, %v; want the whole and two groups", len(tasks), stats, err)
	}
	for i, want := range [][]string{{"tax/fee.py", "tax/pay.py"}, {"tax/fee.py"}, {"tax/pay.py"}} {
		if !slices.Equal(tasks[i].RelevantFiles, want) {
			t.Errorf("task %s changes %v, want %v", tasks[i].ID, tasks[i].RelevantFiles, want)
		}
		if !strings.HasPrefix(tasks[i].Statement, "# 2.0\nThe fee is added, and what is paid is doubled.") || strings.Contains(tasks[i].Statement, "First") {
			t.Errorf("statement %q", tasks[i].Statement)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "set", ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWhatCannotBeMinedIsNamed(t *testing.T) {
	for want, cfg := range map[string]mine.Config{
		"either a repository or two releases": {},
		"different packages":                  {Old: "a==1", New: "b==2", Cache: "c"},
		"not NAME==VERSION":                   {Old: "a", New: "a==2", Cache: "c"},
		"min_message is -1":                   {Repo: ".", MinMessage: -1},
	} {
		if err := cfg.Validate(); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	_, _, err := mine.Make(context.Background(), mine.Config{Repo: t.TempDir()}, &benchmarks.Checker{}, t.TempDir(), nil)
	if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "git rev-parse in") {
		t.Errorf("a folder without git: %v", err)
	}
}

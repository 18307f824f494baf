package dataset

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
)

const (
	commit = "0123456789abcdef0123456789abcdef01234567"
	patch  = "diff --git a/pkg/a.py b/pkg/a.py\n--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"
)

// importTo imports and loads what came out.
func importTo(t *testing.T, opts Options) ([]*milepost.Task, Summary) {
	t.Helper()
	if opts.Out == "" {
		opts.Out = filepath.Join(t.TempDir(), "set")
	}
	sum, err := Import(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := benchmarks.Load(opts.Out)
	if err != nil {
		t.Fatal(err)
	}
	if len(tasks) != sum.Tasks {
		t.Errorf("%d tasks were loaded, the summary says %d", len(tasks), sum.Tasks)
	}
	return tasks, sum
}

// TestRealRows imports the real rows, each told by its columns, and looks at what a reader of the data set would.
func TestRealRows(t *testing.T) {
	want := map[string]struct {
		format, image, workdir string
		f2p, p2p               int
		relevant               string
	}{
		"pydicom__pydicom-1458":    {"swe-bench", "swebench/sweb.eval.x86_64.pydicom_1776_pydicom-1458:latest", "/testbed", 2, 159, "pydicom/pixel_data_handlers/numpy_handler.py"},
		"pylint-dev__astroid-1268": {"swe-bench", "swebench/sweb.eval.x86_64.pylint-dev_1776_astroid-1268:latest", "/testbed", 1, 91, "astroid/nodes/as_string.py"},
		"astropy__astropy-12907":   {"swe-bench-verified", "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest", "/testbed", 2, 13, "astropy/modeling/separable.py"},
		"getmoto__moto-5085":       {"swe-gym", "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5085", "/testbed", 1, 77, ""},
		"unidata__netcdf-c-1925":   {"swe-rebench-v2", "registry.example/swerebenchv2/unidata-netcdf-c:1925-ad6bff3", "/netcdf-c", 12, 177, ""},
	}
	lines, err := os.ReadFile("testdata/rows.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		var real struct{ Row json.RawMessage }
		if err := json.Unmarshal([]byte(line), &real); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rows.jsonl")
		if err := os.WriteFile(file, append(real.Row, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		tasks, _ := importTo(t, Options{From: file, Out: filepath.Join(filepath.Dir(file), "set")})
		task := tasks[0]
		w, ok := want[task.ID]
		if !ok {
			t.Fatalf("unexpected task %s", task.ID)
		}
		delete(want, task.ID)
		if task.Origin.Dataset != w.format || task.Image != w.image || task.Workdir != w.workdir || len(task.FailToPass) != w.f2p || len(task.PassToPass) != w.p2p {
			t.Errorf("%s: %s, %s, %s, %d and %d tests; want %+v", task.ID, task.Origin.Dataset, task.Image, task.Workdir, len(task.FailToPass), len(task.PassToPass), w)
		}
		if len(task.BaseCommit) != 40 || len(task.Tests) != w.f2p+w.p2p || task.Grading.TestPatch == "" || len(task.Grading.TestFiles) == 0 || task.Test.Timeout != 30*time.Minute {
			t.Errorf("%s: base %q, %d tests, %d test files", task.ID, task.BaseCommit, len(task.Tests), len(task.Grading.TestFiles))
		}
		if w.relevant != "" && !slices.Equal(task.RelevantFiles, []string{w.relevant}) {
			t.Errorf("%s: relevant files %v", task.ID, task.RelevantFiles)
		}
		if task.Meta["hints_text"] != "" {
			t.Errorf("%s: hints in the metadata", task.ID)
		}
		checkKept(t, filepath.Join(filepath.Dir(file), "set"), task.ID, real.Row)
	}
	for id := range want {
		t.Errorf("task %s was not imported", id)
	}
}

// checkKept holds the kept row against the one that was read: no column may be lost or changed.
func checkKept(t *testing.T, set, id string, want json.RawMessage) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(set, benchmarks.RowsFile))
	if err != nil {
		t.Fatal(err)
	}
	var kept benchmarks.Row
	if err := json.Unmarshal(b, &kept); err != nil {
		t.Fatal(err)
	}
	var got, was any
	if err := json.Unmarshal(kept.Cols, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(want, &was); err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(got)
	b, _ = json.Marshal(was)
	if kept.Task != id || kept.Row != 1 || string(a) != string(b) {
		t.Errorf("%s: the kept row differs from the one that was read", id)
	}
}

// TestEveryFormat imports one hand-made file of each other form; check looks at what is peculiar to it.
func TestEveryFormat(t *testing.T) {
	for name, c := range map[string]struct {
		format, image, workdir string
		rule                   milepost.GradeRule
		check                  func(*testing.T, *milepost.Task)
	}{
		"swe-bench-5.jsonl": {"swe-bench-verified", "swebench/own-pkg-1", "/testbed", milepost.GradeFailures, func(t *testing.T, k *milepost.Task) {
			equal(t, "script", k.Grading.Script, "#!/bin/bash\nset -uxo pipefail\npytest\n")
			equal(t, "parser", k.Grading.LogParser, "parse_log_pytest")
			equal(t, "difficulty", k.Meta["difficulty"], "<15 min fix")
		}},
		"multilingual.jsonl": {"swe-bench-multilingual", "swebench/sweb.eval.x86_64.own_1776_pkg-1:latest", "/testbed", milepost.GradeStates, func(t *testing.T, k *milepost.Task) {
			equal(t, "language", k.Meta["language"], "rust")
		}},
		"pro.jsonl": {"swe-bench-pro", "jefzda/sweap-images:own.pkg-Own__pkg-0123", "/app", milepost.GradeSubset, func(t *testing.T, k *milepost.Task) {
			equal(t, "f2p", strings.Join(k.FailToPass, "; "), `tests/test_a.py::test_a[it's "x"]; tests/test_a.py::it's`)
			equal(t, "p2p", strings.Join(k.PassToPass, "; "), `t | b; t\n`)
			equal(t, "setup", strings.Join(k.Grading.Setup, "; "), "git checkout fedcba9 -- tests/test_a.py")
			equal(t, "prepare", strings.Join(k.Prepare, "; "), "git reset --hard "+commit+"; git clean -fd; git checkout "+commit)
			equal(t, "statement", k.Statement, "two is wrong\n\nRequirements:\nIt says TWO.\n\nNew interfaces introduced:\nNo new interfaces")
			equal(t, "files", strings.Join(k.Grading.TestFiles, ";"), "tests/test_a.py")
		}},
		"rebench.jsonl": {"swe-rebench", "swerebench/sweb.eval.x86_64.own_1776_pkg-1", "/testbed", milepost.GradeStates, func(t *testing.T, k *milepost.Task) {
			equal(t, "setup", strings.Join(k.Grading.Setup, "; "), "pip install -e .[dev]")
			equal(t, "commands", strings.Join(k.Grading.Commands, "; "), "pytest --no-header -rA")
			equal(t, "license", k.Meta["license_name"], "MIT")
		}},
		"smith.jsonl": {"swe-smith", "swebench/swesmith.x86_64.own_1776_pkg.01234567", "/testbed", milepost.GradeStates, func(t *testing.T, k *milepost.Task) {
			equal(t, "reference", k.ReferencePatch, strings.Replace(patch, "-two\n+TWO", "-TWO\n+two", 1))
			equal(t, "prepare", k.Prepare[0], "git apply - <<'MILEPOST_PATCH'\n"+patch+"MILEPOST_PATCH")
		}},
		"r2e.jsonl": {"r2e-gym", "namanjain12/pkg_final:" + commit, "/testbed", milepost.GradeStatusMap, func(t *testing.T, k *milepost.Task) {
			equal(t, "id", k.ID, "pkg__"+commit)
			equal(t, "base", k.BaseCommit, commit+"^")
			equal(t, "expected", k.Grading.Expected["test_b"], "FAILED")
			equal(t, "tests", strings.Join(k.Tests, ","), "test_a,test_b")
			equal(t, "relevant", strings.Join(k.RelevantFiles, ","), "pkg/a.py")
			equal(t, "prompt", k.Meta["prompt"], "")
			equal(t, "reference", k.ReferencePatch, strings.Replace(patch, " three\n", " three\n\\ No newline at end of file\n", 1)+
				"diff --git a/pkg/new.py b/pkg/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1 @@\n+x = 1\n")
		}},
		"nl2repo.jsonl": {"nl2repo-bench", "nl2/more:1.0", "/workspace", milepost.GradeRate, func(t *testing.T, k *milepost.Task) {
			equal(t, "commands", strings.Join(k.Grading.Commands, "; "), "pip install -e .; pytest tests")
			if k.Kind != milepost.RepoGeneration || k.Grading.Total != 12 || k.Grading.Strip[0] != "tests" {
				t.Errorf("%+v", k.Grading)
			}
		}},
		"nl2folders": {"nl2repo-bench", "multimodal-art-projection/nl2repobench/emoji:1.0", "/workspace", milepost.GradeRate, func(t *testing.T, k *milepost.Task) {
			equal(t, "statement", k.Statement, "# emoji\nWrite it.\n")
			if k.Grading.Total != 40 {
				t.Errorf("total %d", k.Grading.Total)
			}
		}},
		"denovo.jsonl": {"denovo-swe", "denovo/pkg:1", "/workspace/pkg", milepost.GradeRate, func(t *testing.T, k *milepost.Task) {
			b, err := os.ReadFile(filepath.Join(k.Grading.Folder, k.Grading.Archive))
			if err != nil || string(b) != "hello" || k.Grading.Total != 2 || len(k.FailToPass) != 2 {
				t.Errorf("archive %q (%v), %+v", b, err, k.Grading)
			}
			equal(t, "repo", k.Origin.Repo, "own/pkg")
		}},
		"harbor": {"harbor", "build:sha256:", "/app/src", milepost.GradeRewardFile, func(t *testing.T, k *milepost.Task) {
			if k.Kind != milepost.OpenTask || k.Test.Timeout != 2*time.Minute || k.Meta["difficulty"] != "easy" {
				t.Errorf("%+v", k)
			}
			if _, err := os.Stat(filepath.Join(k.Grading.Folder, "tests", "test.sh")); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tasks, _ := importTo(t, Options{From: filepath.Join("testdata", name)})
			k := tasks[0]
			if k.Origin.Dataset != c.format || !strings.HasPrefix(k.Image, c.image) || k.Workdir != c.workdir || k.Grading.Rule != c.rule {
				t.Errorf("%s, image %s, %s, rule %s; want %s, %s, %s, %s", k.Origin.Dataset, k.Image, k.Workdir, k.Grading.Rule, c.format, c.image, c.workdir, c.rule)
			}
			c.check(t, k)
		})
	}
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n%q, want\n%q", what, got, want)
	}
}

func TestBeyondSWE(t *testing.T) {
	archive := []byte("PK zip of tests")
	assets := t.TempDir()
	if err := os.MkdirAll(filepath.Join(assets, "doc2repo_test_suite"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(assets, "doc2repo_test_suite", "own_pkg.zip"), archive, 0o600); err != nil {
		t.Fatal(err)
	}
	tasks, sum := importTo(t, Options{From: "testdata/beyond.jsonl", Assets: assets})
	if len(tasks) != 4 || len(sum.Missing) != 0 {
		t.Fatalf("%d tasks, missing %v", len(tasks), sum.Missing)
	}
	cross, domain, migrate, doc := tasks[0], tasks[1], tasks[2], tasks[3]
	if cross.Grading.Rule != milepost.GradeAll || cross.Grading.Files["test_fail_to_pass.py"] != "def test_f(): pass\n" || cross.Prepare[0] != "git checkout -f x" {
		t.Errorf("CrossRepo: %+v", cross.Grading)
	}
	if strings.Join(domain.Prepare, ",") != "a,b" || len(migrate.Grading.Files) != 0 {
		t.Errorf("DomainFix prepares by %v, DepMigrate has files %v", domain.Prepare, migrate.Grading.Files)
	}
	if doc.Kind != milepost.RepoGeneration || doc.Statement != "# pkg" || doc.Grading.Total != 7 || doc.Grading.Rule != milepost.GradeRate {
		t.Errorf("Doc2Repo: %+v", doc.Grading)
	}
	if b, err := os.ReadFile(filepath.Join(doc.Grading.Folder, doc.Grading.Archive)); err != nil || string(b) != string(archive) {
		t.Errorf("archive %q: %v", b, err)
	}
	if _, sum := importTo(t, Options{From: "testdata/beyond.jsonl"}); sum.Missing["*.zip"] != 1 {
		t.Errorf("without archives: missing %v", sum.Missing)
	}
}

func TestProScripts(t *testing.T) {
	assets := t.TempDir()
	dir := filepath.Join(assets, "run_scripts", "instance_Own__pkg-0123-vnan")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"run_script.sh", "parser.py"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("# "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tasks, sum := importTo(t, Options{From: "testdata/pro.jsonl", Assets: assets})
	g := tasks[0].Grading
	if len(sum.Missing) != 0 || g.Files["/workspace/parser.py"] != "# parser.py" || g.Output != "/workspace/output.json" ||
		g.Commands[0] != "bash /workspace/run_script.sh 'tests/test_a.py' > /workspace/stdout.log 2> /workspace/stderr.log" {
		t.Errorf("missing %v, %+v", sum.Missing, g)
	}
	if _, sum := importTo(t, Options{From: "testdata/pro.jsonl"}); sum.Missing["run_script.sh"] != 1 {
		t.Errorf("without scripts: missing %v", sum.Missing)
	}
}

package grade

import (
	"path"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

// Test commands of the repositories of SWE-bench for rows before 5.x, which name none. Source: swebench 4,
// harness/constants/python.py; versions in which a repository's command differs are those of the script's own rows
// since 5.x, which bring their script. Where a repository is not listed, it is pytest -rA.
var repoCommands = map[string]string{
	"astropy/astropy":           "pytest -rA -vv -o console_output_style=classic --tb=no",
	"django/django":             "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
	"mwaskom/seaborn":           "pytest --no-header -rA",
	"pallets/flask":             "pytest -rA",
	"sphinx-doc/sphinx":         "tox --current-env -epy39 -v --",
	"sympy/sympy":               "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
	"getmoto/moto":              "pytest -n0 -rA",
	"python/mypy":               "pytest -n0 -rA",
	"pandas-dev/pandas":         "pytest -rA --tb=long",
	"dask/dask":                 "pytest -n0 -rA --color=no",
	"iterative/dvc":             "pytest -rA",
	"conan-io/conan":            "pytest -n0 -rA",
	"pydantic/pydantic":         "pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
	"facebookresearch/hydra":    "pytest -rA --tb=long",
	"bokeh/bokeh":               "pytest -rA -n0",
	"modin-project/modin":       "pytest -n0 -rA",
	"project-monai/monai":       "pytest -rA",
	"pylint-dev/pylint":         "pytest -rA",
	"matplotlib/matplotlib":     "pytest -rA",
	"scikit-learn/scikit-learn": "pytest -rA",
}

// noTests are endings of files of a test patch that no runner takes. Source: swebench, NON_TEST_EXTS ("csv" without a
// dot is as there).
var noTests = []string{".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml"}

// testCommands are the shell commands that run a task's tests.
func testCommands(t *milepost.Task) []string {
	g := t.Grading
	if len(g.Commands) > 0 {
		return g.Commands
	}
	if g.Rule == milepost.GradeRate || g.Rule == milepost.GradeAll {
		return []string{"python -m pytest -rA " + quoteAll(testFilesOf(append(slices.Clone(t.FailToPass), t.PassToPass...)))}
	}
	if t.Origin != nil && t.Origin.Dataset == "swe-smith" {
		return []string{"pytest --disable-warnings --color=no --tb=no --verbose"}
	}
	command, django := "pytest -rA", false
	if t.Origin != nil {
		repo := strings.ToLower(t.Origin.Repo)
		if c, ok := repoCommands[repo]; ok {
			command = c
		}
		django = repo == "django/django"
	}
	var about []string
	for _, f := range g.TestFiles {
		if slices.ContainsFunc(noTests, func(ending string) bool { return strings.HasSuffix(f, ending) }) {
			continue
		}
		if django { // its runner takes modules below tests/
			f = strings.ReplaceAll(strings.TrimPrefix(strings.TrimSuffix(f, ".py"), "tests/"), "/", ".")
		}
		about = append(about, f)
	}
	return []string{strings.TrimSpace(command + " " + quoteAll(about))}
}

// testFilesOf are the files of pytest's test ids, each once, in order.
func testFilesOf(ids []string) (files []string) {
	for _, id := range ids {
		f, _, ok := strings.Cut(id, "::")
		if f = path.Clean(f); ok && !slices.Contains(files, f) {
			files = append(files, f)
		}
	}
	return files
}

// quote is a word for a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func quoteAll(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = quote(w)
	}
	return strings.Join(out, " ")
}

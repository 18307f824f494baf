package benchmarks

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

func goodTask(dir string) *milepost.Task {
	return &milepost.Task{
		ID: "t-1", Kind: milepost.BugRepair, Split: "train", Statement: "f(1) gives 2, not 3.", Repo: filepath.Join(dir, "repos", "t-1"),
		BaseCommit: strings.Repeat("a", 40), BaseTree: strings.Repeat("b", 40), Image: "local:python3",
		ReferencePatch: Diff("f.py", "a\n", "b\n"), RelevantFiles: []string{"f.py"}, Protected: []string{"tests/"},
		Test:  milepost.TestCommand{Argv: []string{"python3", "-m", "unittest"}, Format: "unittest", Resident: "unittest"},
		Tests: []string{"m.T.a", "m.T.b"}, FailToPass: []string{"m.T.a"}, PassToPass: []string{"m.T.b"}, Meta: map[string]string{MetaFamilies: "operator,guard"},
	}
}

func TestSaveAndLoad(t *testing.T) {
	dir := t.TempDir()
	a, b := goodTask(dir), goodTask(dir)
	b.ID, b.Repo = "t-2", "/elsewhere/repo"
	if err := Save(dir, []*milepost.Task{a, b}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, TasksFile))
	if err != nil || !strings.Contains(string(raw), `"repo":"repos/t-1"`) {
		t.Errorf("the repository is not relative on disk: %s (%v)", raw, err)
	}
	for _, path := range []string{dir, filepath.Join(dir, TasksFile)} {
		got, err := Load(path)
		if err != nil || !reflect.DeepEqual(got, []*milepost.Task{a, b}) {
			t.Errorf("Load(%s) = %v, %v", path, got, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left in the folder: %v, %v", entries, err)
	}
}

func TestLoadErrorsNameFileLineAndField(t *testing.T) {
	for want, spoil := range map[string]func(map[string]any){
		`line 2: not a task: json: unknown field "repoo"`:                     func(m map[string]any) { m["repoo"] = "x" },
		"line 2: field tests: number where":                                   func(m map[string]any) { m["tests"] = 7 },
		`line 2: task "t-2": field kind: "typo" is not one of [bug_repair`:    func(m map[string]any) { m["kind"] = "typo" },
		`line 2: task "t-2": field base_commit: "abc" is not a full commit`:   func(m map[string]any) { m["base_commit"] = "abc" },
		`line 2: task "t-2": field tests: not sorted and unique at 1`:         func(m map[string]any) { m["tests"] = []string{"m.T.b", "m.T.a"} },
		`line 2: task "t-2": field fail_to_pass: "x" is not in tests`:         func(m map[string]any) { m["fail_to_pass"] = []string{"x"} },
		`"m.T.a" is already in fail_to_pass`:                                  func(m map[string]any) { m["pass_to_pass"] = []string{"m.T.a"} },
		`field fail_to_pass: empty in a task of kind bug_repair`:              func(m map[string]any) { m["fail_to_pass"] = nil },
		`field protected: "f.py" covers f.py, which the reference patch`:      func(m map[string]any) { m["protected"] = []string{"f.py"} },
		`field protected: "../x" is not a file`:                               func(m map[string]any) { m["protected"] = []string{"../x"} },
		`field test.format: "junit" is not one of [gotest pytest unittest]`:   func(m map[string]any) { m["test"].(map[string]any)["format"] = "junit" },
		`field reference_patch: empty`:                                        func(m map[string]any) { m["reference_patch"] = "" },
		`line 2: field id: "t-1" is also the task of line 1`:                  func(m map[string]any) { m["id"] = "t-1" },
		`line 2: task "": field id: "" is not 1 to 200 letters`:               func(m map[string]any) { delete(m, "id") },
		`field prepare: must be empty where workdir is`:                       func(m map[string]any) { m["prepare"] = []string{"true"} },
		`field image: "a b" is no name of an image`:                           func(m map[string]any) { m["image"] = "a b" },
		`field image: "--privileged" is no name of an image`:                  func(m map[string]any) { m["image"] = "--privileged" },
		`line 2: task "../up": field id: "../up" is not 1 to 200 letters, di`: func(m map[string]any) { m["id"] = "../up" },
	} {
		dir := t.TempDir()
		good := goodTask(dir)
		first, err := json.Marshal(good)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(first, &m); err != nil {
			t.Fatal(err)
		}
		m["id"] = "t-2"
		spoil(m)
		second, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, TasksFile)
		if err := os.WriteFile(file, append(append(first, '\n'), second...), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err = Load(dir)
		if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v\nwant %q", err, want)
		}
	}
}

func TestLoadOfNothing(t *testing.T) {
	dir := t.TempDir()
	for path, kind := range map[string]milepost.Kind{filepath.Join(dir, "no"): milepost.KindNotFound, dir: milepost.KindNotFound} {
		if _, err := Load(path); milepost.KindOf(err) != kind {
			t.Errorf("Load(%s): %v, want %s", path, err, kind)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, TasksFile), []byte("\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("an empty set: %v", err)
	}
}

func TestSaveRefusesABadTask(t *testing.T) {
	dir := t.TempDir()
	bad := goodTask(dir)
	bad.Image = ""
	if err := Save(dir, []*milepost.Task{goodTask(dir), bad}); err == nil || !strings.Contains(err.Error(), `task 1: task "t-1": field image: empty`) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, TasksFile)); err == nil {
		t.Error("a file was written")
	}
}

func TestDisjointAndSummary(t *testing.T) {
	a, b := goodTask("/d"), goodTask("/d")
	b.ID = "t-2"
	if err := Disjoint([]*milepost.Task{a}, []*milepost.Task{b}); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("two tasks of one tree: %v", err)
	}
	b.BaseTree = strings.Repeat("c", 40)
	if err := Disjoint([]*milepost.Task{a}, []*milepost.Task{b}); err != nil {
		t.Error(err)
	}
	s := Summarise([]*milepost.Task{a, b})
	if s.Tasks != 2 || s.Trees != 2 || s.Families["guard"] != 2 || s.Tests != (Range{2, 2, 2}) || s.Splits["train"] != 2 {
		t.Errorf("summary %+v", s)
	}
}

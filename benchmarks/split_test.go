package benchmarks

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	milepost "github.com/milepost-rl/milepost"
)

// imported is a task that an importer might have made.
func imported(id, repo string) *milepost.Task {
	return &milepost.Task{ID: id, Kind: milepost.BugRepair, Statement: "fix", Workdir: "/testbed", Image: "img:" + id,
		ReferencePatch: "diff", Tests: []string{"t"}, FailToPass: []string{"t"}, Grading: &milepost.Grading{Rule: milepost.GradeStates},
		Origin: &milepost.Origin{Dataset: "d", ID: id, Repo: repo, File: "f", Row: 1}}
}

// savedRows writes a set with a row a task.
func savedRows(t testing.TB, dir string, tasks ...*milepost.Task) string {
	t.Helper()
	w, err := NewWriter(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if err := w.Add(task, &Row{Task: task.ID, File: "f", Row: 1, Cols: json.RawMessage(`{"instance_id":"` + task.ID + `"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWriterIsWholeOrNothing(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(imported("a", "o/r"), nil); err != nil {
		t.Fatal(err)
	}
	bad := imported("b", "o/r")
	bad.Workdir = "relative"
	if err := w.Add(bad, nil); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "field workdir") {
		t.Errorf("a task that is not well formed: %v", err)
	}
	w.Abort()
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("an aborted set leaves %v", left)
	}
	savedRows(t, dir, imported("a", "o/r"))
	if _, err := NewWriter(dir); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("a second set in one folder: %v", err)
	}
}

// TestOneWriterAtATime: a second writer in a folder is refused while the first lives, and removes what one left that was
// killed; so it is with the log of certificates.
func TestOneWriterAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set [1]*") // characters that Glob knows
	first, err := NewWriter(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Add(imported("a", "o/r"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := NewWriter(dir); milepost.KindOf(err) != milepost.KindConflict || !strings.Contains(err.Error(), "another process is writing a task set there") {
		t.Errorf("a second writer: %v", err)
	}
	if err := first.tasks.file.Close(); err != nil { // as the end of its process does
		t.Fatal(err)
	}
	second, err := NewWriter(dir)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("beside the second writer's file there are %v", left)
	}
	if err := errors.Join(second.Add(imported("a", "o/r"), nil), second.Commit()); err != nil {
		t.Fatal(err)
	}
	log, err := OpenCertificateLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCertificateLog(dir); milepost.KindOf(err) != milepost.KindConflict || !strings.Contains(err.Error(), "another process is validating the set") {
		t.Errorf("a second validation: %v", err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenCertificateLog(dir)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDealKeepsGroups: whatever the groups, each goes to one part whole, no part is empty, and a seed decides.
func TestDealKeepsGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups, total := map[string][]string{}, 0
		for r := range rapid.IntRange(3, 12).Draw(t, "repositories") {
			for i := range rapid.IntRange(1, 9).Draw(t, "tasks") {
				groups[fmt.Sprint(r)] = append(groups[fmt.Sprint(r)], fmt.Sprintf("r%d-%d", r, i))
				total++
			}
		}
		ratios, err := ParseRatios("train=8,validation=1,heldout=1")
		if err != nil {
			t.Fatal(err)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		part := deal(groups, ratios, seed)
		if again := deal(groups, ratios, seed); !maps.Equal(part, again) || len(part) != total {
			t.Fatalf("%d of %d ids are dealt; again: %v", len(part), total, again)
		}
		used := map[string]bool{}
		for _, ids := range groups {
			used[part[ids[0]]] = true
			for _, id := range ids {
				if part[id] != part[ids[0]] {
					t.Fatalf("a group is in %s and %s", part[id], part[ids[0]])
				}
			}
		}
		if len(used) != len(ratios) {
			t.Fatalf("parts with tasks: %v", used)
		}
	})
}

func TestSplitByRepo(t *testing.T) {
	var tasks []*milepost.Task
	for i := range 12 {
		tasks = append(tasks, imported(fmt.Sprintf("t%d", i), fmt.Sprintf("o/r%d", i%5)))
	}
	set, dir := savedRows(t, filepath.Join(t.TempDir(), "set"), tasks...), t.TempDir()
	ratios, err := ParseRatios("train=3,heldout=1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Split(set, dir, ratios, ByRepo, 3); err != nil {
		t.Fatal(err)
	}
	where, total := map[string]string{}, 0 // repository to part
	for _, r := range ratios {
		err := eachWithRow(filepath.Join(dir, r.Name), func(k *milepost.Task, row *Row) error {
			if row == nil || k.Split != r.Name {
				t.Errorf("task %s of part %s has split %q and row %+v", k.ID, r.Name, k.Split, row)
			}
			if was := where[k.Origin.Repo]; was != "" && was != r.Name {
				t.Errorf("repository %s is in %s and %s", k.Origin.Repo, was, r.Name)
			}
			where[k.Origin.Repo] = r.Name
			total++
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if total != len(tasks) {
		t.Errorf("%d tasks came out of a split of %d", total, len(tasks))
	}
}

func TestSplitSharesAndFaults(t *testing.T) {
	var tasks []*milepost.Task
	for i := range 100 {
		tasks = append(tasks, imported(fmt.Sprintf("t%d", i), fmt.Sprintf("o/r%d", i)))
	}
	set := savedRows(t, filepath.Join(t.TempDir(), "set"), tasks...)
	ratios, _ := ParseRatios("train=8,validation=1,heldout=1")
	counts, err := Split(set, t.TempDir(), ratios, ByTask, 7)
	if err != nil || counts["train"] != 80 || counts["validation"] != 10 || counts["heldout"] != 10 {
		t.Errorf("%v, %v", counts, err)
	}
	one := savedRows(t, filepath.Join(t.TempDir(), "one"), imported("a", "o/R"), imported("b", "O/r"))
	if _, err := Split(one, t.TempDir(), ratios, ByRepo, 1); err == nil || !strings.Contains(err.Error(), "1 repositories to deal out, fewer than the 3 parts") {
		t.Errorf("one repository, spelled in two ways: %v", err)
	}
	for _, bad := range []string{"", "train=1", "train=1,train=2", "train=0,b=1", "train,b=1", "../x=1,b=1", "a=-1,b=1", "a=NaN,b=1"} {
		if r, err := ParseRatios(bad); milepost.KindOf(err) != milepost.KindInvalid {
			t.Errorf("ratios %q: %v, %v", bad, r, err)
		}
	}
	rows := filepath.Join(one, RowsFile)
	if err := os.WriteFile(rows, []byte(`{"task":"z","columns":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	two, _ := ParseRatios("a=1,b=1")
	if _, err := Split(one, t.TempDir(), two, ByTask, 1); milepost.KindOf(err) != milepost.KindCorrupt {
		t.Errorf("a row without its task: %v", err)
	}
}

func TestMix(t *testing.T) {
	base := t.TempDir()
	savedRows(t, filepath.Join(base, "a"), imported("a1", "o/a"), imported("a2", "o/a"), imported("a3", "o/a"), imported("a4", "o/a"))
	savedRows(t, filepath.Join(base, "b"), imported("b1", "o/b"))
	write := func(name, text string) string {
		p := filepath.Join(base, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	write("eval.json", `{"name": "eval", "tasks": {"a1": [1, 1, 0, 0], "a2": [0, 0, 0, 0], "a3": [1, 1, 1, 0], "b1": []}}`)
	m, err := LoadMixture(write("m.yaml", "sets:\n  - {path: a, weight: 3}\n  - {path: b, weight: 1}\n"+
		"curriculum: {rates: eval.json, min: .03, max: .97, shape: frontier, else: .5}\n"))
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(base, "mixed")
	m, err = Mix(m, out)
	if err != nil {
		t.Fatal(err)
	}
	// Factors: a1 1, a2 left out, a3 .75, a4 (not measured) 1; of the set's share 3/4.
	want := map[string]float64{"a1": .75 / 2.75, "a3": .75 * .75 / 2.75, "a4": .75 / 2.75, "b1": .25}
	tasks, err := Load(out)
	if err != nil || len(tasks) != len(want) || m.Sets[0].Tasks != 3 {
		t.Fatalf("%d tasks, %v, %+v", len(tasks), err, m)
	}
	for _, k := range tasks {
		if d := k.Weight - want[k.ID]; d > 1e-12 || d < -1e-12 {
			t.Errorf("%s weighs %v, want %v", k.ID, k.Weight, want[k.ID])
		}
	}
	if err := eachWithRow(out, func(k *milepost.Task, r *Row) error {
		if r == nil {
			t.Errorf("task %s lost its row", k.ID)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"sets: []\n":                     "sets: empty",
		"sets: [{path: a, weight: 0}]\n": "sets[0].weight: 0; a number of more than 0",
		"sets: [{path: a, wieght: 1}]\n": "unknown field",
		"sets: [{weight: 1}]\n":          "sets[0].path: empty",
		"sets: [{path: a, weight: 1}]\ncurriculum: {shape: steep}\n":             `curriculum.shape: "steep" is not one of flat, frontier`,
		"sets: [{path: a, weight: 1}]\ncurriculum: {min: 2}\n":                   "curriculum.min: 2; allowed are 0 to 1",
		"sets: [{path: a, weight: 1}]\ncurriculum: {min: .9, max: .1}\n":         "curriculum.min: 0.9 is above max, 0.1",
		"sets: [{path: a, weight: 1}, {path: a, weight: 1}]\n":                   "task a1 is in",
		"sets: [{path: b, weight: 1}]\ncurriculum: {rates: no.json}\n":           "no such file",
		"sets: [{path: b, weight: 1}]\ncurriculum: {rates: bad.json}\n":          `task "b1": rate 3; allowed are 0 to 1`,
		"sets: [{path: b, weight: 1}]\ncurriculum: {rates: low.json, min: .5}\n": "sets[0]: no task of",
	} {
		write("bad.json", `{"b1": 3}`)
		write("low.json", `{"b1": 0.1}`)
		m, err := LoadMixture(write("bad.yaml", text))
		if err == nil {
			_, err = Mix(m, t.TempDir())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

func TestStatsOfImportedSets(t *testing.T) {
	set := savedRows(t, filepath.Join(t.TempDir(), "set"), imported("a", "o/R"), imported("b", "O/r"), imported("c", "o/x"))
	s, err := SummariseSet(set)
	if err != nil || s.Tasks != 3 || s.Repos != 2 || s.Trees != 3 || s.Datasets["d"] != 3 || s.Tests != (Range{1, 1, 1}) {
		t.Errorf("%+v, %v", s, err)
	}
	if all, err := Load(set); err != nil || !slices.IsSortedFunc(all, func(a, b *milepost.Task) int { return strings.Compare(a.ID, b.ID) }) {
		t.Errorf("order is lost: %v", err)
	}
}

func TestDisjointImages(t *testing.T) {
	a, b := imported("a", "o/r"), imported("b", "o/r")
	if err := Disjoint([]*milepost.Task{a}, []*milepost.Task{b}); err != nil {
		t.Errorf("different images: %v", err)
	}
	b.Image = a.Image
	if err := Disjoint([]*milepost.Task{a}, []*milepost.Task{b}); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("one image in both sets: %v", err)
	}
}

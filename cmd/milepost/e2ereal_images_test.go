package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/evaluate"
	"github.com/milepost-rl/milepost/orchestrator"
)

// goodImages meets every requirement of the part with images.
func goodImages() *imagesFound {
	return &imagesFound{tasks: 3, images: map[string]int{"sha256:a": 1, "sha256:b": 1, "sha256:c": 1}, places: map[string]int{"/testbed": 3},
		makers: map[string]int{"inject": 1, "mine": 1, "generate": 1}, prepared: 3, certified: 3, verdicts: 6, shadow: 6,
		reference: evaluate.Result{Rate: 1, Graded: 3, Tasks: map[string][]float64{"a": {1}, "b": {1}, "c": {1}}},
		idle:      evaluate.Result{Rate: 0, Graded: 3, Tasks: map[string][]float64{"a": {0}, "b": {0}, "c": {0}}}}
}

// goodGenerate meets every requirement of the repository-generation part.
func goodGenerate() *generateFound {
	return &generateFound{e2eFound: *goodE2E(), generation: 2, mode: "pass_count", slots: 4, merged: 1, firstR: .2, lastR: .3}
}

// held is how a part's judgement went: the error, and the lines of what is missed.
func held(t *testing.T, judge func(*requirements) error) ([]string, error) {
	t.Helper()
	var out strings.Builder
	file := filepath.Join(t.TempDir(), "part.json")
	err := judge(&requirements{part: "p", out: &out, file: file})
	var missed []string
	for line := range strings.Lines(out.String()) {
		if text, ok := strings.CutPrefix(line, "  MISS  "); ok {
			missed = append(missed, strings.TrimSpace(text))
		}
	}
	var written struct {
		Met          bool
		Requirements []requirement
	}
	b, readErr := os.ReadFile(file)
	if readErr == nil {
		readErr = json.Unmarshal(b, &written)
	}
	if readErr != nil || written.Met != (err == nil) || len(written.Requirements) != strings.Count(out.String(), "\n") {
		t.Errorf("the file says %s (%v)\n%s", b, readErr, out.String())
	}
	return missed, err
}

func TestJudgeOfImagesMissesEachRequirement(t *testing.T) {
	if missed, err := held(t, func(r *requirements) error { return goodImages().judge(r, 3) }); err != nil {
		t.Fatalf("a good run: %v, %q", err, missed)
	}
	for want, spoil := range map[string]func(*imagesFound){
		"3 tasks in 2 images":                                 func(f *imagesFound) { delete(f.images, "sha256:a") },
		"1 lie at /testbed":                                   func(f *imagesFound) { f.places["/testbed"] = 1 },
		"0 tasks by mine":                                     func(f *imagesFound) { delete(f.makers, "mine") },
		"2 of 3 are prepared":                                 func(f *imagesFound) { f.prepared = 2 },
		"2 of 3 have a certificate of":                        func(f *imagesFound) { f.certified = 2 },
		"resolves 67 % of 3":                                  func(f *imagesFound) { f.reference.Rate = 2. / 3 },
		"doing nothing resolves 33 %":                         func(f *imagesFound) { f.idle.Rate = 1. / 3 },
		"replaying the reference patches resolves 100 % of 3": func(f *imagesFound) { f.reference.Infra = 1 },
		"5 of 6 verdicts are by shadow workers":               func(f *imagesFound) { f.shadow = 5 },
		"4 of 4 verdicts are by shadow workers":               func(f *imagesFound) { f.shadow, f.verdicts = 4, 4 },
	} {
		f := goodImages()
		spoil(f)
		missed, err := held(t, func(r *requirements) error { return f.judge(r, 3) })
		if milepost.KindOf(err) != milepost.KindConflict || len(missed) != 1 || !strings.Contains(missed[0], want) {
			t.Errorf("%s: %v, missed %q", want, err, missed)
		}
	}
}

func TestJudgeOfGenerationMissesEachRequirement(t *testing.T) {
	if missed, err := held(t, func(r *requirements) error { return goodGenerate().judge(r, 1) }); err != nil {
		t.Fatalf("a good run: %v, %q", err, missed)
	}
	for want, spoil := range map[string]func(*generateFound){
		"1 of 2 tasks ask":           func(f *generateFound) { f.generation = 1 },
		"potential binary":           func(f *generateFound) { f.mode = "binary" },
		"with 2 shadow workers":      func(f *generateFound) { f.slots = 2 },
		"0 full updates":             func(f *generateFound) { f.updates = 0 },
		"5 of 6 steps":               func(f *generateFound) { f.trusted = 5 },
		"0 probes stand for several": func(f *generateFound) { f.merged = 0 },
		"0 of 2 groups":              func(f *generateFound) { f.verR = 0 },
		"0.00 in the last":           func(f *generateFound) { f.lastR = 0 },
		"report.html":                func(f *generateFound) { f.report = false },
	} {
		f := goodGenerate()
		spoil(f)
		missed, err := held(t, func(r *requirements) error { return f.judge(r, 1) })
		if milepost.KindOf(err) != milepost.KindConflict || len(missed) != 1 || !strings.Contains(missed[0], want) {
			t.Errorf("%s: %v, missed %q", want, err, missed)
		}
	}
}

// TestImagesCountsOnlyGoodCertificates: a certificate counts that is of the task as it is, by validate, on an image's digest.
func TestImagesCountsOnlyGoodCertificates(t *testing.T) {
	task := &milepost.Task{ID: "t", Source: "mine p", Image: "sha256:a", Workdir: "/testbed", Repo: "r", BaseTree: "b"}
	good, err := benchmarks.NewCertificate(task, "validate")
	if err != nil {
		t.Fatal(err)
	}
	good.Runs, good.Digest = 2, "sha256:a"
	good.Checks = []string{benchmarks.CheckRuns, benchmarks.CheckGrader, benchmarks.CheckLeaks, benchmarks.CheckStatement}
	f := imagesFound{images: map[string]int{}, places: map[string]int{}, makers: map[string]int{}}
	bad := []func(*benchmarks.Certificate){
		func(c *benchmarks.Certificate) { c.Row = "another" }, func(c *benchmarks.Certificate) { c.By = "inject" },
		func(c *benchmarks.Certificate) { c.Digest = "" }, func(c *benchmarks.Certificate) { c.Runs = 1 },
		func(c *benchmarks.Certificate) { c.Problems = []benchmarks.Finding{{Check: "leaks", What: "the fix"}} },
	}
	for _, spoil := range bad {
		c := *good
		spoil(&c)
		if err := f.task(task, &c); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.task(task, nil); err != nil || f.certified != 0 || f.why == "" {
		t.Errorf("%d bad certificates count (%v)", f.certified, err)
	}
	if err := f.task(task, good); err != nil || f.certified != 1 || f.prepared != len(bad)+2 || f.makers["mine"] != len(bad)+2 {
		t.Errorf("the good one: %+v, %v", f, err)
	}
}

func TestTasksImageNeedsItsFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--out is missing":   {"set"},
		"--image is missing": {"set", "--out", "x"},
		`--package is "p"`:   {"set", "--out", "x", "--image", "i", "--package", "p"},
	} {
		if code, errOut := command(t, append([]string{"tasks", "image"}, args...)...); code != 2 || !strings.Contains(errOut, want) {
			t.Errorf("%v: %d %s", args, code, errOut)
		}
	}
}

// TestScriptResultsAreRead reads a result as eval writes it.
func TestScriptResultsAreRead(t *testing.T) {
	written := evaluate.Result{Rate: .5, Graded: 2, Tasks: map[string][]float64{"a": {1}, "b": {0}}, PassRate: &evaluate.Interval{Value: .7}}
	file := filepath.Join(t.TempDir(), "result.json")
	b, err := json.Marshal(&written)
	if err == nil {
		err = os.WriteFile(file, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	var read evaluate.Result
	if err := readScript(file, &read); err != nil || read.Rate != .5 || read.Graded != 2 || len(read.Tasks) != 2 || read.PassRate.Value != .7 {
		t.Errorf("read %+v, %v", read, err)
	}
}

// TestMetricsWithoutACanaryMissTheBound: an update without a canary is a miss; a run may begin without one.
func TestMetricsWithoutACanaryMissTheBound(t *testing.T) {
	const canary, update = `"canary_gap_mean":1e-7,"canary_tokens":9`, `{"update":1,"values":{"push_version":1,"grad_norm":1,"logprob_gap_mean":1e-8`
	for text, ok := range map[string]bool{
		update + "," + canary + "}}\n": true,
		update + "}}\n":                false,
		`{"update":0,"values":{"canary_gap_mean":1,"canary_tokens":9}}` + "\n" + update + "," + canary + "}}\n": false,
	} {
		dir := t.TempDir()
		for name, content := range map[string]string{"config.yaml": "run: {name: x, dir: y}\n", "metrics.jsonl": text} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var f e2eFound
		if err := f.readMetrics(&orchestrator.Folder{Dir: dir}); err != nil {
			t.Fatal(err)
		}
		if good := f.canary < f.canaryBound; good != ok {
			t.Errorf("%s: canary %v, bound %v", text, f.canary, f.canaryBound)
		}
	}
}

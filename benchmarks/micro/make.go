package micro

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/certify"
)

// testTimeout bounds one run of a micro repository's tests; a good one takes milliseconds. An edit can make them loop.
const testTimeout = 20 * time.Second

// runs is how often each task is run both ways before it is kept.
const runs = 2

// Make writes a set of micro tasks into outDir: tasks.jsonl, certificates.jsonl and repos/<task id>. FailToPass and PassToPass are found
// by running the tests, and every task is run twice both ways. The same configuration gives the same set. Errors:
// KindInvalid for a configuration out of range, KindConflict where outDir holds tasks already, KindInternal where a
// task does not hold (the grammar is wrong then), and what the checker reports.
func Make(ctx context.Context, cfg Config, check *benchmarks.Checker, outDir string, progress benchmarks.Progress) ([]*milepost.Task, error) {
	const op = "micro: make"
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if outDir, err = benchmarks.Vacant(op, outDir); err != nil {
		return nil, err
	}
	worlds, err := generate(cfg)
	if err != nil {
		return nil, err
	}
	tasks := make([]*milepost.Task, len(worlds))
	var done atomic.Int64
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(cfg.Workers)
	for i, w := range worlds {
		g.Go(func() error {
			t, err := makeTask(each, cfg, i, w, check, outDir)
			tasks[i] = t
			if progress != nil && err == nil {
				progress(int(done.Add(1)), len(worlds))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return tasks, certify.Save(ctx, check, outDir, "micro", tasks)
}

// maxAttempts bounds how often one index is drawn until its repository is new in this set and belongs to the split.
const maxAttempts = 1000

// generate draws the worlds of a set. It is pure: the same configuration gives the same worlds.
func generate(cfg Config) ([]*world, error) {
	seen := map[string]bool{}
	var out []*world
	for i := range cfg.Count {
		var found *world
		for attempt := 0; attempt < maxAttempts && found == nil; attempt++ {
			w := draw(cfg, newRand(cfg.Split, cfg.Seed, i, attempt))
			tree, err := benchmarks.TreeID(w.base(cfg).list())
			if err != nil {
				return nil, err
			}
			if !seen[tree] && splitOf(tree) == cfg.Split {
				seen[tree], found = true, w
			}
		}
		if found == nil {
			return nil, milepost.E("micro: make", milepost.KindInvalid,
				"count is %d, but only %d different repositories with %d files of %d functions turned up",
				cfg.Count, i, cfg.Files+cfg.Distractors, cfg.FunctionsPerFile)
		}
		out = append(out, found)
	}
	return out, nil
}

// splitOf is the one split that a repository tree may be in: half of all trees are for training, a quarter each for
// validation and held-out. Hence two sets of different splits never share a repository, whatever their seeds.
func splitOf(tree string) string {
	b, err := hex.DecodeString(tree[:2])
	if err != nil {
		panic("micro: not a tree id: " + tree)
	}
	switch b[0] % 4 {
	case 0, 1:
		return SplitTrain
	case 2:
		return SplitValidation
	}
	return SplitHeldout
}

// list turns the files into what the repository writer takes, sorted by path.
func (f files) list() []benchmarks.File {
	var out []benchmarks.File
	for p, text := range f {
		out = append(out, benchmarks.File{Path: p, Data: []byte(text)})
	}
	slices.SortFunc(out, func(a, b benchmarks.File) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// makeTask writes the repository of one world and finds its failing tests.
func makeTask(ctx context.Context, cfg Config, i int, w *world, check *benchmarks.Checker, outDir string) (*milepost.Task, error) {
	id := taskID(cfg, i)
	dir := filepath.Join(outDir, "repos", id)
	if err := os.RemoveAll(dir); err != nil { // left by a run that did not come to write the task file
		return nil, milepost.Wrap("micro: make", milepost.KindUnavailable, err)
	}
	commit, tree, err := benchmarks.WriteRepo(dir, w.base(cfg).list())
	if err != nil {
		return nil, err
	}
	t := &milepost.Task{
		ID: id, Kind: milepost.BugRepair, Split: cfg.Split, Source: fmt.Sprintf("micro seed=%d index=%d", cfg.Seed, i),
		Repo: dir, BaseCommit: commit, BaseTree: tree, Image: cfg.Image,
		Protected: []string{"sitecustomize.py", "tests/", "unittest.py", "unittest/"}, Tests: w.testIDs(), Meta: w.meta(cfg),
		Test: milepost.TestCommand{Argv: strings.Fields("python3 -m unittest discover -v -s tests"),
			Format: "unittest", Resident: "unittest", Timeout: testTimeout},
	}
	if cfg.Kind == KindGenerate {
		w.askForAll(t)
	} else {
		w.askForRepair(cfg, t)
	}
	reason, err := check.Discover(ctx, t, runs)
	if err == nil && reason == "" {
		reason = w.contradicts(cfg, t)
	}
	if reason != "" {
		return nil, milepost.E("micro: make", milepost.KindInternal, "task %s: %s", id, reason)
	}
	return t, err
}

// askForRepair fills in what a repair task asks and how it is solved.
func (w *world) askForRepair(cfg Config, t *milepost.Task) {
	t.Statement = w.statement(cfg.Hint)
	before, after := w.render(false), w.render(true)
	for _, f := range before.list() {
		if d := benchmarks.Diff(f.Path, before[f.Path], after[f.Path]); d != "" {
			t.ReferencePatch += d
			t.RelevantFiles = append(t.RelevantFiles, f.Path)
		}
	}
}

func taskID(cfg Config, i int) string {
	name := "micro"
	if cfg.Kind == KindGenerate {
		name = "micro-generate"
	}
	return fmt.Sprintf("%s-%s-%d-%04d", name, cfg.Split, cfg.Seed, i)
}

// contradicts compares the failing tests that were found with those the grammar expects.
func (w *world) contradicts(cfg Config, t *milepost.Task) string {
	var want []string
	for _, m := range w.modules {
		for _, fn := range m.functions {
			for i, e := range fn.tests {
				if cfg.Kind == KindGenerate || fn.body.eval(e.in) != e.want {
					want = append(want, testID(m.name, fn.Name, i))
				}
			}
		}
	}
	slices.Sort(want)
	if !slices.Equal(want, t.FailToPass) {
		return fmt.Sprintf("tests %v fail, the grammar expects %v", t.FailToPass, want)
	}
	return ""
}

// meta describes the difficulty of a task for people and statistics.
func (w *world) meta(cfg Config) map[string]string {
	if cfg.Kind == KindGenerate {
		return map[string]string{"seed": strconv.FormatInt(cfg.Seed, 10), "files": strconv.Itoa(cfg.Files), "functions": strconv.Itoa(cfg.Files * cfg.FunctionsPerFile)}
	}
	var fams, where []string
	for _, f := range w.faults {
		fams = append(fams, string(f.wrong.family))
		where = append(where, f.module+"."+f.fn.Name)
	}
	return map[string]string{
		"seed": strconv.FormatInt(cfg.Seed, 10), "faults": strconv.Itoa(cfg.Faults), "files": strconv.Itoa(cfg.Files),
		"distractors": strconv.Itoa(cfg.Distractors), "hint": string(cfg.Hint),
		benchmarks.MetaFamilies: strings.Join(fams, ","), "functions": strings.Join(where, ","),
	}
}

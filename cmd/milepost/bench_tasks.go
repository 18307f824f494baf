package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/benchmarks/micro"
	"github.com/milepost-rl/milepost/configs"
)

// The kinds of tests that the bench runs.
const (
	testsReal    = "real"    // the micro tasks' own tests: a few milliseconds, all of it computing
	testsWaiting = "waiting" // the same and one more test that sleeps: long, but hardly computing
)

// benchTasks makes the micro tasks of the bench, by the shipped configuration cfg.
func benchTasks(ctx context.Context, o benchOptions, cfg configs.Run, w *world) ([]*milepost.Task, error) {
	set := cfg.Micro.Config
	set.Seed, set.Count, set.Split = o.Seed, o.Tasks, micro.SplitTrain
	return micro.Make(ctx, set, &benchmarks.Checker{Bases: w.bases, Blobs: w.blobs, Runner: w.tests, Workers: 2}, filepath.Join(o.Dir, "tasks"), nil)
}

// waitingTask is t in a repository of its own below dir, with one more test, which passes after sleeping. It sleeps where
// the task's tests run: in the sandbox, in the process that a probe forks.
func waitingTask(t *milepost.Task, dir string, sleep time.Duration) (*milepost.Task, error) {
	var files []benchmarks.File
	err := filepath.WalkDir(t.Repo, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(t.Repo, path)
		files = append(files, benchmarks.File{Path: filepath.ToSlash(rel), Data: data})
		return err
	})
	if err != nil {
		return nil, milepost.Wrap("bench: waiting task", milepost.KindUnavailable, err)
	}
	const id = "test_waiting.Waiting.test_waiting"
	text := fmt.Sprintf("import time\nimport unittest\n\n\nclass Waiting(unittest.TestCase):\n    def test_waiting(self):\n        time.sleep(%g)\n", sleep.Seconds())
	files = append(files, benchmarks.File{Path: "tests/test_waiting.py", Data: []byte(text)})
	out := *t
	out.ID = t.ID + "-waiting"
	out.Repo = filepath.Join(dir, out.ID)
	out.Tests = append(slices.Clone(t.Tests), id)
	out.PassToPass = append(slices.Clone(t.PassToPass), id)
	slices.Sort(out.Tests)
	slices.Sort(out.PassToPass)
	out.BaseCommit, out.BaseTree, err = benchmarks.WriteRepo(out.Repo, files)
	return &out, err
}

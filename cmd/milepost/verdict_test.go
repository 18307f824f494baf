package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
	"github.com/milepost-rl/milepost/env/local"
	"github.com/milepost-rl/milepost/orchestrator"
)

// needSandbox skips a test on a machine that cannot confine anything.
func needSandbox(t *testing.T) {
	t.Helper()
	d, err := local.New(local.Config{Root: t.TempDir()})
	if err != nil {
		t.Skipf("no sandbox on this machine: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// edits is an agent that writes one file and submits.
type edits struct {
	world *world
	file  map[string]string // by task: the text of test_n.py, which the repository does not have
}

// Run implements orchestrator.Rollouts.
func (e edits) Run(_ context.Context, task *milepost.Task, spec orchestrator.EpisodeSpec) (*milepost.Episode, error) {
	ep := &milepost.Episode{ID: spec.ID, Group: spec.Group, Task: task.ID, Status: milepost.EpisodeCompleted, Stop: milepost.StopSubmit,
		FinalTree: task.BaseTree, Steps: []milepost.Step{{Valid: true, Executed: true}}}
	text := e.file[task.ID]
	if text == "" {
		return ep, nil
	}
	blob, err := e.world.blobs.Put([]byte(text))
	if err != nil {
		return nil, err
	}
	ep.FinalDelta = []milepost.TreeChange{{Path: "test_n.py", Mode: 0o100644, Blob: blob}}
	ep.FinalTree, err = treeWith(task.Repo, "test_n.py", text)
	return ep, err
}

// treeWith returns the id of the tree at a repository's HEAD with one more file, which stays in its working directory.
func treeWith(dir, name, text string) (string, error) {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		return "", err
	}
	if out, err := exec.Command("git", "-C", dir, "add", name).CombinedOutput(); err != nil {
		return "", fmt.Errorf("git add: %w: %s", err, out)
	}
	out, err := exec.Command("git", "-C", dir, "write-tree").Output()
	return strings.TrimSpace(string(out)), err
}

// TestVerdictsOfRealTests: tests that hang and tests that the agent added are wrong answers of the agent, not failures
// of the infrastructure; the same tests untouched pass.
func TestVerdictsOfRealTests(t *testing.T) {
	needSandbox(t)
	cfg := configs.Default()
	dir := t.TempDir()
	w, err := openWorld(cfg, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	const module = "import unittest\nclass T(unittest.TestCase):\n    def test_one(self):\n        "
	agent := edits{world: w, file: map[string]string{
		"hangs": "import time\ntime.sleep(60)\n",
		"adds":  module + "pass\n",
	}}
	tasks := map[string]*milepost.Task{}
	var all []*milepost.Task
	var specs []orchestrator.EpisodeSpec
	for _, id := range []string{"untouched", "hangs", "adds"} {
		task := unittestTask(t)
		task.ID, task.Test.Timeout = id, 3*time.Second
		tasks[id], all = task, append(all, task)
		specs = append(specs, orchestrator.EpisodeSpec{ID: "e/" + id, Group: id, Task: id})
	}
	probes, err := openProbing(t.Context(), cfg, w, dir, "verdicts", 1, all, func(err error) { t.Errorf("warning: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := probes.close(); err != nil {
			t.Error(err)
		}
	}()
	eps, err := orchestrator.Collect(t.Context(), agent, probes, tasks, specs, orchestrator.Bounds{Concurrency: 1, Barrier: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		status   milepost.ProbeStatus
		trusted  bool
		resolved bool
	}{{milepost.ProbeCompleted, true, true}, {milepost.ProbeTimeout, false, false}, {milepost.ProbeCompleted, false, false}}
	for i, ep := range eps {
		v := ep.Outcome.Verdict
		if v == nil || v.Status != want[i].status || v.Trusted != want[i].trusted {
			t.Errorf("%s: verdict %+v, want %+v", ep.ID, v, want[i])
		}
		if ep.Status != milepost.EpisodeCompleted || !ep.Outcome.Graded || ep.Outcome.Resolved != want[i].resolved {
			t.Errorf("%s: status %s %s, outcome %+v", ep.ID, ep.Status, ep.Error, ep.Outcome)
		}
	}
}

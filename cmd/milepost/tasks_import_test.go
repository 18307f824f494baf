package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milepost-rl/milepost/benchmarks"
)

// TestImportSplitMix goes the way of a data set through the commands: rows in, parts and a mixture out.
func TestImportSplitMix(t *testing.T) {
	dir := t.TempDir()
	set := filepath.Join(dir, "set")
	code, out, errOut := tasksCommand(t, "import", "../../benchmarks/dataset/testdata/beyond.jsonl", "--out", set, "--image-prefix", "mirror.example/x")
	if code != exitDone || !strings.Contains(out, "4 tasks, 4 of beyond-swe") || !strings.Contains(out, "not found: 1 files *.zip that rows name") {
		t.Fatalf("import: %d, %s%s", code, out, errOut)
	}
	if code, out, _ := tasksCommand(t, "show", set, "own_pkg_pr1"); code != exitDone || !strings.Contains(out, "repository  /workspace/pkg at 0123456789abcdef0123456789abcdef01234567 in image mirror.example/x/beyond/own_pkg:1\n") ||
		!strings.Contains(out, "grading     rule all\n") || !strings.Contains(out, "upstream own/pkg") {
		t.Errorf("show: %d, %s", code, out)
	}
	if code, out, _ := tasksCommand(t, "stats", set); code != exitDone || !strings.Contains(out, "data set beyond-swe") || !strings.Contains(out, "of 1 repositories") {
		t.Errorf("stats: %d, %s", code, out)
	}
	parts := filepath.Join(dir, "parts")
	code, out, errOut = tasksCommand(t, "split", set, "--out", parts, "--ratios", "train=1,heldout=1", "--by", "task")
	if code != exitDone || !strings.Contains(out, "/train: 2 tasks\n") || !strings.Contains(out, "/heldout: 2 tasks\n") {
		t.Errorf("split: %d, %s%s", code, out, errOut)
	}
	mix := filepath.Join(dir, "mix.yaml")
	if err := os.WriteFile(mix, []byte("sets:\n  - {path: parts/train, weight: 3}\n  - {path: parts/heldout, weight: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mixed := filepath.Join(dir, "mixed")
	if code, out, errOut := tasksCommand(t, "mix", mix, "--out", mixed); code != exitDone || !strings.Contains(out, "2 tasks, weight 3\n") {
		t.Errorf("mix: %d, %s%s", code, out, errOut)
	}
	tasks, err := benchmarks.Load(mixed)
	if err != nil || len(tasks) != 4 || tasks[0].Weight != .375 || tasks[3].Weight != .125 {
		t.Errorf("mixture: %v, %v", tasks, err)
	}
}

func TestImportWrongUse(t *testing.T) {
	rows := "../../benchmarks/dataset/testdata/beyond.jsonl"
	out := filepath.Join(t.TempDir(), "set")
	t.Setenv("HF_ENDPOINT", "")
	for want, args := range map[string][]string{
		"one file, folder or hf:// address is wanted": {"import"},
		"--out is missing":                            {"import", rows},
		"--limit is -1":                               {"import", rows, "--out", out, "--limit", "-1"},
		`format "x" is not one of swe-bench`:          {"import", rows, "--out", out, "--format", "x"},
		`HF_ENDPOINT is ""`:                           {"import", "hf://own/set", "--out", out, "--cache", out},
		`--by is "size"; allowed are repo`:            {"split", rows, "--out", out, "--by", "size"},
		`"train=1" is one part`:                       {"split", rows, "--out", out, "--ratios", "train=1"},
		"one mixture file is wanted":                  {"mix"},
		"swe-gym wants column repo, base_commit":      {"import", "../../benchmarks/dataset/testdata/nl2repo.jsonl", "--out", out, "--format", "swe-gym"},
	} {
		if code, _, errOut := tasksCommand(t, args...); code != exitUsage || !strings.Contains(errOut, want) {
			t.Errorf("tasks %v: code %d, %q; want %d and %q", args, code, errOut, exitUsage, want)
		}
	}
	if _, err := os.Stat(filepath.Join(out, benchmarks.TasksFile)); err == nil {
		t.Error("wrong use left a set behind")
	}
}

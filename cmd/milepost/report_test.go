package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost/orchestrator"
	"github.com/milepost-rl/milepost/orchestrator/journal"
	"github.com/milepost-rl/milepost/shadow"
	trainerbridge "github.com/milepost-rl/milepost/trainer_bridge"
	"github.com/milepost-rl/milepost/trainer_bridge/weights"
)

// runFolder makes the folder of a run that has three checkpoints and ended.
func runFolder(t *testing.T) *orchestrator.Folder {
	t.Helper()
	f, err := orchestrator.OpenFolder(t.TempDir(), orchestrator.Header{Name: "small", Seed: 4, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	j, _, _, err := journal.Open(f.Path("journal.jsonl"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	record := func(e orchestrator.Event) {
		if _, err := j.Append(string(e.Type), e); err != nil {
			t.Fatal(err)
		}
	}
	record(orchestrator.Event{Type: orchestrator.EventStarted, Epoch: 1})
	for u := 1; u <= 3; u++ {
		if err := os.MkdirAll(f.Checkpoint(u), 0o755); err != nil {
			t.Fatal(err)
		}
		record(orchestrator.Event{Type: orchestrator.EventFinalised, Update: u, Rows: 1})
		record(orchestrator.Event{Type: orchestrator.EventTrained, Update: u, Checkpoint: filepath.Join("checkpoints", filepath.Base(f.Checkpoint(u)))})
		record(orchestrator.Event{Type: orchestrator.EventPushed, Version: int32(u), Active: 90})
	}
	const config = "schedule:\n  retention:\n    checkpoints: 2\n    weights: 2\n    batches: 0\n"
	if err := os.WriteFile(f.Path("config.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return f
}

// milepostRun runs a command line in process.
func milepostRun(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetErr(&errs)
	code = run(t.Context(), root, args)
	return code, out.String(), errs.String()
}

func TestReportCommand(t *testing.T) {
	f := runFolder(t)
	page := filepath.Join(t.TempDir(), "page.html")
	if code, out, errs := milepostRun(t, "report", f.Dir, "--out", page); code != exitDone || !strings.Contains(out, "updates   3") || !strings.Contains(out, page) {
		t.Errorf("report --out: exit %d\n%s%s", code, out, errs)
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}
	code, out, errs := milepostRun(t, "report", f.Dir, "--json")
	var got struct {
		Name    string `json:"name"`
		Updates int    `json:"updates"`
	}
	if err := json.Unmarshal([]byte(out), &got); code != exitDone || err != nil || got.Name != "small" || got.Updates != 3 {
		t.Errorf("report --json: exit %d, %v, %+v\n%s", code, err, got, errs)
	}
	if _, err := os.Stat(f.Path("report.html")); err == nil {
		t.Error("--json without --out wrote a page")
	}
	if code, _, errs := milepostRun(t, "report", t.TempDir()); code != exitFailed || !strings.Contains(errs, "run.json") {
		t.Errorf("no run folder: exit %d, %s", code, errs)
	}
	if code, _, errs := milepostRun(t, "report"); code != exitUsage || !strings.Contains(errs, "one run folder") {
		t.Errorf("no argument: exit %d, %s", code, errs)
	}
}

func TestGCCommand(t *testing.T) {
	f := runFolder(t)
	if code, out, errs := milepostRun(t, "gc", f.Dir, "--dry-run"); code != exitDone || !strings.Contains(out, "would remove checkpoints/u0001") {
		t.Errorf("dry: exit %d\n%s%s", code, out, errs)
	}
	j, _, _, err := journal.Open(f.Path("journal.jsonl"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, errs := milepostRun(t, "gc", f.Dir); code != exitFailed || !strings.Contains(errs, "already going") {
		t.Errorf("a run that is going: exit %d, %s", code, errs)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.Checkpoint(1)); err != nil {
		t.Errorf("a dry or refused gc removed something: %v", err)
	}
	if code, out, errs := milepostRun(t, "gc", f.Dir, "--json"); code != exitDone || !strings.Contains(out, `"path":"checkpoints/u0001"`) {
		t.Errorf("gc: exit %d\n%s%s", code, out, errs)
	}
	if _, err := os.Stat(f.Checkpoint(1)); !os.IsNotExist(err) {
		t.Errorf("the old checkpoint is still there (%v)", err)
	}
	if _, err := os.Stat(f.Checkpoint(2)); err != nil {
		t.Error(err)
	}
}

// TestMetricsOfPartsAreDocumented: what trainer, push and prober report has a row in docs/metrics.md under the names
// that the wiring in this package gives it.
func TestMetricsOfPartsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllSubmatch(page, -1) {
		documented[string(m[1])] = true
	}
	want := weights.Report{}.Metrics()
	for name := range fieldNames(shadow.Stats{}) {
		want["probe_"+name] = 0
	}
	maps.Copy(want, fieldNames(trainerbridge.UpdateMetrics{}))
	delete(want, "duration_s") // named after the trainer by (*trainer).Update
	delete(want, "score_duration_s")
	want["trainer_time_s"], want["trainer_score_s"] = 0, 0
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !documented[name] {
			t.Errorf("docs/metrics.md does not name %s", name)
		}
	}
}

// fieldNames are the JSON names of a struct's fields, durations with "_s" behind them.
func fieldNames(v any) map[string]float64 {
	out := map[string]float64{}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type == reflect.TypeFor[time.Duration]() {
			name += "_s"
		}
		out[name] = 0
	}
	return out
}

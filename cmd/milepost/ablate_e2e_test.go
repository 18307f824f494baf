package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milepost-rl/milepost/orchestrator"
)

// TestE2EAblateGoesOn carries a small study out with every part real, interrupts it in the middle of a run, and holds the
// whole to: finished runs are not touched again, the interrupted one is resumed, arms start from the same weights, and the
// result is over all runs.
func TestE2EAblateGoesOn(t *testing.T) {
	if os.Getenv("MILEPOST_E2E") != "1" {
		t.Skip("starts a real vLLM server, which takes minutes: set MILEPOST_E2E=1")
	}
	dir := filepath.Join(t.TempDir(), "study")
	mark := "e2e-" + filepath.Base(filepath.Dir(dir))
	s := &scenario{t: t, mark: mark, dir: dir}
	t.Cleanup(s.end)
	file := filepath.Join(t.TempDir(), "s.yaml")
	write(t, file, "base: quickstart\nseeds: [11]\nbudget: {updates: 2}\nsearch: {rates: [5.0e-4, 1.0e-3], updates: 1}\nheldout: {every: 1, final: 1}\nreference: milestone\n"+
		"arms: [{name: milestone}, {name: outcome, set: [credit.milestone.enabled=false, rollout.probe_steps=false]}]\n")
	args := []string{"ablate", "-c", file, "--dir", dir}
	for _, setting := range small {
		switch name, _, _ := strings.Cut(setting, "="); name {
		case "schedule.max_updates", "schedule.max_wall", "schedule.eval_every", "schedule.eval_samples", "schedule.validation_samples":
			// the study's own
		default:
			args = append(args, "--set", setting)
		}
	}

	first := startProcess(t, mark, args...)
	var second string
	first.until("the second arm's run", 8*time.Minute, func() bool {
		found, _ := filepath.Glob(filepath.Join(dir, "runs", "outcome-*"))
		if len(found) == 1 {
			second = found[0]
		}
		return second != "" && inTheMiddle(t, second, 1)
	})
	first.interrupt()
	if code := first.wait(time.Minute); code != exitInterrupted || !strings.Contains(first.out.String(), "finished runs are kept") {
		t.Fatalf("interrupted: exit code %d; it said:\n%s", code, first.out.String())
	}
	nothingLeft(t, mark, dir)
	before := finishedRuns(t, dir)
	if len(before) != 1+4+1 { // start, search, first arm
		t.Fatalf("finished are %v", before)
	}

	again := startProcess(t, mark, args...)
	if code := again.wait(6 * time.Minute); code != exitDone {
		t.Fatalf("exit code %d; it said:\n%s", code, again.out.String())
	}
	for run, stamp := range before {
		if info, err := os.Stat(filepath.Join(run, "journal.jsonl")); err != nil || !info.ModTime().Equal(stamp) {
			t.Errorf("the finished run %s was touched: %v", run, err)
		}
	}
	ended := map[string]int{}
	for _, e := range events(t, second) {
		if e.Type == orchestrator.EventEpisodeEnded && !strings.HasPrefix(e.Episode, "validation") && !strings.HasPrefix(e.Episode, "heldout") {
			ended[e.Episode]++
			if ended[e.Episode] > 1 {
				t.Errorf("episode %s ended twice", e.Episode)
			}
		}
	}
	h, err := (&orchestrator.Folder{Dir: second}).History()
	if err != nil || h.Updates != 2 || h.Epochs != 2 || len(ended) != 2*e2eGroups*e2eGroup {
		t.Errorf("the resumed run: %d updates in %d epochs, %d training episodes, %v", h.Updates, h.Epochs, len(ended), err)
	}
	after := finishedRuns(t, dir)
	models := map[string]bool{}
	for run := range after {
		h, err := (&orchestrator.Folder{Dir: run}).Header()
		if err != nil {
			t.Fatal(err)
		}
		models[h.Model] = true
	}
	if len(after) != 7 || len(models) != 1 {
		t.Errorf("%d finished runs from %d models", len(after), len(models))
	}
	text, err := os.ReadFile(filepath.Join(dir, "ablation.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"milestone", "outcome"} {
		if !strings.Contains(string(text), says) {
			t.Errorf("the result does not name %s:\n%s", says, text)
		}
	}
	if strings.Contains(string(text), "nfinished") {
		t.Errorf("the result speaks of unfinished runs:\n%s", text)
	}
	nothingLeft(t, mark, dir)
}

// finishedRuns are the runs of a study that ended, with the time of their last event.
func finishedRuns(t *testing.T, dir string) map[string]time.Time {
	t.Helper()
	out := map[string]time.Time{}
	for _, kind := range []string{"starts", "search", "runs"} {
		found, err := filepath.Glob(filepath.Join(dir, kind, "*", "result.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			info, err := os.Stat(filepath.Join(filepath.Dir(f), "journal.jsonl"))
			if err != nil {
				t.Fatal(fmt.Errorf("%s: %w", f, err))
			}
			out[filepath.Dir(f)] = info.ModTime()
		}
	}
	return out
}

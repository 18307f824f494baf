package orchestrator

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

func names(removed []Removed) string {
	var out []string
	for _, r := range removed {
		out = append(out, r.Path)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestGC: a run in use is refused; at rest a dry run removes nothing; the real one leaves a run that is resumed as before.
func TestGC(t *testing.T) {
	dir := t.TempDir()
	r := newTestRun(t, dir, &world{started: map[string]int{}}, 1)
	if err := r.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	f := r.folder
	keep := Retention{Checkpoints: 1, Weights: 1, Batches: 2}
	if _, err := f.GC(keep, true); milepost.KindOf(err) != milepost.KindConflict {
		t.Fatalf("gc of a run in use: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	// A crash between saving a checkpoint and journaling it leaves one that the journal does not know.
	if err := errors.Join(os.MkdirAll(f.Checkpoint(5), 0o755), os.WriteFile(f.Path("checkpoints", "u0005", "x"), make([]byte, 10), 0o644)); err != nil {
		t.Fatal(err)
	}
	// Others left a torn line and half a batch.
	if err := os.WriteFile(f.Path("batches", "u0004.arrow.tmp-17"), []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	tear(t, f.Path("journal.jsonl"))
	journalBefore, err := os.ReadFile(f.Path("journal.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "batches/u0001.arrow batches/u0002.arrow batches/u0004.arrow.tmp-17 checkpoints/u0003 weights/v0003"
	before := list(t, f)
	dry, err := f.GC(keep, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(dry); got != want {
		t.Errorf("dry: %s, want %s", got, want)
	}
	if got := list(t, f); !slices.Equal(got, before) {
		t.Errorf("a dry run changed the folder: %v", got)
	}
	done, err := f.GC(keep, false)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(done); got != want {
		t.Errorf("removed %s, want %s", got, want)
	}
	if got := list(t, f); slices.Contains(got, "checkpoints/u0003") || !slices.Contains(got, "checkpoints/u0004") {
		t.Errorf("left: %v", got)
	}
	if after, err := os.ReadFile(f.Path("journal.jsonl")); err != nil || !bytes.Equal(after, journalBefore) {
		t.Errorf("gc changed the journal (%d bytes, %d before): %v", len(after), len(journalBefore), err)
	}
	release, err := Lock(f.Dir) // as one who is starting servers for the run does, before the journal is open
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.GC(keep, true); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("gc of a folder that is held: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if again, err := f.GC(keep, false); err != nil || len(again) != 0 {
		t.Errorf("a second gc: %v, %v", again, err)
	}
	run, err := os.ReadFile(f.Path("run.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Path("run.json"), []byte(`{"schema": 9}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.GC(keep, true); milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), "schema 9") {
		t.Errorf("another schema: %v", err)
	}
	if err := os.WriteFile(f.Path("run.json"), run, 0o644); err != nil {
		t.Fatal(err)
	}
	again := newTestRun(t, dir, &world{started: map[string]int{}}, 1)
	if err := errors.Join(again.Run(context.Background()), again.Close()); err != nil {
		t.Errorf("the run after gc: %v", err)
	}
}

// tear appends half a line, as a crash inside a write leaves it.
func tear(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(`{"seq":`)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, f *Folder) []string {
	t.Helper()
	var out []string
	for _, dir := range []string{"checkpoints", "weights", "batches"} {
		entries, err := os.ReadDir(f.Path(dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, dir+"/"+e.Name())
		}
	}
	return out
}

func TestGCNeedsARun(t *testing.T) {
	f := &Folder{Dir: t.TempDir()}
	if _, err := f.GC(DefaultRetention(), false); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no journal: %v", err)
	}
	if _, err := os.Stat(f.Path("journal.jsonl")); err == nil {
		t.Error("gc made a journal")
	}
	if _, err := f.GC(Retention{}, false); milepost.KindOf(err) != milepost.KindInvalid {
		t.Errorf("a retention out of range: %v", err)
	}
}

func TestRetentionOfSavedConfig(t *testing.T) {
	f := &Folder{Dir: t.TempDir()}
	if _, err := f.Retention(); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("no configuration: %v", err)
	}
	for text, want := range map[string]string{
		"schedule:\n  retention: {checkpoints: 3, weights: 1, batches: 9}\nmodel: x\n": "",
		"schedule: {}\n": "no schedule.retention",
		"schedule:\n  retention: {checkpoints: 0, weights: 1}\n": "must be 1 or more",
		"schedule: [\n": "config.yaml",
	} {
		if err := os.WriteFile(f.Path("config.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := f.Retention()
		if want == "" {
			if err != nil || r != (Retention{Checkpoints: 3, Weights: 1, Batches: 9}) {
				t.Errorf("%+v, %v", r, err)
			}
		} else if milepost.KindOf(err) != milepost.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestHistory reads a whole run: what was served, what was best, and by which rule it ended.
func TestHistory(t *testing.T) {
	r := newTestRun(t, t.TempDir(), &world{started: map[string]int{}}, 1)
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	h, err := r.folder.History()
	if err != nil {
		t.Fatal(err)
	}
	best, rate := r.machine.Best()
	if h.Best != best || h.BestRate != rate || h.Served() != r.machine.Version() || h.Updates != 4 || h.Epochs != 1 || h.Stop != r.StopReason() || h.Stop == "" {
		t.Errorf("history %+v; the machine says best v%d at %g, serving v%d", h, best, rate, r.machine.Version())
	}
	tasks, err := r.folder.Tasks()
	if err != nil || len(tasks) != 4 || tasks["h"] == nil {
		t.Errorf("tasks: %v, %v", tasks, err)
	}
	records, err := r.folder.ReadEpisodes("u0001")
	if err != nil || records[0].Baseline == nil || records[0].Credit == nil {
		t.Errorf("a training record lacks baseline or credit (%v)", err)
	}
}

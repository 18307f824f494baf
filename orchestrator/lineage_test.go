package orchestrator

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

// TestRecipe: an update is made again from the newest checkpoint before it that is still there, with the batches between.
func TestRecipe(t *testing.T) {
	r := newTestRun(t, t.TempDir(), &world{started: map[string]int{}}, 2) // checkpoints at updates 2 and 4
	if err := errors.Join(r.Run(context.Background()), r.Close()); err != nil {
		t.Fatal(err)
	}
	f := r.folder
	show := func(update int) string {
		t.Helper()
		got, err := f.Recipe(update)
		if err != nil {
			return err.Error()
		}
		parts := []string{filepath.Base(got.Load)}
		for _, b := range append(got.Before, got.Batch) {
			if len(b.SHA256) == 0 {
				t.Errorf("update %d has no hash", b.Update)
			}
			parts = append(parts, filepath.Base(b.Path))
		}
		return strings.Join(parts, " ")
	}
	h, err := f.Header()
	if err != nil {
		t.Fatal(err)
	}
	model := filepath.Base(h.Model)
	for update, want := range map[int]string{
		1: model + " u0001.arrow", 2: model + " u0001.arrow u0002.arrow", 3: "u0002 u0003.arrow", 4: "u0002 u0003.arrow u0004.arrow",
	} {
		if got := show(update); got != want {
			t.Errorf("update %d: %s, want %s", update, got, want)
		}
	}
	if err := os.RemoveAll(f.Checkpoint(2)); err != nil {
		t.Fatal(err)
	}
	if got, want := show(3), model+" u0001.arrow u0002.arrow u0003.arrow"; got != want {
		t.Errorf("without the checkpoint: %s, want %s", got, want)
	}
	if err := os.Remove(f.Path("batches", "u0002.arrow")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Recipe(3); milepost.KindOf(err) != milepost.KindNotFound || !strings.Contains(err.Error(), "u0002.arrow, which is gone") {
		t.Errorf("without a batch: %v", err)
	}
	if _, err := f.Recipe(9); milepost.KindOf(err) != milepost.KindNotFound {
		t.Errorf("an update that never was: %v", err)
	}
}

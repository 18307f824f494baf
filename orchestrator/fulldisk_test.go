package orchestrator

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/milepost-rl/milepost/orchestrator/journal"
)

// TestFullDiskStopsTheRunAndNothingElse lets the disk run full after ever more pages of a run. Each time the run must
// stop and say why, leave nothing behind that cannot be read, and go on to its end once there is space.
func TestFullDiskStopsTheRunAndNothingElse(t *testing.T) {
	for free := 0; ; free += 3 {
		dir := smallDisk(t, "2m")
		r := newTestRun(t, dir, &world{started: map[string]int{}}, 1)
		filler := filepath.Join(dir, "filler")
		fill(t, filler, free)
		err := r.Run(context.Background())
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			if free < 20 {
				t.Fatalf("the run ended with %d free pages; it never met a full disk", free)
			}
			return
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%d free pages: the error is %v, which does not say that the disk is full", free, err)
		}
		checkReadable(t, r.folder)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		r = newTestRun(t, dir, &world{started: map[string]int{}}, 1)
		if err := r.Run(context.Background()); err != nil {
			t.Fatalf("%d free pages: resume with space: %v", free, err)
		}
		checkLineage(t, r, free)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkReadable reads what the run has written so far.
func checkReadable(t *testing.T, f *Folder) {
	t.Helper()
	if _, err := journal.Read(f.Path("journal.jsonl")); err != nil {
		t.Error(err)
	}
	batches, err := f.Batches()
	if err != nil {
		t.Error(err)
	}
	for _, b := range batches {
		if _, err := f.ReadEpisodes(b); err != nil {
			t.Error(err)
		}
	}
	evals, err := filepath.Glob(f.Path("evals", "*.json"))
	if err != nil {
		t.Error(err)
	}
	for _, e := range evals {
		if _, err := f.Evaluation(filepath.Base(e[:len(e)-len(".json")])); err != nil {
			t.Error(err)
		}
	}
}

// smallDisk mounts a file system of its own, which needs root.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("no small file system can be mounted (it takes root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes until only so many pages are free.
func fill(t *testing.T, path string, pages int) {
	t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &s); err != nil {
		t.Fatal(err)
	}
	n := int64(s.Bavail) - int64(pages)
	if n < 0 {
		t.Fatalf("the disk has %d free pages, %d are wanted", s.Bavail, pages)
	}
	if err := os.WriteFile(path, make([]byte, n*s.Bsize), 0o644); err != nil {
		t.Fatal(err)
	}
}

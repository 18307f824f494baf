package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	milepost "github.com/milepost-rl/milepost"
)

// Two messengers on one folder would overwrite one another's streams; the second must not even look at it.
func TestTheFolderOfAMessengerIsItsOwn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nats")
	release, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	code, _, errs := milepostRun(t, "nats", "--name", "b", "--dir", dir, "--listen", "127.0.0.1:47302")
	if code != exitFailed || !strings.Contains(errs, "is another process's; give another --dir") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the folder holds %v, %v, want its lock alone", files, err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if release, err = lockDir(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(dir); milepost.KindOf(err) != milepost.KindConflict {
		t.Errorf("a second time: %v", err)
	}
	_ = release()
}

// replay --save takes the place of nothing.
func TestReplaySavesOverNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "thesis.txt"), "x")
	code, _, errs := milepostRun(t, "trainer", "replay", filepath.Join(dir, "batches", "u0001.arrow"), "--save", dir)
	if code != exitUsage || !strings.Contains(errs, "--save "+dir+" exists and is not empty") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if _, err := os.Stat(filepath.Join(dir, "thesis.txt")); err != nil {
		t.Error(err)
	}
}

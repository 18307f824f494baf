package repo

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/milepost-rl/milepost"
)

// TestFullDisk runs its body again inside a mount namespace whose /mnt holds only 256 KiB: what does not fit must fail as
// unavailable and leave nothing half-written, and what fits must work before and after.
func TestFullDisk(t *testing.T) {
	if os.Getenv("MILEPOST_TEST_FULL_DISK") == "" {
		task := sampleTask(t, map[string]file{"big.bin": {ModeFile, string(noise(200_000))}, "other.bin": {ModeFile, string(noise(200_001))}})
		small := sampleTask(t, map[string]file{"a.py": {ModeFile, "x = 1\n"}})
		cmd := exec.Command("bwrap", "--dev-bind", "/", "/", "--size", "262144", "--tmpfs", "/mnt", os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
		cmd.Env = append(os.Environ(), "MILEPOST_TEST_FULL_DISK=1",
			"MILEPOST_TEST_BIG="+task.Repo+" "+task.BaseCommit+" "+task.BaseTree,
			"MILEPOST_TEST_SMALL="+small.Repo+" "+small.BaseCommit+" "+small.BaseTree)
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestFullDisk")) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	blobs, err := NewBlobs("/mnt/blobs")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blobs.Put([]byte("small")); err != nil {
		t.Fatal(err)
	}
	_, err = blobs.Put(noise(400_000))
	wantKind(t, err, milepost.KindUnavailable, "no space")
	wantFiles(t, "/mnt/blobs", 1)

	store, err := NewStore("/mnt/store")
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.Base(t.Context(), taskFrom(t, "MILEPOST_TEST_BIG"))
	wantKind(t, err, milepost.KindUnavailable)
	wantFiles(t, "/mnt/store", 1) // the lock
	b, err := store.Base(t.Context(), taskFrom(t, "MILEPOST_TEST_SMALL"))
	if err != nil {
		t.Fatal(err)
	}
	blob := memoryBlobs{}
	delta := []milepost.TreeChange{{Path: "big.bin", Mode: ModeFile, Blob: blob.put(noise(300_000))}}
	wantKind(t, Materialise(t.Context(), b, delta, blob, "/mnt/copy"), milepost.KindUnavailable, "no space")
}

type memoryBlobs map[string][]byte

func (m memoryBlobs) put(data []byte) string {
	m[HashBlob(data)] = data
	return HashBlob(data)
}

func (m memoryBlobs) Get(hash string) ([]byte, error) {
	if data, ok := m[hash]; ok {
		return data, nil
	}
	return nil, milepost.E("test: get", milepost.KindNotFound, "no blob %s", hash)
}

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	out, x := make([]byte, n), uint32(n)
	for i := range out {
		x = x*1664525 + 1013904223
		out[i] = byte(x >> 24)
	}
	return out
}

func taskFrom(t *testing.T, variable string) *milepost.Task {
	f := bytes.Fields([]byte(os.Getenv(variable)))
	if len(f) != 3 {
		t.Fatalf("%s has %d fields", variable, len(f))
	}
	return &milepost.Task{ID: variable, Repo: string(f[0]), BaseCommit: string(f[1]), BaseTree: string(f[2])}
}

func wantFiles(t *testing.T, dir string, want int) {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil || len(names) != want {
		t.Fatalf("%d files left, want %d: %v, %v", len(names), want, names, err)
	}
}

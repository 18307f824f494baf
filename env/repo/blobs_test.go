package repo

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/milepost-rl/milepost"
)

func TestBlobs(t *testing.T) {
	dir := t.TempDir()
	blobs, err := NewBlobs(dir, WithSync())
	if err != nil {
		t.Fatal(err)
	}
	hash, err := blobs.Put([]byte("hello\n"))
	if err != nil || hash != "ce013625030ba8dba906f756967f9e9ca394464a" { // printf 'hello\n' | git hash-object --stdin
		t.Fatalf("hash %s, %v", hash, err)
	}
	if data, err := blobs.Get(hash); err != nil || string(data) != "hello\n" {
		t.Fatalf("%q, %v", data, err)
	}
	_, err = blobs.Get(HashBlob([]byte("other")))
	wantKind(t, err, milepost.KindNotFound, HashBlob([]byte("other")))
	_, err = blobs.Get("../../etc/passwd")
	wantKind(t, err, milepost.KindInvalid)

	name := filepath.Join(dir, hash[:2], hash[2:])
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("hellO\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = blobs.Get(hash)
	wantKind(t, err, milepost.KindCorrupt, hash)
	if _, err := blobs.Put([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if data, err := blobs.Get(hash); err != nil || string(data) != "hello\n" {
		t.Fatalf("Put did not replace the damaged blob: %q, %v", data, err)
	}
}

// TestBlobsTogether writes the same and different blobs from several stores on one directory while they are read.
func TestBlobsTogether(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			blobs, err := NewBlobs(dir)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 50 {
				data := bytes.Repeat([]byte{byte(i)}, 10_000)
				hash, err := blobs.Put(data)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := blobs.Get(hash); err != nil || !bytes.Equal(got, data) {
					t.Errorf("blob %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	left, err := filepath.Glob(filepath.Join(dir, "*", ".tmp-*"))
	if err != nil || len(left) > 0 {
		t.Fatalf("temporary files left: %v, %v", left, err)
	}
}

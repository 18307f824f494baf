package repo

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/milepost-rl/milepost"
)

// BlobGetter gives the bytes of a blob by its git id. The bytes are the caller's to keep, not to change.
// Errors: KindNotFound for a blob it does not have, KindCorrupt for bytes that are not the blob's, KindUnavailable.
type BlobGetter interface {
	Get(hash string) ([]byte, error)
}

// Blobs is a content-addressed store of file contents in a directory: <dir>/<2 hex>/<38 hex>, named by git blob id.
//
// Invariants: a file under its final name holds all its bytes (it is written under a temporary name, then renamed; a full
// disk leaves nothing). Several goroutines and processes may use one directory at once.
type Blobs struct {
	dir  string
	sync bool
}

// BlobOption changes how a Blobs store writes.
type BlobOption func(*Blobs)

// WithSync makes Put return only after the bytes are on the disk (fsync). Without it a killed process loses nothing, a
// power failure may lose recent blobs, which Get then reports as corrupt.
func WithSync() BlobOption { return func(b *Blobs) { b.sync = true } }

// NewBlobs opens the store in dir, which is made where missing. Errors: KindUnavailable.
func NewBlobs(dir string, opts ...BlobOption) (*Blobs, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, milepost.Wrap("repo: open blobs", milepost.KindUnavailable, err)
	}
	b := &Blobs{dir: dir}
	for _, o := range opts {
		o(b)
	}
	return b, nil
}

// Put stores data and returns its git blob id. A blob that is there whole is not written again; a damaged one is replaced.
// Errors: KindUnavailable (full disk, permissions); nothing is left behind then.
func (b *Blobs) Put(data []byte) (hash string, err error) {
	const op = "repo: put blob"
	hash = HashBlob(data)
	name := b.path(hash)
	if have, err := os.ReadFile(name); err == nil && bytes.Equal(have, data) {
		return hash, nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if err := writeAtomic(name, data, b.sync); err != nil {
		return "", milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	return hash, nil
}

// Get returns the bytes of a blob after checking them against its id. Errors: KindInvalid for what is no blob id,
// KindNotFound, KindCorrupt, KindUnavailable.
func (b *Blobs) Get(hash string) ([]byte, error) {
	const op = "repo: get blob"
	if !isObjectID(hash) {
		return nil, milepost.E(op, milepost.KindInvalid, "blob id %q is not 40 lower-case hex digits", hash)
	}
	data, err := os.ReadFile(b.path(hash))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, milepost.E(op, milepost.KindNotFound, "blob %s is not in the store", hash)
	}
	if err != nil {
		return nil, milepost.Wrap(op, milepost.KindUnavailable, err)
	}
	if got := HashBlob(data); got != hash {
		return nil, milepost.E(op, milepost.KindCorrupt, "blob %s holds the bytes of %s", hash, got)
	}
	return data, nil
}

// Has reports whether the blob is in the store, without reading it.
func (b *Blobs) Has(hash string) bool {
	if !isObjectID(hash) {
		return false
	}
	_, err := os.Stat(b.path(hash))
	return err == nil
}

func (b *Blobs) path(hash string) string { return filepath.Join(b.dir, hash[:2], hash[2:]) }

// writeAtomic writes data to name by way of a temporary file in the same directory, which is gone after any failure.
func writeAtomic(name string, data []byte, sync bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Chmod(0o444); err != nil {
		return err
	}
	if sync {
		if err = f.Sync(); err != nil {
			return err
		}
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

package messages

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/milepost-rl/milepost"
)

// BlobGetter gives the bytes of a blob by its git id; repo.Blobs is one.
type BlobGetter interface {
	Get(hash string) ([]byte, error)
}

// BlobStore takes blobs in; repo.Blobs is one.
type BlobStore interface {
	Has(hash string) bool
	Put(data []byte) (hash string, err error)
}

// PackBlobs makes the blobs of a difference ready to travel: those that fit into room bytes of a message, counted as base64,
// are returned by their ids; the rest goes through the object store by upload. Errors: those of from and upload.
func PackBlobs(from BlobGetter, delta []milepost.TreeChange, room int, upload func(object string, data []byte) error) (inline map[string][]byte, err error) {
	for _, c := range delta {
		if c.Deleted || inline[c.Blob] != nil {
			continue
		}
		data, err := from.Get(c.Blob)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Path, err)
		}
		if cost := len(data)*4/3 + 64; cost <= room && len(data) > 0 {
			room -= cost
			if inline == nil {
				inline = map[string][]byte{}
			}
			inline[c.Blob] = data
			continue
		}
		if err := upload(BlobObject(c.Blob), data); err != nil {
			return nil, err
		}
	}
	return inline, nil
}

// UnpackBlobs brings the blobs of a difference that into lacks there, from the message or the object store. Errors:
// KindNotFound for an object that expired, KindCorrupt, KindUnavailable.
func UnpackBlobs(ctx context.Context, into BlobStore, delta []milepost.TreeChange, inline map[string][]byte, store jetstream.ObjectStore) error {
	for _, c := range delta {
		if c.Deleted || into.Has(c.Blob) {
			continue
		}
		data, ok := inline[c.Blob]
		if !ok {
			var err error
			if data, err = Download(ctx, store, BlobObject(c.Blob)); err != nil {
				return err
			}
		}
		got, err := into.Put(data)
		if err != nil {
			return err
		}
		if got != c.Blob {
			return milepost.E("messages: take blob", milepost.KindCorrupt, "blob %s of %s came with the bytes of %s", c.Blob, c.Path, got)
		}
	}
	return nil
}
